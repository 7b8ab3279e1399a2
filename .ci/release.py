"""Make a release in this clone, but push nothing: `make release VERSION=1.2.3`.

    python .ci/release.py make VERSION     changelog, version, wheels, sdist, checksums, tag
    python .ci/release.py notes VERSION    print what CHANGELOG.md says of a version
    python .ci/release.py site VERSION     commit the site that `make site` built to its branch

Nothing leaves the machine. If a step fails, the commit is undone and no tag is made.
"""

import datetime
import hashlib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
CHANGELOG = ROOT / "CHANGELOG.md"
# each file that contains the version, and the line of the version, with {} for the number
PLACES = {
    "src/qkv/__init__.py": '__version__ = "{}"',
    "CITATION.cff": "version: {}",
    "docs/cite.md": '  version = "{}",',
}


def git(*arguments: str, **variables: str) -> str:
    """Return git's output; stop the release if git fails."""
    env = {**os.environ, **variables}
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, env=env)
    if done.returncode:
        sys.exit(f"release: git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.strip()


def section(name: str) -> str:
    """Return the changelog's section of a version."""
    parts = re.split(r"^## \[(.+?)\].*$", CHANGELOG.read_text(encoding="utf-8"), flags=re.M)
    found = dict(zip(parts[1::2], parts[2::2], strict=True))
    if name not in found:
        sys.exit(f"release: CHANGELOG.md has no section [{name}]: it has {', '.join(found)}")
    return found[name].strip()


def current(place: str) -> str:
    """Return the version in a file."""
    pattern = re.escape(PLACES[place]).replace(r"\{\}", "(.+)")
    return str(re.search(f"^{pattern}$", (ROOT / place).read_text(encoding="utf-8"), re.M)[1])


def refuse(version: str) -> None:
    """Stop, before anything is written, if this clone cannot become a release."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        sys.exit(f"release: VERSION is {version!r}; pass three numbers, such as 1.2.3")
    last = current("src/qkv/__init__.py")
    one, other = ([int(part) for part in name.split(".")] for name in (version, last))
    if one < other or (one == other and git("tag", "--list", f"v{last}")):
        sys.exit(f"release: VERSION is {version} and the sources have {last}; pass a higher one")
    if changed := git("status", "--porcelain"):
        sys.exit(f"release: the clone has changes: commit them or put them away\n{changed}")
    if not section("Unreleased"):
        sys.exit("release: CHANGELOG.md has nothing under [Unreleased]: write what a user notices")


def write(version: str) -> None:
    """Write the changelog's section and the version into the files."""
    today = datetime.datetime.now(datetime.UTC).date()
    text = CHANGELOG.read_text(encoding="utf-8")
    CHANGELOG.write_text(
        text.replace("## [Unreleased]", f"## [Unreleased]\n\n## [{version}] - {today}", 1),
        encoding="utf-8",
    )
    for place, line in PLACES.items():
        path = ROOT / place
        text = path.read_text(encoding="utf-8")
        text = text.replace(line.format(current(place)), line.format(version))
        text = re.sub("^date-released: .*$", f"date-released: {today}", text, flags=re.M)
        path.write_text(text, encoding="utf-8")


def sums() -> str:
    """Return the checksums of the files in dist/ in the format of `sha256sum`."""
    files = sorted(file for file in DIST.glob("qkv-*"))
    return "".join(
        f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files
    )


def make(version: str) -> None:
    """All of it."""
    refuse(version)
    before = git("rev-parse", "HEAD")
    for old in DIST.glob("*"):
        old.unlink()
    try:
        write(version)
        git("commit", "--all", "--message", f"Release {version}")
        subprocess.run([sys.executable, ".ci/wheels.py"], cwd=ROOT, check=True)
        (DIST / "SHA256SUMS").write_text(sums(), encoding="utf-8")
        (DIST / "notes.md").write_text(section(version) + "\n", encoding="utf-8")
        git("tag", "--annotate", f"v{version}", "--message", f"Release {version}")
    except BaseException:
        git("reset", "--hard", "--quiet", before)
        print("release: taken back, nothing was tagged", file=sys.stderr)
        raise
    print(
        f"released {version} in this clone; to publish it: git push --atomic origin HEAD v{version}"
    )


def commit_site(version: str) -> None:
    """Commit build/site to the branch `site`; the clone's index and files do not change."""
    if not (ROOT / "build/site/index.html").is_file():
        sys.exit("release: build/site has no site: run `make site` first")
    with tempfile.TemporaryDirectory() as folder:
        index = str(Path(folder, "index"))
        git("--work-tree=build/site", "add", "--all", "--force", ".", GIT_INDEX_FILE=index)
        tree = git("write-tree", GIT_INDEX_FILE=index)
    parent = git("for-each-ref", "--format=%(objectname)", "refs/heads/site")
    message = ["-m", f"Site of {version}"]
    commit = git("commit-tree", tree, *message, *(["-p", parent] if parent else []))
    git("update-ref", "refs/heads/site", commit)
    print("committed the site to the branch `site`; to publish it: git push origin site")


def main(what: str, version: str = "") -> None:
    """Run a subcommand; for any other word, stop with the script's help."""
    if what == "make":
        make(version)
    elif what == "notes":
        print(section(version))
    elif what == "site":
        commit_site(version)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Bundle the scripts of the pages: `make bundles`.

    python .ci/bundles.py

A page is a module of src/qkv/see/page/assets with all its imports; so is a script beside a page.
esbuild bundles each into one script and one style sheet in src/qkv/see/page/bundles, which Python
inserts into pages.
"""

import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "src/qkv/see/page"
ASSETS, BUNDLES = PAGE / "assets", PAGE / "bundles"
ESBUILD = ROOT / ".venv-esbuild/node_modules/.bin/esbuild"  # `make bundles` installs it
BESIDE = ("engine/door.js", "engine/server.js", "engine/worker.js")  # scripts beside that of a page
# The exports of a module are in `page`. Names stay, for those who read an error.
FLAGS = (
    *("--bundle", "--format=iife", "--global-name=page", "--charset=utf8"),
    *("--legal-comments=none", "--minify-whitespace", "--log-level=warning"),
)


def bundle(*modules: str, folder: Path, code: str = "") -> None:
    """Write the bundles of modules, named by their paths in assets/, or of code into a folder."""
    command = [str(ESBUILD), *modules, *FLAGS, f"--outdir={folder}", "--entry-names=[name]"]
    if not ESBUILD.exists():
        sys.exit("there is no esbuild here: `make bundles` installs it")
    done = subprocess.run(
        command, cwd=ASSETS, input=code, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(done.stderr.partition("\nnode:")[0])  # cut the stack trace of esbuild's starter


def bundle_all(folder: Path) -> None:
    """Write the bundles of all pages into a folder."""
    pages = sorted(path.relative_to(ASSETS).as_posix() for path in ASSETS.glob("pages/*.js"))
    bundle(*pages, *BESIDE, folder=folder)


if __name__ == "__main__":
    with TemporaryDirectory() as made:
        bundle_all(Path(made))  # a module that is wrong leaves the bundles as they are
        BUNDLES.mkdir(exist_ok=True)
        for old in BUNDLES.iterdir():
            old.unlink()
        for new in Path(made).iterdir():
            shutil.copy(new, BUNDLES)

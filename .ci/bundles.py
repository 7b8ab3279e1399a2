"""Bundle the scripts of the pages: `make bundles`.

    python .ci/bundles.py

Each page has a main module in src/qkv/see/page/assets, and each extra script (see BESIDE) has one.
esbuild combines a main module and all its imports into one script, and their styles into one style
sheet. Both are in src/qkv/see/page/bundles, and Python inserts them into pages.
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
# Extra scripts: some pages contain them in addition to the script of the page's own module.
BESIDE = ("engine/api.js", "engine/server.js", "engine/worker.js")
# The global variable `page` holds the exports of a bundled module. Bundles keep the names of
# variables and functions, so that error messages stay readable.
FLAGS = (
    *("--bundle", "--format=iife", "--global-name=page", "--charset=utf8"),
    *(
        "--legal-comments=none",
        "--minify-whitespace",
        "--log-level=warning",
        "--loader:.wasm=base64",
    ),
)


def bundle(*modules: str, folder: Path, code: str = "") -> None:
    """Bundle modules or code, and write the bundles into a folder.

    `modules` are paths in assets/. Without modules, the string `code` is bundled.
    """
    command = [str(ESBUILD), *modules, *FLAGS, f"--outdir={folder}", "--entry-names=[name]"]
    if not ESBUILD.exists():
        sys.exit("there is no esbuild here: `make bundles` installs it")
    done = subprocess.run(
        command, cwd=ASSETS, input=code, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(done.stderr.partition("\nnode:")[0])  # omit the stack trace of esbuild's launcher


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

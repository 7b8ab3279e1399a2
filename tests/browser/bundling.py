"""Bundles of the pages' JavaScript modules, for tests."""

import importlib.util
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[2]
_spec = importlib.util.spec_from_file_location("ci_bundles", ROOT / ".ci" / "bundles.py")
assert _spec is not None
assert _spec.loader is not None
bundles = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(bundles)


@cache
def bundled(code: str) -> tuple[str, str]:
    """Bundle code that imports modules by paths in assets/; return a script and a style sheet.

    The script's global `page` has the exports of the code.
    """
    with TemporaryDirectory() as folder:
        bundles.bundle(folder=Path(folder), code=code)
        script, styles = (Path(folder, f"stdin.{kind}") for kind in ("js", "css"))
        return script.read_text("utf-8"), styles.read_text("utf-8") if styles.exists() else ""


def script_of(*names: str) -> str:
    """Return a script whose global `page` has all exports of the modules at these paths."""
    return bundled("\n".join(f'export * from "./{name}.js";' for name in names))[0]

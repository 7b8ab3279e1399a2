"""Bundles of the pages' JavaScript modules, for tests."""

import importlib.util
import json
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from playwright._impl._driver import compute_driver_executable

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


def by_node(code: str) -> Any:
    """Run JavaScript code that defines `result`, and return this value."""
    code += "\nPromise.resolve(result).then((it) => process.stdout.write(JSON.stringify(it)));"
    node = str(compute_driver_executable()[0])
    done = subprocess.run([node, "-"], input=code, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def script_of(*names: str) -> str:
    """Return a script whose global `page` has all exports of the modules at these paths."""
    return bundled("\n".join(f'export * from "./{name}.js";' for name in names))[0]

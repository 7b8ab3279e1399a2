"""Tests of the scripts' types, as TypeScript's compiler reads them from comments."""

import json
import shutil
import subprocess
from pathlib import Path

from .bundling import bundles

CONFIG = bundles.ASSETS / "tsconfig.json"


def checked(config: Path) -> str:
    """Return the compiler's messages about the files that a config names."""
    found = shutil.which("tsc")
    assert found, "there is no TypeScript: apt-get install node-typescript"
    done = subprocess.run([found, "-p", "."], cwd=config.parent, capture_output=True, text=True)
    return done.stdout + done.stderr


def test_the_scripts_pass_the_type_checker() -> None:
    assert checked(CONFIG) == ""


def test_the_type_checker_reports_wrong_types_and_missing_imports(tmp_path: Path) -> None:
    (tmp_path / "wrong.js").write_text(
        f'import {{ fill }} from "{CONFIG.parent}/base/elements.js";\n'
        'qkv.run("a", [{ op: "hide", token: "crown" }]);\nfill(el("p", {}));\n'
    )
    config = tmp_path / "tsconfig.json"
    include = ["*.js", f"{CONFIG.parent}/page.d.ts"]
    config.write_text(json.dumps({"extends": str(CONFIG), "include": include}))
    said = checked(config)
    assert "wrong.js(2,29): error TS2322: Type 'string' is not assignable to type 'number'" in said
    assert "wrong.js(3,6): error TS2304: Cannot find name 'el'" in said

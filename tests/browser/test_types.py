"""The types of the scripts, as TypeScript's compiler reads them from their comments."""

import json
import re
import shutil
import subprocess
from pathlib import Path

from .bundling import bundles

CONFIG = bundles.ASSETS / "tsconfig.json"
# These say of few of their parameters what they are yet; everything else of them is checked too.
LOOSE = {
    f"{folder}/{name}.js"
    for folder, names in {
        "pages": "walk",
        "parts": "flow steps sums",
    }.items()
    for name in names.split()
}
NO_TYPE = re.compile(r"error TS70(05|06|11|15|18|19|23|31|34|53):")


def checked(config: Path) -> str:
    """What the compiler has to say of the files that a config names."""
    found = shutil.which("tsc")
    assert found, "there is no TypeScript: apt-get install node-typescript"
    done = subprocess.run([found, "-p", "."], cwd=config.parent, capture_output=True, text=True)
    return done.stdout + done.stderr


def test_the_types_of_the_scripts_fit() -> None:
    found = re.findall(r"^(\S+?)\(\d+,\d+\): (.*)$", checked(CONFIG), re.MULTILINE)
    assert [line for line in found if line[0] not in LOOSE or not NO_TYPE.match(line[1])] == []
    assert {name for name, _ in found} == LOOSE, "take it out of LOOSE: it says all of its types"


def test_what_does_not_fit_and_what_is_not_imported_is_seen(tmp_path: Path) -> None:
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

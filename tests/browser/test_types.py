"""The types of the scripts, as TypeScript's compiler reads them from their comments."""

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "types"


def checked(config: Path) -> str:
    """What the compiler has to say of the files that a config names."""
    found = shutil.which("tsc")
    assert found, "there is no TypeScript: apt-get install node-typescript"
    done = subprocess.run([found, "-p", config], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.mark.parametrize("config", sorted(path.name for path in HERE.glob("*.json")))
def test_the_types_of_the_scripts_fit(config: str) -> None:
    assert checked(HERE / config) == ""


def test_what_does_not_fit_is_seen(tmp_path: Path) -> None:
    (tmp_path / "wrong.js").write_text('qkv.run("a", [{ op: "hide", token: "crown" }]);\n')
    config = tmp_path / "tsconfig.json"
    config.write_text(f'{{"extends": "{HERE}/engine.json", "include": ["*.js"]}}')
    said = checked(config)
    assert "wrong.js(1,29): error TS2322: Type 'string' is not assignable to type 'number'" in said

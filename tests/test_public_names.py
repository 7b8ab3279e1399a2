"""Tests of the names that Tab offers for `qkv.`: all of them exist, and all are public."""

import subprocess
import sys

import qkv


def test_dir_lists_exactly_the_public_names_before_their_first_use() -> None:
    program = "import qkv; print(*dir(qkv))"
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    offered = set(answer.stdout.split())
    assert {"attention", "compare", "learn", "load", "replay", "show", "walk"} <= offered
    # names that only the module itself uses are not offered
    assert not {"Any", "TYPE_CHECKING", "import_module", "_SEEING"} & offered
    packages = {"attend", "circuits", "compat", "embed", "findings", "integrations", "layers"}
    packages |= {"learn", "models", "scale", "search", "see", "text"}
    assert {*qkv.__all__, *packages, "__version__"} == offered


def test_every_name_in_dir_exists() -> None:
    for name in dir(qkv):
        assert getattr(qkv, name) is not None

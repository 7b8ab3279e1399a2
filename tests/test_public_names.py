"""Tests of the names that Tab offers for `qkv.`: all of them exist, and all are public."""

import subprocess
import sys

import qkv


def test_tab_offers_what_is_called_by_hand_before_any_of_it_was_used() -> None:
    program = "import qkv; print(*dir(qkv))"
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    offered = set(answer.stdout.split())
    assert {"attention", "compare", "learn", "load", "record", "replay", "show", "walk"} <= offered
    # names that only the module itself uses are not offered
    assert not {"Any", "TYPE_CHECKING", "import_module", "_SEEING"} & offered
    rooms = {"attend", "circuits", "embed", "findings", "integrations", "layers", "learn", "models"}
    rooms |= {"scale", "see", "text"}
    assert {*qkv.__all__, *rooms, "__version__"} == offered


def test_all_that_is_offered_is_there() -> None:
    for name in dir(qkv):
        assert getattr(qkv, name) is not None

"""Tests of models with damaged files.

qkv refuses a damaged model with an error of one line, or loads it. A loaded model has the tensors
and the outputs that the damaged files specify.

There are 400 cases, the same in every run. If QKV_ATTACK is a number (`make attack`), there are
2,000 cases, drawn with this seed.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from qkv.models import load

from .fuzzing import IDS, ONE_THREAD, PLAIN, check, read_by_the_library
from .small_models import CONFIGS, write_small
from .support import Folder

pytestmark = pytest.mark.attack

COMPARED = {  # keys that can change while the tensors stay the same
    "bert": {"num_attention_heads", "hidden_act", "layer_norm_eps"},
    "gpt2": {
        *("n_head", "activation_function", "layer_norm_epsilon", "scale_attn_weights"),
        "scale_attn_by_inverse_layer_idx",
    },
    "llama": {"hidden_act", "rms_norm_eps", "rope_theta", "max_position_embeddings"},
}
SEED = os.environ.get("QKV_ATTACK") or None
CASES = ["400"] if SEED is None else ["2000", SEED]
TESTS = Path(__file__).parent.parent


def written(path, name):
    """Write a small model of this family; return its folder and its config."""
    if name == "bert":
        Folder(path).write()
    else:
        write_small(path, CONFIGS[name])
    return path, json.loads((path / "config.json").read_text())


@pytest.mark.parametrize("name", PLAIN)
def test_the_plain_models_are_right(tmp_path, name):
    """The plain models match qkv on intact files; otherwise, comparisons would prove nothing."""
    path, values = written(tmp_path / "model", name)
    expected = PLAIN[name](read_by_the_library(path), values, IDS[0])
    found = load(path, dtype=np.float64)(IDS).last_hidden_state[0]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def others_than(value):
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value // 2, value * 2, 1]
    if isinstance(value, float):
        return [1e-3, 0.5, 20.0]
    return ["relu", "gelu", "silu", "gelu_new"] if isinstance(value, str) else []


@pytest.mark.filterwarnings("ignore:1 of 1 text was cut")
@pytest.mark.parametrize("name", PLAIN)
def test_a_changed_config_is_refused_or_computed(tmp_path, name):
    """If one value of a config is changed, qkv refuses the config or computes the right result.

    A plain model with the same changed config computes the right result.
    """
    path, values = written(tmp_path / "model", name)
    results = {}
    for key, value in list(values.items())[1:]:  # without model_type
        for other in others_than(value):
            (path / "config.json").write_text(json.dumps({**values, key: other}))
            results[key] = check(path) or results.get(key, False)
    assert {key for key, read in results.items() if read} >= COMPARED[name]


def test_damaged_files_end_in_an_error_or_in_a_right_model(tmp_path):
    """The cases run in a subprocess, to detect crashes, hangs and lack of memory."""
    (tmp_path / "whole").mkdir()
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-m", "models.fuzzing", str(tmp_path), *CASES],
        cwd=TESTS,
        env={**os.environ, "RUST_BACKTRACE": "0", **ONE_THREAD},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    refused, read = (int(word) for word in done.stdout.split() if word.isdigit())
    cases = int(CASES[0])
    assert refused + read >= cases
    assert min(refused, read) >= cases / 10  # each outcome is common enough

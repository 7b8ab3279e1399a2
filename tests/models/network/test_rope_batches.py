"""Tests of scaled rotary positions in batches: each text is scaled by its own length."""

import numpy as np
import pytest

import qkv
from qkv.circuits import head_scores
from qkv.models import load

from ..small_models import CONFIGS, write_small
from ..support import close, padded

SCALINGS = {
    "dynamic": {"rope_type": "dynamic", "factor": 3.0},
    "longrope": {
        "rope_type": "longrope",
        "short_factor": [1.0, 1.5, 2.0],
        "long_factor": [3.0, 5.0, 8.0],
        "original_max_position_embeddings": 6,
    },
}
# The rotary frequencies change if a text has more than 12 tokens (dynamic) or 6 tokens (longrope).
LENGTHS = [20, 3, 9, 6, 14]


@pytest.fixture(params=SCALINGS)
def model(request, tmp_path):
    scaling = {**SCALINGS[request.param], "rope_theta": 10000.0}
    positions = 12 if request.param == "dynamic" else 48
    config = {**CONFIGS["llama"], "rope_parameters": scaling, "max_position_embeddings": positions}
    found = load(write_small(tmp_path, config), dtype=np.float64)
    found.max_seq_length = None
    return found


def texts():
    rng = np.random.default_rng(0)
    return [rng.integers(4, 30, length) for length in LENGTHS]


def test_a_text_is_rotated_by_its_own_length(model):
    trace = model.trace(texts(), names=["k", "rot_k"])
    scaling = model.layers[0].attn.rotary.scaling
    for number, length in enumerate(LENGTHS):
        speeds, scale = scaling.speeds(10000.0, 6, length)
        keys = np.swapaxes(trace[number]["k", 1], 1, 2)
        expected = scale * qkv.apply_rotary(keys, np.arange(length), speeds=speeds)
        close(trace[number]["rot_k", 1], np.swapaxes(expected, 1, 2))


def test_a_text_gives_the_same_in_every_batch(model):
    last = ("resid_post", -1)
    alone = [model.trace(text, names=[last])[last][0] for text in texts()]
    for size in (None, 1, 2, 5):
        trace = model.trace(texts(), names=[last], batch_size=size)
        for number, rows in enumerate(alone):
            close(trace[number][last][0], rows)
    weighed = np.random.default_rng(1).standard_normal((len(LENGTHS), max(LENGTHS), 30))
    together = model.gradient(texts(), of=weighed)["embed"]
    for number, text in enumerate(texts()):
        own = model.gradient(text, of=weighed[number : number + 1, : len(text)])["embed"]
        close(together[number, : len(text)], own[0])
    found, parts = head_scores(model, texts(), "first"), []
    for text in texts():
        parts.append(head_scores(model, [text], "first")["first"] * len(text))
    close(found["first"], sum(parts) / sum(LENGTHS))


def test_a_model_call_scales_all_texts_by_the_longest(model):
    """The longest text in a call sets the rotary frequencies of all texts, as in transformers.

    `tests/parity` compares the results with those of transformers.
    """
    rows = texts()
    found = model(*padded(rows)).last_hidden_state
    close(found[0], model([rows[0]]).last_hidden_state[0])
    assert np.abs(found[1, :3] - model([rows[1]]).last_hidden_state[0]).max() > 1e-3

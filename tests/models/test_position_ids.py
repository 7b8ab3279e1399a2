"""Tests of `position_ids`: a padded text gives the same result as the text alone."""

import numpy as np
import pytest

import qkv
from qkv.models import load

from .small_models import CONFIGS, write_small
from .support import close, padded, seen_in

ROWS = [[4, 5, 6, 7], [8, 9], [5, 4, 9, 8, 7, 6]]
WIDTH = 8
# The first position id of a text, if not 0: in these families, the padding id plus 1.
FIRST = {"roberta": 2, "xlm-roberta": 2, "camembert": 2, "mpnet": 2}
WITHOUT = {"bloom", "t5", "mt5"}  # only distances between columns
KINDS = sorted(
    name
    for name, config in CONFIGS.items()
    if ("vocab_size" in config or "text_config" in config) and name not in WITHOUT
)


def model_of(folder, kind, **changed):
    found = load(write_small(folder, {**CONFIGS[kind], **changed}), dtype=np.float64)
    return getattr(found, "text", found)  # CLIP's text encoder


def counted(mask, first=0):
    return np.where(mask, np.cumsum(mask, axis=1) - 1 + first, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_left_padding_changes_nothing_if_position_ids_skip_it(tmp_path, kind):
    model = model_of(tmp_path, kind)
    ids, mask = padded(ROWS, "left", WIDTH)
    found = model(ids, mask, position_ids=counted(mask, FIRST.get(kind, 0)))
    for number, row in enumerate(ROWS):
        alone = model([row])
        close(found.last_hidden_state[number, -len(row) :], alone.last_hidden_state[0])
        if found.logits is not None and found.logits.shape[:2] == ids.shape:
            close(found.logits[number, -len(row) :], alone.logits[0])
    assert not found.last_hidden_state[~mask.astype(bool)].any()


@pytest.mark.parametrize("kind", ["gpt2", "distilbert", "albert", "gpt_neo"])
def test_without_position_ids_columns_are_the_learned_positions(tmp_path, kind):
    model = model_of(tmp_path, kind)
    ids, mask = padded(ROWS, "left", WIDTH)
    found = model(ids, mask).last_hidden_state
    for number, row in enumerate(ROWS):
        begin = WIDTH - len(row)
        own = model([row], position_ids=[[*range(begin, WIDTH)]]).last_hidden_state[0]
        close(found[number, begin:], own)
        alone = model([row]).last_hidden_state[0]
        assert np.abs(found[number, begin:] - alone).max() > 0.01


@pytest.mark.parametrize("kind", ["opt", "roberta", "mpnet", "llama", "gpt_neox", "modernbert"])
def test_some_families_need_no_position_ids_for_left_padding(tmp_path, kind):
    model = model_of(tmp_path, kind)
    ids, mask = padded(ROWS[:2], "left", WIDTH)
    ids[mask == 0] = 1  # the padding token of RoBERTa
    found = model(ids, mask).last_hidden_state
    for number, row in enumerate(ROWS[:2]):
        close(found[number, -len(row) :], model([row]).last_hidden_state[0])


@pytest.mark.parametrize(("kind", "first"), [("gpt2", 0), ("opt", 2), ("roberta", 0)])
def test_a_learned_position_is_a_row_of_the_table(tmp_path, kind, first):
    model, ids = model_of(tmp_path, kind), np.array([[4, 5, 6], [7, 8, 9]])
    positions = np.array([[3, 3, 7], [0, 5, 1]])
    table = model.parameters["pos_embed.weight"]
    for given, expected in ((positions, positions), (positions[:1], positions[[0, 0]])):
        seen = seen_in(model, ids, position_ids=given, names=["pos_embed"])
        np.testing.assert_array_equal(seen["hook_pos_embed"], table[expected + first])


ROTATED = [("q", 0), ("k", 0), ("rot_q", 0), ("rot_k", 0)]


@pytest.mark.parametrize("kind", ["llama", "modernbert"])
def test_queries_and_keys_are_rotated_by_their_positions(tmp_path, kind):
    model = model_of(tmp_path, kind)
    ids, mask = np.array([[4, 5, 6, 7], [0, 8, 9, 0]]), np.array([[1, 1, 1, 1], [0, 1, 1, 0]])
    positions = np.array([[9, 2, 40, 41], [-7, 3, 1000, 10**9]])  # ignored at padding
    seen = seen_in(model, ids, mask, position_ids=positions, names=ROTATED)
    at = np.where(mask, positions, 0)
    base = model.layers[0].attn.rotary.base
    for name in "qk":
        heads_in_front = np.swapaxes(seen[f"blocks.0.attn.hook_{name}"], 1, 2)
        expected = qkv.apply_rotary(heads_in_front, at[:, None], base=base)
        close(seen[f"blocks.0.attn.hook_rot_{name}"], np.swapaxes(expected, 1, 2))


def test_dynamic_rotary_scaling_uses_the_largest_position_id(tmp_path):
    """With scaled rotary positions, tokens at positions 16 to 19 are rotated as in a text of 20."""
    scaling = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    model = model_of(tmp_path, "llama", rope_parameters=scaling)  # limit: 16 positions
    ids = np.array([[4, 5, 6, 7, 8] * 4])
    mask = np.zeros((1, 20), int)
    mask[:, -4:] = 1
    positions = np.arange(16, 20)[None]
    whole = model(ids, mask).last_hidden_state[:, -4:]
    close(whole, model(ids[:, -4:]).last_hidden_state)
    found = model(ids[:, -4:], position_ids=positions).last_hidden_state
    speeds = model.layers[0].attn.rotary.scaling.speeds(10000.0, 6, 20)[0]
    seen = seen_in(model, ids[:, -4:], position_ids=positions, names=ROTATED)
    queries = np.swapaxes(seen["blocks.0.attn.hook_q"], 1, 2)
    expected = qkv.apply_rotary(queries, positions[0], speeds=speeds)
    close(seen["blocks.0.attn.hook_rot_q"], np.swapaxes(expected, 1, 2))
    assert np.abs(found - whole).max() > 1e-4


def test_edits_go_with_positions(tmp_path):
    model = model_of(tmp_path, "gpt2")
    ids, mask = padded(ROWS, "left", WIDTH)
    changes = {
        "ablate": {(0, 1): "mean", (1, 0): np.ones(4)},
        "edit": {("resid_mid", 0): lambda x: x / 2},
    }
    found = model(ids, mask, position_ids=counted(mask), **changes).last_hidden_state
    expected = model(*padded(ROWS), **changes).last_hidden_state
    for number, row in enumerate(ROWS):
        close(found[number, -len(row) :], expected[number, : len(row)])


def test_more_columns_than_positions(tmp_path):
    model = model_of(tmp_path, "gpt2")  # 16 positions
    ids, mask = padded(ROWS, "left", 40)
    found = model(ids, mask, position_ids=counted(mask)).last_hidden_state
    for number, row in enumerate(ROWS):
        close(found[number, -len(row) :], model([row]).last_hidden_state[0])
    assert not model(ids, 0 * mask, position_ids=counted(mask)).last_hidden_state.any()


def test_one_text_and_both_towers(tmp_path):
    model = model_of(tmp_path / "gpt2", "gpt2")
    close(
        model([4, 5, 6], position_ids=[2, 0, 1]).last_hidden_state,
        model([[4, 5, 6]], position_ids=[[2, 0, 1]]).last_hidden_state,
    )
    clip = load(write_small(tmp_path / "clip", CONFIGS["clip"]), dtype=np.float64)
    images = np.random.default_rng(0).standard_normal((1, 2, 8, 8))
    found = clip([[4, 5, 3]], None, images, position_ids=[[2, 0, 1]]).embeds
    close(found, clip.text([[4, 5, 3]], position_ids=[[2, 0, 1]]).embeds)


@pytest.mark.parametrize(
    ("kind", "given", "error", "said"),
    [
        ("gpt2", [[0.0, 1.0, 2.0]], TypeError, "position_ids are float64; pass integers"),
        ("gpt2", [[0, 1]], ValueError, r"have shape \(1, 2\), but input_ids have shape \(2.*3"),
        ("gpt2", [[0, 1, 16]], ValueError, "contain 16 for a token, but the positions of.*15"),
        ("gpt2", [[0, -1, 2]], ValueError, "contain -1 for a token, but the positions of.*15"),
        ("roberta", [[2, 3, 99]], ValueError, "contain 99 for a token, but the positions of"),
        ("llama", [[0, -1, 2]], ValueError, "contain -1 for a token, but the.*2147483647"),
        ("llama", [[0, 2**40, 2]], ValueError, "contain 1099511627776 for a token"),
        ("bloom", [[0, 1, 2]], ValueError, "has neither learned nor rotary positions: omit"),
    ],
)
def test_positions_that_do_not_fit(tmp_path, kind, given, error, said):
    model = model_of(tmp_path, kind)
    with pytest.raises(error, match=f"^model: .*{said}"):
        model([[4, 5, 6], [7, 8, 9]], position_ids=given)


def test_an_encoder_decoder_refuses_position_ids(tmp_path):
    model = model_of(tmp_path, "t5")
    with pytest.raises(ValueError, match=r"^model: position_ids are given, but .* neither"):
        model([[4, 5]], None, [[2]], position_ids=[[0, 1]])

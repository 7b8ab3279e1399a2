"""Tests of the task `decoder`: what its verdicts say, and right logits as of qkv."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

import qkv
from qkv_marking import check
from qkv_marking.tasks.decoder import small_model
from qkv_marking.tasks.decoder._steps import RIGHT, Text, compute

from ..written import is_flawless, marked, planted

ARRAYS = "decoder/arrays"
decoder = planted(ARRAYS)
rows_from_one = planted(ARRAYS, "np.arange(T)[:, None] => (1 + np.arange(T))[:, None]")


def in_float32(ids, weights, config):
    return decoder(ids, {name: a.astype(np.float32) for name, a in weights.items()}, config)


def with_positions_from_one(ids, weights, config):
    """Start positions at 1, and compute each row of logits in a separate call."""
    return np.stack([rows_from_one(ids[: n + 1], weights, config)[-1] for n in range(len(ids))])


@pytest.mark.parametrize("function", [decoder, in_float32, with_positions_from_one])
def test_a_right_decoder_gets_all_points(function):
    result = check(function, task="decoder")
    assert is_flawless(result), str(result)
    tried = "logits, words that are generated one after the other, a model of other sizes with"
    assert f"Tried: {tried} lm_head.weight." in result.message


def test_a_batch_of_one_will_do():
    result = check(
        lambda ids, weights, config: decoder(ids[0], weights, config)[None], task="decoder"
    )
    assert (result.passed, result.points) == (True, 10), str(result)
    assert "It takes only ids (1, T), not (T,)." in result.message


@pytest.fixture(params=[False, True], ids=["untied", "tied"])
def small(request, tmp_path):
    """Return the weights and the configuration of a small model, and the model as qkv loads it."""
    weights, config = small_model(tied=request.param)
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(dict(weights), tmp_path / "model.safetensors")
    return weights, config, qkv.load(tmp_path, dtype=np.float64)


def test_right_logits_and_generated_ids_equal_qkv(small):
    weights, config, model = small
    for ids in ([3], [12, 4, 2], [1, 1, 7, 5, 0, 9]):
        ids = np.array(ids) % config["vocab_size"]
        right = compute(Text(ids, tied=config["tie_word_embeddings"]), RIGHT)
        assert np.allclose(model([ids]).logits[0], right, rtol=1e-11)
        assert np.allclose(decoder(ids, weights, config), right, rtol=1e-11)
    ids = [2, 9]
    for _ in range(8):
        ids.append(int(np.argmax(decoder(np.array(ids), weights, config)[-1])))
    assert [int(one) for one in model.generate([2, 9], max_new_tokens=8).split()] == ids[2:]


@pytest.mark.parametrize(
    "changes",
    [
        lambda weights: weights.pop("model.norm.weight"),
        lambda weights: np.negative(*2 * [weights["model.norm.weight"]]),
    ],
)
def test_a_decoder_that_changes_the_weights_is_told_so(changes):
    def function(ids, weights, config):
        logits = decoder(ids, weights, config)
        changes(weights)
        return logits

    result = check(function, task="decoder")
    assert (result.mistakes, result.points < 9) == (("inputs-modified",), True), str(result)
    assert 'writes to its input weights["model.norm.weight"]' in result.message


def test_unknown_mistakes_on_the_untied_model_keep_points():
    layers = 'range(config["num_hidden_layers"])'
    result = marked(ARRAYS, f"{layers} => [[0, 1], [0, 0, 1, 2]][len({layers}) > 2]")
    assert (result.mistakes, result.points < 9) == (("unknown",), True)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ('config["rms_norm_eps"] => config["rms_norm_epsilon"]', "'rms_norm_epsilon', in line"),
        ("np.tri(T, dtype=bool) => np.tri(T, dtype=bool) & (np.arange(T) != 1)", "in attention"),
        ('weights.get("lm_head.weight", table) => table', "small_model(tied=False)"),
        ('config["num_hidden_layers"] => 6', "the model has 2 layers"),
    ],
)
def test_messages_locate_a_mistake(changes, words):
    assert words in " ".join(str(marked(ARRAYS, changes)).split())


def test_unknown_mistakes_of_one_word_do_not_point_to_attention():
    result = marked(ARRAYS, "table[ids] => table[ids] + 1")
    assert result.mistakes == ("unknown",)
    assert "in attention" not in " ".join(str(result).split())


def test_the_nearest_config_name_is_the_last_hint():
    result = marked(ARRAYS, 'config["rms_norm_eps"] => config["rms_norm_epsilon"]')
    assert result.hint[-1] == "rms_norm_eps"


def test_the_example_is_the_shortest_failing_text():
    changes = '    x = norm(x, weights["model.norm.weight"], eps)\\n =>'
    assert list(marked(ARRAYS, changes).example["ids"]) == [3]
    changes = "        q, k = rotate(q, theta), rotate(k, theta)\\n =>"
    assert list(marked(ARRAYS, changes).example["ids"]) == [3, 5]


def test_a_mistake_is_shown_as_replaced_lines():
    result = marked(ARRAYS, "* weight => * (1 + weight)")
    assert result.diffs["decoder-norm-weight"] == (
        ("out = out * weight", "out = out * (1 + weight)"),
    )
    assert "- out = out * (1 + weight)" in result.text(3)

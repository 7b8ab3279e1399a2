"""Tests of traces: their arrays under every name, and saved traces."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qkv
from qkv.trace import Recorder, Trace
from rows import failing

HEADS, SIZE = 2, 3


def model_trace(lengths: tuple[int, ...] = (3, 5), layers: int = 2, **options: Any) -> Trace:
    """Return a trace like a model's: all its numbers are distinct, and the padding is NaN."""
    longest, texts = max(lengths), len(lengths)
    rng = np.random.default_rng(0)
    record = Recorder()
    record("hook_embed", rng.standard_normal((texts, longest, HEADS * SIZE)))
    for layer in range(layers):
        block = record.under(f"blocks.{layer}.")
        block("hook_resid_pre", rng.standard_normal((texts, longest, HEADS * SIZE)))
        for name in ("q", "k", "v", "z"):
            block.under("attn.")(f"hook_{name}", rng.standard_normal((texts, longest, HEADS, SIZE)))
        for name in ("attn_scores", "pattern"):
            cells = rng.standard_normal((texts, HEADS, longest, longest))
            block.under("attn.")(f"hook_{name}", cells)
        block("hook_resid_post", rng.standard_normal((texts, longest, HEADS * SIZE)))
    for name, array in record.arrays.items():
        for text, length in enumerate(lengths):
            if name.endswith(("pattern", "attn_scores")):
                array[text, :, length:] = array[text, :, :, length:] = np.nan
            else:
                array[text, length:] = np.nan
    return Trace(
        record.arrays,
        tokens=[[f"{text}.{i}" for i in range(n)] for text, n in enumerate(lengths)],
        ids=[[100 * text + i for i in range(n)] for text, n in enumerate(lengths)],
        offsets=[[(i, i + 1) for i in range(n)] for n in lengths],
        special=[[i == 0 for i in range(n)] for n in lengths],
        **{"single": False, "model": "made"} | options,
    )


def test_an_array_goes_by_its_full_and_its_short_name() -> None:
    trace = model_trace()
    whole = trace["blocks.1.attn.hook_pattern"]
    assert trace["pattern", 1] is whole
    assert trace["pattern", -1] is whole
    assert trace["attn_scores", 0] is trace["blocks.0.attn.hook_attn_scores"]
    assert trace["resid_post", 1] is trace["blocks.1.hook_resid_post"]
    assert trace["embed"] is trace["hook_embed"]
    assert "hook_embed" in trace
    assert ("q", 1) in trace
    assert ("q", 2) not in trace


def test_the_tuples_of_transformerlens() -> None:
    names = ["hook_embed", "ln_final.hook_scale", "ln_final.hook_normalized"]
    names += [f"blocks.{n}.{at}" for n in (0, 1) for at in ("ln1.hook_scale", "mlp.hook_pre")]
    names += [f"blocks.1.attn.hook_{name}" for name in ("q", "k", "pattern", "attn_scores")]
    names += ["blocks.1.hook_resid_mid"]
    trace = Trace({name: np.full(1, place) for place, name in enumerate(names)}, tokens=[["a"]])
    for name, full in {
        ("pattern", 1, "attn"): "blocks.1.attn.hook_pattern",
        ("pattern", -1, "a"): "blocks.1.attn.hook_pattern",
        ("attn", 1): "blocks.1.attn.hook_pattern",
        ("attn_logits", 1): "blocks.1.attn.hook_attn_scores",
        ("query", 1): "blocks.1.attn.hook_q",
        ("key", 1, "attn"): "blocks.1.attn.hook_k",
        ("pre", 0, "m"): "blocks.0.mlp.hook_pre",
        ("mlp_pre", 0): "blocks.0.mlp.hook_pre",
        ("scale", 0, "ln1"): "blocks.0.ln1.hook_scale",
        ("resid_mid", 1, None): "blocks.1.hook_resid_mid",
        ("resid_mid", np.int64(-1), "block"): "blocks.1.hook_resid_mid",
        ("embed", None): "hook_embed",
        ("scale", None): "ln_final.hook_scale",
        ("normalized", None, "ln_final"): "ln_final.hook_normalized",
    }.items():
        assert trace[name] is trace[full], name
    for absent in (("pattern", True), ("pattern", 1.0), ("pattern", 1, 2), ("pattern",), (1, 2)):
        assert absent not in trace


def test_a_trace_can_be_read_like_a_dict() -> None:
    trace = model_trace()
    assert list(trace.keys()) == trace.names()
    assert dict(trace).keys() == trace.keys()
    for name, array in trace.items():
        assert array is trace[name]


def test_arrays_cannot_be_written_to() -> None:
    own = np.ones((1, 1, 2))
    trace = Trace({"hook_embed": own}, tokens=[["a"]])
    for one in (trace, trace[0]):
        with pytest.raises(ValueError, match="read-only"):
            one["embed"][0] = 2
        with pytest.raises(ValueError, match="read-only"):
            one["embed"].T[0] = 2
    own[0] = 3  # the caller's own array can still be written
    assert trace["embed"].max() == 3


def test_errors_distinguish_untraced_layers_from_missing_layers() -> None:
    arrays = {f"blocks.{n}.attn.hook_pattern": np.eye(2)[None, None] for n in (1, 2)}
    trace = Trace(arrays, tokens=[["a", "b"]], num_layers=5)
    assert (trace.num_layers, trace.layers) == (5, [1, 2])
    for name in (("pattern", -1), "blocks.4.attn.hook_pattern", ("attn", 4)):
        assert name not in trace
        with pytest.raises(KeyError, match="layer 4 was not traced; only layers 1, 2 were traced"):
            trace[name]
    for name in (("pattern", 5), ("pattern", -6), "blocks.7.attn.hook_pattern"):
        with pytest.raises(KeyError, match=r"there is no layer -?[567]: the model has 5 layers"):
            trace[name]
    assert trace["pattern", -3] is trace["pattern", 2]
    with pytest.raises(KeyError, match=r"attentions: .*pattern only for layers 1, 2 of 5 layers"):
        _ = trace.attentions


def test_the_number_of_layers_stays_in_a_file(tmp_path: Path) -> None:
    model_trace(num_layers=7).save(tmp_path / "trace")
    again = Trace.load(tmp_path / "trace")
    assert (again.num_layers, again[0].num_layers) == (7, 7)


def test_a_notebook_shows_tokens_and_arrays() -> None:
    words = ["<b>", "b"]
    arrays = {f"blocks.{n}.attn.hook_pattern": np.eye(2)[None, None] for n in (0, 1, 2, 5)}
    arrays["hook_embed"] = np.ones((1, 2, 3), np.float32)
    shown = Trace(arrays, tokens=[words], model="a&b")._repr_html_()
    assert "<td>blocks.{0,1,2,5}.attn.hook_pattern</td><td>(1, 1, 2, 2)</td>" in shown
    assert "<td>hook_embed</td><td>(1, 2, 3)</td><td>float32</td>" in shown
    assert "a&amp;b" in shown
    assert "&lt;b&gt; b" in shown
    del arrays["blocks.5.attn.hook_pattern"]
    assert "blocks.{0..2}.attn" in Trace(arrays, tokens=[words])._repr_html_()
    assert "and 6 more" in Trace({}, tokens=[["a"]] * 9, single=False)._repr_html_()


@pytest.mark.parametrize("name", [("result", 1), ("attn.result", 1), "blocks.1.attn.hook_result"])
def test_the_error_names_an_activation_recorded_only_on_request(name: Any) -> None:
    with pytest.raises(KeyError, match=r"nearest are .*names=\['blocks\.1\.attn\.hook_result'\]"):
        model_trace()[name]


def test_an_unknown_name_error_lists_the_nearest_names() -> None:
    for name, nearest in (
        ("blocks.1.attn.hook_patern", "blocks.1.attn.hook_pattern"),
        ("patern", "hook_pattern"),
        (("patern", 0), r"nearest are blocks\.0\.attn\.hook_pattern"),
        (("patern", -1), r"nearest are blocks\.1\.attn\.hook_pattern"),
        (("patern", -2, "attn"), r"nearest are blocks\.0\.attn\.hook_pattern"),
        ("embd", "hook_embed"),
    ):
        with failing(name, nearest), pytest.raises(KeyError, match=nearest):
            model_trace()[name]


def test_a_missing_layer_error_states_the_number_of_layers() -> None:
    with pytest.raises(KeyError, match=r"layer 7.*2 layers"):
        model_trace()["pattern", 7]


def test_one_text_comes_without_its_padding() -> None:
    trace = model_trace((3, 5))
    short, long = trace[0], trace[-1]
    assert len(trace) == 2
    assert short.tokens == ["0.0", "0.1", "0.2"]
    assert long.tokens[-1] == "1.4"
    assert short["q", 1].shape == (1, 3, HEADS, SIZE)
    assert short["pattern", 0].shape == (1, HEADS, 3, 3)
    for one in (short, long):
        assert all(np.isfinite(one[name]).all() for name in one.names())
    np.testing.assert_array_equal(long["pattern", 1][0], trace["pattern", 1][1])
    assert [text.tokens for text in trace] == trace.tokens
    with pytest.raises(IndexError, match=r"no text 2.*2 texts"):
        trace[2]
    several: Any = slice(0, 2)
    with pytest.raises(TypeError, match="selects several texts: select one text, for example"):
        trace[several]


def test_texts_of_equal_length_are_not_cut() -> None:
    assert model_trace((4, 4))[0]["pattern", 0].shape == (1, HEADS, 4, 4)


def test_summaries_are_cut_with_their_text() -> None:
    arrays = {
        "blocks.0.attn.top_indices": np.zeros((2, HEADS, 5, 8)),
        "blocks.0.attn.received": np.zeros((2, HEADS, 5)),
        "blocks.0.attn.lse": np.zeros((2, HEADS, 5)),
    }
    short = Trace(arrays, tokens=[["a"] * 3, ["b"] * 5], single=False)[0]
    assert short["top_indices", 0].shape == (1, HEADS, 3, 8)
    assert short["received", 0].shape == (1, HEADS, 3)
    assert short["lse", 0].shape == (1, HEADS, 3)
    assert short.num_heads == HEADS


def test_tokens_are_flat_for_one_string_and_nested_for_a_list() -> None:
    assert model_trace((3,), single=True).tokens == ["0.0", "0.1", "0.2"]
    assert model_trace((3,), single=False).tokens == [["0.0", "0.1", "0.2"]]
    assert model_trace((2,), single=True).offsets == [(0, 1), (1, 2)]
    assert model_trace((2,), single=True).special == [True, False]
    assert model_trace((3, 2), single=False)[1].ids == [100, 101]
    np.testing.assert_array_equal(model_trace((3, 5)).lengths, [3, 5])


def test_missing_ids_offsets_and_special_flags_have_defaults() -> None:
    trace = Trace({}, tokens=[["a", "b"]])
    assert trace.ids == []
    assert trace.special == [False, False]
    assert trace.offsets == [(0, 0), (0, 0)]


def test_one_head_of_one_text() -> None:
    trace = model_trace((4,))
    np.testing.assert_array_equal(trace.pattern(1, 0), trace["blocks.1.attn.hook_pattern"][0, 0])
    with pytest.raises(IndexError, match="no head 2: layer 1 has 2 heads"):
        trace.pattern(layer=1, head=2)
    with pytest.raises(ValueError, match="2 texts"):
        model_trace((3, 5)).pattern(0, 0)


def test_attentions_and_hidden_states_follow_transformers() -> None:
    trace = model_trace()
    assert trace.num_layers == 2
    assert trace.num_heads == HEADS
    assert trace.attentions[1] is trace["pattern", 1]
    states = trace.hidden_states
    assert len(states) == 3
    assert states[0] is trace["resid_pre", 0]
    assert states[2] is trace["resid_post", 1]


def test_an_activation_of_all_layers_at_once():
    rng = np.random.default_rng(0)
    each = rng.normal(size=(3, 2, 5, 4, 6))
    names = [f"blocks.{n}.attn.hook_z" for n in range(3)]
    trace = Trace(dict(zip(names, each, strict=True)), tokens=[["a"] * 5] * 2, num_layers=3)
    found = trace.stack("z")
    np.testing.assert_array_equal(found, each)
    found[0] = 0  # it is a copy
    np.testing.assert_array_equal(trace["z", 0], each[0])
    with pytest.raises(KeyError, match="there is no"):
        trace.stack("zz")
    some = Trace({names[1]: each[1]}, num_layers=3)
    with pytest.raises(KeyError, match=r"stack: this trace holds z only for layer 1 of 3 layers"):
        some.stack("z")
    odd = Trace({names[0]: each[0], names[1]: each[1][..., :2]})
    with pytest.raises(ValueError, match=r"z has shape \(2, 5, 4, 6\) in layer 0 and \(2, 5, 4, 2"):
        odd.stack("z")


def test_post_norm_blocks_end_after_their_last_norm() -> None:
    trace = model_trace()
    arrays = {name: trace[name] for name in trace.names()}
    arrays["blocks.1.hook_normalized_resid_post"] = normalized = np.ones((2, 5, HEADS * SIZE))
    found = Trace(arrays, tokens=trace.tokens).hidden_states[2]
    np.testing.assert_array_equal(found, normalized)


def test_attention_inputs_put_heads_first_and_include_the_lengths() -> None:
    trace = model_trace((3, 5), settings={0: {"scale": 0.5}, 1: {"scale": 2.0}})
    inputs = trace.attention_inputs(1)
    np.testing.assert_array_equal(inputs["query"], trace["q", 1].transpose(0, 2, 1, 3))
    assert inputs["scale"] == 2.0
    np.testing.assert_array_equal(inputs["key_lengths"], [3, 5])
    out = qkv.attention(**inputs)
    assert np.isfinite(out).all()  # the padding is NaN and is not read
    alone = qkv.attention(**trace[0].attention_inputs(1))
    np.testing.assert_allclose(out[:1, :, :3], alone, rtol=1e-12)


def test_attention_inputs_of_cross_attention_keep_all_keys() -> None:
    query, keys = np.ones((1, 2, HEADS, SIZE)), np.ones((1, 4, HEADS, SIZE))
    arrays = {f"blocks.0.attn.hook_{name}": keys for name in "kv"}
    trace = Trace(arrays | {"blocks.0.attn.hook_q": query}, tokens=[["a", "b"]])
    inputs = trace.attention_inputs(0)
    assert sorted(inputs) == ["key", "query", "value"]
    assert inputs["key"].shape == (1, HEADS, 4, SIZE)


def test_attention_inputs_take_the_rotated_queries_and_keys() -> None:
    trace = model_trace((4,))
    arrays = {name: trace[name] for name in trace.names()}
    for name in ("rot_q", "rot_k"):
        arrays[f"blocks.0.attn.hook_{name}"] = np.full((1, 4, HEADS, SIZE), len(name) * 1.0)
    inputs = Trace(arrays, tokens=trace.tokens).attention_inputs(0)
    assert (inputs["query"] == 5).all()
    assert (inputs["key"] == 5).all()


def test_a_trace_comes_back_from_its_file(tmp_path: Path) -> None:
    slopes = np.array([0.5, 0.25], np.float32)
    settings = {0: {"scale": 0.5, "window": [3, None]}, 1: {"alibi_slopes": slopes}}
    trace = model_trace(settings=settings)
    trace.save(tmp_path / "it.safetensors")
    again = Trace.load(tmp_path / "it.safetensors")
    assert again.names() == trace.names()
    for name in trace.names():
        np.testing.assert_array_equal(again[name], trace[name])
    assert again.tokens == trace.tokens
    assert again.ids == trace.ids
    assert again.offsets == trace.offsets
    assert again.special == trace.special
    assert again.model == "made"
    assert again.attention_inputs(0)["scale"] == 0.5
    np.testing.assert_array_equal(again.attention_inputs(1)["alibi_slopes"], slopes)
    assert [file.name for file in tmp_path.iterdir()] == ["it.safetensors"]


def test_a_file_that_is_not_a_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"gone\.safetensors"):
        Trace.load(tmp_path / "gone.safetensors")
    (tmp_path / "text").write_text("not safetensors")
    with pytest.raises(ValueError, match="text is not a trace"):
        Trace.load(tmp_path / "text")
    from safetensors.numpy import save_file

    for metadata in (None, {"qkv.trace": "{}"}, {"qkv.trace": "[1]"}):
        save_file({"x": np.zeros(3)}, tmp_path / "other", metadata)
        with pytest.raises(ValueError, match="other is not a trace"):
            Trace.load(tmp_path / "other")
    arrays, about = model_trace().packed()
    changes: list[tuple[str, Any]] = [
        *(("num_layers", odd) for odd in ("x", [], {"a": 1}, 1.5, True, -1)),
        *(("settings", odd) for odd in ([], {"x": {}}, 3)),
    ]
    damaged = ["[" * 100_000, '{"names":' * 100_000]
    for one in [*damaged, *(json.dumps({**about, name: odd}) for name, odd in changes)]:
        save_file(dict(arrays), tmp_path / "other", {"qkv.trace": one})
        with pytest.raises(ValueError, match="other is not a trace"):
            Trace.load(tmp_path / "other")
    point = {**arrays, next(iter(arrays)): np.zeros(())}
    save_file(point, tmp_path / "other", {"qkv.trace": json.dumps(about)})
    with pytest.raises(ValueError, match="other is not a trace"):
        Trace.load(tmp_path / "other")
    model_trace().save(tmp_path / "whole")
    (tmp_path / "cut").write_bytes((tmp_path / "whole").read_bytes()[:-100])
    with pytest.raises(ValueError, match="cut is not a trace"):
        Trace.load(tmp_path / "cut")


def test_a_recorder_keeps_head_results_only_on_request() -> None:
    record = Recorder()
    block = record.under("blocks.0.")
    for name in ("mlp.hook_post", "attn.hook_result", "hook_mlp_out"):
        block(name, np.zeros(1))
    assert list(record.arrays) == ["blocks.0.mlp.hook_post", "blocks.0.hook_mlp_out"]
    record = Recorder(lambda name: True)
    record.under("blocks.0.", np.negative).under("mlp.")("hook_post", np.ones(1))
    assert record.arrays["blocks.0.mlp.hook_post"] == -1
    assert not record.again("other", "blocks.0.mlp.hook_pre")
    assert record.again("other", "blocks.0.mlp.hook_post")
    assert record.arrays["other"] is record.arrays["blocks.0.mlp.hook_post"]


def test_a_recorder_keeps_only_wanted_names_and_reports_them_in_advance() -> None:
    record = Recorder(lambda name: name.startswith("blocks.1."))
    inner = record.under("blocks.1.").under("attn.")
    assert inner.wants("hook_q")
    assert not record.under("blocks.0.").wants("hook_q", "hook_k")
    inner("hook_q", np.zeros(1))
    record("hook_embed", np.zeros(1))
    assert list(record.arrays) == ["blocks.1.attn.hook_q"]


def test_arrays_with_the_wrong_axes_are_refused(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    trace = qkv.load("random").trace(["I love you", "I"])  # (2, 3, ...), with 2 heads
    arrays, about = trace.packed()
    pattern, z = (f"blocks.0.attn.hook_{name}" for name in ("pattern", "z"))
    wrong = {
        "five axes": (pattern, (2, 1, 2, 3, 3), "it must have shape \\(2, 2, 3, 3\\)"),
        "three axes": (pattern, (2, 3, 3), "it must have shape \\(2, 2, 3, 3\\)"),
        "another number of keys": (pattern, (2, 2, 3, 4), "it must have"),
        "another number of texts": (z, (1, 3, 2, 4), "it must have shape \\(2, 3, 2, 4\\)"),
        "another number of tokens": ("hook_embed", (2, 4, 8), "it must have shape \\(2, 3, D\\)"),
        "another number of heads": (z, (2, 3, 4, 4), "it must have shape \\(2, 3, 2, 4\\)"),
    }
    for name, shape, says in wrong.values():
        damaged = {**arrays, name: np.zeros(shape, np.float32)}
        save_file(damaged, tmp_path / "wrong", {"qkv.trace": json.dumps(about)})
        with pytest.raises(ValueError, match=f"wrong is not a trace .*{name} has .*{says}"):
            Trace.load(tmp_path / "wrong")

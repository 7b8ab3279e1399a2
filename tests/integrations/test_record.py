"""Tests of `qkv.record` with layers that call qkv as the models of other libraries do.

tests/parity/test_integration.py tests recordings of models of transformers.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import qkv
from qkv.attend.arguments import check_call
from qkv.integrations import _record as module
from qkv.integrations._record import CURRENT, Ran


@dataclass(eq=False)
class Layer:
    """A layer of a model of another library."""

    layer_idx: int | None = None


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module, "REGISTERED", {"a library"})
    yield
    assert CURRENT.get() is None


def inputs(texts: int = 2, heads: int = 3, length: int = 7, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((texts, heads, length, 4)) for _ in range(3)]


def run(layer: Layer, query: Any, key: Any, value: Any, *, rules: Any = None, **about: Any) -> Any:
    """Record one call of a layer, as under `attn_implementation="qkv"`, and return its output."""
    recording = CURRENT.get()
    assert recording is not None
    rules = rules or {}
    out, lse = recording.add(Ran(layer, **about), check_call(query, key, value, **rules))
    _, expected = qkv.attention(query, key, value, **rules, return_lse=True)
    np.testing.assert_allclose(lse, expected, atol=1e-12)
    return out


def run_from(start: int, layer: Layer, query: Any, key: Any, value: Any) -> None:
    """Record a causal pass whose queries begin at position `start`."""
    rules = {"is_causal": True, "q_offset": start}
    run(layer, query, key, value, rules=rules, mask=object(), start=start, is_causal=True)


def weights_of(query: Any, key: Any, visible: Any) -> tuple[Any, Any]:
    """Compute weights and log-sum-exp directly; one key head may serve all query heads."""
    scores = query @ np.swapaxes(key, -1, -2) / 2
    scores = np.where(visible, scores, -np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        sums = np.exp(scores).sum(-1)
        return np.where(visible, np.exp(scores) / sums[..., None], 0), np.log(sums)


def check(trace: Any, layer: int, weights: Any, lse: Any) -> None:
    """Check the summaries of a layer against its weights `(B, H, L, S)`."""
    top_k = trace["top_weights", layer].shape[-1]
    order = np.argsort(-weights, axis=-1, kind="stable")[..., :top_k]
    largest = np.take_along_axis(weights, order, -1)
    shown = trace["top_weights", layer][..., : order.shape[-1]]
    positions = trace["top_indices", layer][..., : order.shape[-1]]
    np.testing.assert_allclose(shown, largest, atol=1e-12)
    np.testing.assert_array_equal(positions, np.where(largest > 0, order, -1))
    np.testing.assert_allclose(trace["received", layer], weights.sum(-2), atol=1e-12)
    np.testing.assert_allclose(trace["lse", layer], lse, atol=1e-12)


CAUSAL = np.tri(7, dtype=bool)


def test_each_layer_records_its_summaries_and_returns_its_result() -> None:
    layers = [Layer(0), Layer(1)]
    given = [inputs(seed=0), inputs(seed=1)]
    with qkv.record(top_k=3) as trace:
        for layer, arrays in zip(layers, given, strict=True):
            out = run(layer, *arrays, rules={"is_causal": True}, mask=CAUSAL, is_causal=True)
            np.testing.assert_allclose(out, qkv.attention(*arrays, is_causal=True), atol=1e-12)
    assert trace.num_layers == 2
    assert trace.num_heads == 3
    assert trace.tokens == [[str(i) for i in range(7)]] * 2
    for number, (query, key, _) in enumerate(given):
        check(trace, number, *weights_of(query, key, CAUSAL))


def test_top_k_above_the_number_of_keys_is_padded() -> None:
    with qkv.record(top_k=9) as trace:
        run(Layer(0), *inputs(length=2))
    assert trace["top_indices", 0].shape == (2, 3, 2, 9)
    assert (trace["top_indices", 0][..., 2:] == -1).all()
    assert (trace["top_weights", 0][..., 2:] == 0).all()


def test_steps_with_a_cache_are_one_pass() -> None:
    layer, (query, key, value) = Layer(0), inputs()
    with qkv.record(top_k=3) as trace:
        for start, stop in ((0, 4), (4, 5), (5, 7)):
            run_from(start, layer, query[:, :, start:stop], key[:, :, :stop], value[:, :, :stop])
    check(trace, 0, *weights_of(query, key, CAUSAL))


def test_a_cache_that_drops_keys_outside_the_window_keeps_positions() -> None:
    layer, (query, key, value) = Layer(0), inputs()
    with qkv.record(top_k=3) as trace:
        for position in range(7):
            first = max(0, position - 2)
            run(
                layer,
                query[:, :, position : position + 1],
                key[:, :, first : position + 1],
                value[:, :, first : position + 1],
                mask=object(),
                start=position,
                first_key=first,
                is_causal=True,
            )
    check(trace, 0, *weights_of(query, key, CAUSAL & ~np.tri(7, k=-3, dtype=bool)))


def test_a_cache_with_spare_capacity_records_only_the_tokens() -> None:
    query, key, value = inputs()
    with qkv.record(top_k=3) as trace:
        run_from(0, Layer(0), query[:, :, :5], key, value)
    assert trace["received", 0].shape == (2, 3, 5)
    check(trace, 0, *weights_of(query[:, :, :5], key[:, :, :5], CAUSAL[:5, :5]))


def test_queries_before_the_recording_have_no_weights() -> None:
    query, key, value = inputs()
    with qkv.record(top_k=3) as trace:
        run_from(4, Layer(0), query[:, :, 4:], key, value)
    check(trace, 0, *weights_of(query, key, CAUSAL & (np.arange(7) >= 4)[:, None]))


def test_a_second_pass_starts_the_trace_anew() -> None:
    layers = [Layer(0), Layer(1)]
    with qkv.record(top_k=3) as trace:
        for seed in (0, 1):
            mask = object()
            for layer in layers:
                run(layer, *inputs(length=5 + 2 * seed, seed=seed), mask=mask, start=0)
    assert trace.num_layers == 2
    assert len(trace[0].tokens) == 7
    query, key, _ = inputs(seed=1)
    check(trace, 1, *weights_of(query, key, np.ones((7, 7), bool)))


def test_a_call_with_another_number_of_texts_starts_a_new_pass() -> None:
    layer = Layer(0)
    with qkv.record(top_k=3) as trace:
        run(layer, *inputs(length=3), mask=object(), start=0, is_causal=True)
        query, key, value = inputs(texts=1)
        run_from(3, layer, query[:, :, 3:], key, value)
    check(trace, 0, *weights_of(query, key, CAUSAL & (np.arange(7) >= 3)[:, None]))


def test_repeated_calls_of_a_layer_count_as_separate_layers() -> None:
    layer, mask = Layer(None), object()
    with qkv.record(top_k=3) as trace:
        for seed in range(3):
            run(layer, *inputs(seed=seed), mask=mask, start=0)
    assert trace.num_layers == 3
    query, key, _ = inputs(seed=2)
    check(trace, 2, *weights_of(query, key, np.ones((7, 7), bool)))


def test_attention_run_twice_in_one_layer_call_is_one_layer() -> None:
    layer, one, other = Layer(0), inputs(), inputs(seed=1)
    with qkv.record(top_k=3) as trace:
        for values in (one[2], other[2]):
            call, mask = object(), object()
            for value in (values, values * 2):
                out = run(layer, *one[:2], value, call=call, mask=mask, start=0)
                np.testing.assert_allclose(out, qkv.attention(*one[:2], value), atol=1e-12)
    assert trace.num_layers == 1
    check(trace, 0, *weights_of(*one[:2], np.ones((7, 7), bool)))
    with qkv.record():
        run(layer, *one, call=call)
        error = "Layer computes attention several times in one call"
        with pytest.raises(NotImplementedError, match=error):
            run(layer, *other, call=call)


@dataclass(eq=False)
class Model:
    """A model of another library with parts that are models."""

    parts: dict[str, Any]

    def named_modules(self) -> Iterator[tuple[str, Any]]:
        yield "", self
        for name, part in self.parts.items():
            inner = part.named_modules() if isinstance(part, Model) else [("", part)]
            yield from ((f"{name}.{path}".strip("."), module) for path, module in inner)

    def modules(self) -> Iterator[Any]:
        return (module for _, module in self.named_modules())


def tower(layers: int = 2) -> Model:
    return Model({f"layers.{number}.attention": Layer(number) for number in range(layers)})


def test_one_of_several_parts_must_be_named() -> None:
    whole = Model({"vision": tower(), "text": tower()})

    def both(**options: Any) -> Any:
        with qkv.record(**options) as trace:
            for seed, part in enumerate(whole.parts.values()):
                for layer in part.parts.values():
                    if trace.wants(layer):
                        run(layer, *inputs(seed=seed), part=part, whole=whole)
        return trace

    message = (
        r"2 parts of Model, model\.vision \(Layer\), model\.text \(Layer\); pass the "
        r"part to record, for example record\(module=model\.text\)"
    )
    with pytest.raises(ValueError, match=message):
        both()
    for seed, part in enumerate(whole.parts.values()):
        trace = both(module=part)
        assert trace.num_layers == 2
        check(trace, 1, *weights_of(*inputs(seed=seed)[:2], np.ones((7, 7), bool)))
    with pytest.raises(RuntimeError, match="no attention of Model ran through qkv"):
        both(module=tower())


def test_two_lists_of_layers_in_one_part_are_two_parts() -> None:
    part = Model({"early.0": Layer(0), "late.0": Layer(0)})
    with pytest.raises(ValueError, match=r"model\.early \(Layer\), model\.late \(Layer\)"):
        with_layers(part)


def with_layers(part: Model) -> Any:
    with qkv.record() as trace:
        for layer in part.parts.values():
            run(layer, *inputs(), part=part, whole=part)
    return trace


def test_a_second_attention_in_a_layer_is_named() -> None:
    names = ["layers.0.own", "layers.0.cross", "layers.1.own", "layers.1.cross"]
    trace = with_layers(Model({name: Layer() for name in names}))
    assert trace.other_layers == dict.fromkeys(
        (1, 3), "a second attention module in the same layer"
    )


@pytest.mark.parametrize("module", ["text", 3])
def test_the_module_argument_must_be_part_of_a_model(module: Any) -> None:
    with pytest.raises(
        TypeError, match=f"record: `module` has type {type(module).__name__}; pass a part"
    ):
        qkv.record(module=module).__enter__()


@pytest.mark.parametrize("length", [5, 7])
def test_cross_attention_is_recorded_step_by_step(length: int) -> None:
    encoder, decoder, cross = Layer(), Layer(0), Layer(0)
    words, (query, key, value) = inputs(length=length, seed=1), inputs()
    real = np.arange(length) >= np.array([[0], [2]])
    rules = {"attn_mask": real[:, None, None, :]}
    about = {"start": 0, "padding": real}
    with qkv.record(top_k=3) as trace:
        for _ in range(2):  # a second forward pass of the same size replaces the first
            run(encoder, *words, rules=rules, mask=object(), **about)
            for position in range(7):
                one = query[:, :, position : position + 1]
                seen = [x[:, :, : position + 1] for x in (key, value)]
                run(decoder, one, *seen, mask=object(), start=position, is_causal=True)
                run(cross, one, *words[1:], rules=rules, mask=object(), **about)
    assert trace.num_layers == 3
    assert [len(text) for text in trace.tokens] == [length, length - 2]
    check(trace, 1, *weights_of(query, key, CAUSAL))
    check(trace, 2, *weights_of(query, words[1], real[:, None, None, :]))


@pytest.mark.parametrize("length", [5, 7, 9])
def test_an_encoder_decoder_view_shows_only_the_encoder_layers(length: int, tmp_path: Any) -> None:
    encoder, decoder, cross = Layer(), Layer(0), Layer(0)
    words, (query, key, value) = inputs(length=length, seed=1), inputs()
    real = np.arange(length) < np.array([[length], [3]])
    rules, about = {"attn_mask": real[:, None, None, :]}, {"start": 0, "padding": real}
    names = [f"w{i}" for i in range(length)]
    with qkv.record(top_k=3, tokens=[names, names[:3]]) as trace:
        run(encoder, *words, rules=rules, mask=object(), **about)
        rule = {"is_causal": True}
        run(decoder, query, key, value, rules=rule, mask=object(), start=0, is_causal=True)
        run(cross, query, *words[1:], rules=rules, mask=object(), **about)
    assert trace.other_layers == {1: "the decoder's", 2: "cross-attention"}
    trace.save(tmp_path / "trace.safetensors")
    weights, _ = weights_of(*words[:2], real[:, None, None, :])
    for made in (trace, qkv.Trace.load(tmp_path / "trace.safetensors")):
        for number, size in enumerate((length, 3)):
            view = qkv.show(made[number])
            assert (view.tokens, view.head.layer) == (names[:size], 0)
            for link in view.links:
                expected = weights[number, link.head, link.query, link.key]
                assert link.weight == pytest.approx(expected)
            for layer, what in ((1, "the decoder's"), (2, "cross-attention")):
                with pytest.raises(ValueError, match=rf"layer {layer} is {what}, .*: 0 only\)"):
                    qkv.show(made[number], layer=layer)
                assert made[number]["lse", layer].shape == (1, 3, 7)
        assert made[1]["received", 2].shape == (1, 3, length)


def test_a_layer_of_another_number_of_tokens_is_not_shown() -> None:
    with qkv.record() as trace:
        run(Layer(0), *inputs(texts=1, length=4))
        run(Layer(1), *inputs(texts=1, length=6))
    assert qkv.show(trace).head.layer == 0
    with pytest.raises(ValueError, match="layer 1 is attention of other tokens"):
        qkv.show(trace, layer=1)


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [([4, 7], [4, 7]), ([0, 0], [0, 1]), ([None, 1], [0, 1]), ([1, 0], [1, 0])],
)
def test_layers_are_numbered_by_their_index_or_by_call_order(
    numbers: list[Any], expected: list[int]
) -> None:
    with qkv.record(top_k=1) as trace:
        for number in numbers:
            run(Layer(number), *inputs())
    found = [int(name.split(".")[1]) for name in trace.names() if name.endswith("lse")]
    assert found == expected


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_cut_off_on_either_side(side: str, is_causal: bool, biased: bool) -> None:
    query, key, value = inputs()
    sizes = [7, 4]
    real = np.arange(7) < np.array(sizes)[:, None]
    real = real[:, ::-1] if side == "left" else real
    visible = real[:, None, None, :] & (CAUSAL if is_causal else True)
    rules = {"attn_mask": visible} | ({"bias": np.zeros((2, 1, 7, 7))} if biased else {})
    with qkv.record(top_k=3, tokens=[list("abcdefg"), list("ABCDEFG")]) as trace:
        out = run(
            Layer(0),
            query,
            key,
            value,
            rules=rules,
            mask=object(),
            start=0,
            is_causal=is_causal,
            padding=real,
        )
    np.testing.assert_allclose(out, qkv.attention(query, key, value, **rules), atol=1e-12)
    assert ["".join(text) for text in trace.tokens] == [
        "abcdefg",
        "DEFG" if side == "left" else "ABCD",
    ]
    weights, lse = weights_of(query, key, visible)
    for number, size in enumerate(sizes):
        position = slice(7 - size, 7) if side == "left" else slice(0, size)
        kept = weights[number : number + 1, :, position, position]
        check(trace[number], 0, kept, lse[number : number + 1, :, position])


def test_tokens_can_be_passed_or_set_later() -> None:
    with qkv.record(tokens=["[CLS]", "so", "it", "is"]) as trace:
        run(Layer(0), *inputs(texts=1, length=4))
    assert trace.tokens == ["[CLS]", "so", "it", "is"]
    assert trace.special == [True, False, False, False]
    with qkv.record() as trace:
        trace.tokens = ["a", "b"]
        run(Layer(0), *inputs(texts=1, length=2))
    assert trace.tokens == ["a", "b"]
    trace.tokens = ["c", "d"]
    assert trace.tokens == ["c", "d"]
    assert trace[0].tokens == ["c", "d"]


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (["a", "b", "c"], "`tokens` holds 1 texts, but the run has 2"),
        ([["a", "b"], ["c"]], "1 tokens for text 1, which has 2"),
    ],
)
def test_tokens_that_do_not_fit_are_an_error(tokens: list[Any], message: str) -> None:
    with qkv.record() as trace:
        run(Layer(0), *inputs(length=2))
    with pytest.raises(ValueError, match=message):
        trace.tokens = tokens
    assert trace.tokens == [["0", "1"]] * 2


def test_tokens_that_are_one_string_are_an_error() -> None:
    with pytest.raises(TypeError, match="`tokens` is a string"):
        qkv.record(tokens="I love you").__enter__()


def test_a_recording_is_shown_saved_and_loaded(tmp_path: Any) -> None:
    with qkv.record(top_k=3, tokens=[f"w{i}" for i in range(7)]) as trace:
        run(Layer(0), *inputs(texts=1))
    qkv.show(trace).to_html(tmp_path / "page.html")
    assert "w6" in (tmp_path / "page.html").read_text(encoding="utf-8")
    trace.save(tmp_path / "trace.safetensors")
    again = qkv.Trace.load(tmp_path / "trace.safetensors")
    assert again.tokens == trace.tokens
    for name in trace.names():
        np.testing.assert_array_equal(again[name], trace[name])


def test_a_batch_is_shown_text_by_text(tmp_path: Any) -> None:
    with qkv.record(top_k=3) as trace:
        run(Layer(0), *inputs())
    with pytest.raises(
        ValueError, match=r"holds 2 texts; pass one of them, for example trace\[0\]"
    ):
        qkv.show(trace)
    qkv.show(trace[1]).to_html(tmp_path / "page.html")


def test_nothing_registered_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REGISTERED", set())
    with pytest.raises(RuntimeError, match=r"call qkv\.integrations\.transformers\.register"):
        qkv.record().__enter__()


def test_a_nested_recording_is_an_error() -> None:
    with qkv.record():
        run(Layer(0), *inputs())
        with pytest.raises(RuntimeError, match="another recording is active"):
            qkv.record().__enter__()


def test_a_recording_without_attention_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="no attention ran through qkv"), qkv.record():
        pass


def test_an_error_in_the_block_is_raised_unchanged() -> None:
    with pytest.raises(KeyError, match="mine"), qkv.record():
        raise KeyError("mine")


@pytest.mark.parametrize("top_k", [0, -1, 2.0, True, "8"])
def test_top_k_must_be_a_positive_integer(top_k: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="record: top_k is"):
        qkv.record(top_k=top_k).__enter__()


def test_other_threads_are_not_recorded() -> None:
    seen: list[Any] = []
    with qkv.record() as trace:
        run(Layer(0), *inputs())
        thread = threading.Thread(target=lambda: seen.append(CURRENT.get()))
        thread.start()
        thread.join()
        assert CURRENT.get() is trace
    assert seen == [None]


def test_without_torch_the_error_says_what_to_install() -> None:
    program = """if True:
        import sys
        sys.modules["torch"] = None
        import qkv
        try:
            qkv.integrations.transformers.register()
        except ImportError as error:
            print(error)
    """
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert answer.stdout.startswith(
        "this needs torch, which is not installed: pip install '.[torch]'"
    )

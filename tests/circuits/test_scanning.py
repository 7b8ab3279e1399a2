"""Tests of scans of heads: means and examples against plain loops over a BERT in float64."""

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qkv
from circuits.test_means import GPT2, KINDS, uniform
from models.small_models import CONFIGS, write_small
from models.support import CONFIG, Folder, bert_tensors, plain_bert
from qkv.circuits import head_scores, scan_heads
from qkv.models.untrained import fresh_model

NAMES = ("previous", "next", "same", "first", "last", "induction", "entropy", "strongest")
TENSORS = bert_tensors(CONFIG, seed=3)
CLS, SEP = 2, 3  # ids
TEXTS = [
    *("the cat sat on the mat", "a dog ran", "the bank, the river bank.", "run run run"),
    *("on a mat a cat ran", "the", "river", "the dog sat, the dog ran, the dog", "bank bank."),
]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> qkv.Model:
    """A BERT of two layers with three heads; its tokenizer adds [CLS] and [SEP]."""
    folder = Folder(tmp_path_factory.mktemp("bert"))
    folder.config, folder.tensors = CONFIG, TENSORS
    return qkv.load(str(folder.write()))


def keys_of(name: str, ids: list[int], query: int, special: tuple[int, ...]) -> list[int]:
    """Return the keys whose weights a measure uses for one query."""
    earlier = [position for position in range(query) if ids[position] == ids[query]]
    last = len(ids) - 1
    return {
        "previous": [query - 1] if query else [],
        "next": [query + 1] if query < last else [],
        "same": earlier,
        "first": [0],
        "last": [last],
        "induction": [position + 1 for position in earlier],
        "strongest": [j for j in range(1, last + 1) if ids[j] not in special],
    }[name]


def plain(
    all_ids: list[list[int]], all_weights: list[Any], special: tuple[int, ...] = (CLS, SEP)
) -> tuple[dict[str, Any], dict[tuple[str, int, int], list[tuple[float, int, int, int | None]]]]:
    """Return the means, and each text's best query for each measure, layer and head, in order."""
    layers, heads = len(all_weights[0]), len(all_weights[0][0])
    means: dict[str, Any] = {name: np.full((layers, heads), np.nan) for name in NAMES}
    best: dict[tuple[str, int, int], list[tuple[float, int, int, int | None]]] = {}
    for name in NAMES:
        for layer in range(layers):
            for head in range(heads):
                every, found = [], []
                for number, (ids, weights) in enumerate(zip(all_ids, all_weights, strict=True)):
                    own: list[tuple[float, int, int, int | None]] = []
                    for query, row in enumerate(weights[layer][head]):
                        if name == "entropy":
                            value = -sum(w * np.log(w) for w in row if w > 0)
                            own.append((-value, number, query, None))
                            continue
                        keys = keys_of(name, ids, query, special)
                        if name == "induction" and not keys:
                            continue
                        joined = max if name == "strongest" else sum
                        value = joined(
                            [row[key] for key in keys], **{"default": 0.0} if joined is max else {}
                        )
                        key = max(keys, key=lambda j: row[j], default=None)
                        own.append((-value, number, query, key))
                    every += [-entry[0] for entry in own]
                    own = [entry for entry in own if entry[0] < 0]
                    found += [min(own, key=lambda entry: entry[:3])] if own else []
                means[name][layer, head] = np.mean(every) if every else np.nan
                best[name, layer, head] = sorted(found, key=lambda entry: entry[:2])
    return means, best


def of_bert(model: qkv.Model, texts: list[str]) -> Any:
    ids = [model.tokenize(text).ids.tolist() for text in texts]
    return plain(ids, [plain_bert(TENSORS, CONFIG, np.array(row))[1] for row in ids])


def agree(found: Any, wanted: Any, top_k: int, texts: list[Any]) -> None:
    means, best = wanted
    assert list(found.scores) == list(NAMES)
    for name in NAMES:
        assert found.scores[name].dtype == np.float64
        np.testing.assert_allclose(found.scores[name], means[name], rtol=0, atol=1e-6)
    for (name, layer, head), entries in best.items():
        got = found.examples(name, layer, head)
        about = f"{name}, {layer}, {head}"
        assert len(got) == min(top_k, len(entries)), about
        assert len({one.number for one in got}) == len(got), about
        for one, (below, *_) in zip(got, entries, strict=False):
            assert abs(one.value + below) < 1e-5, about
            # equal values are ordered by their last bits, which differ from BLAS to BLAS
            equal = [cell for value, *cell in entries if abs(value - below) < 1e-9]
            assert [one.number, one.query, one.key] in equal, about
            assert one.text is texts[one.number], about


@pytest.mark.parametrize("top_k", [1, 3, 100])
def test_means_and_examples_equal_plain_loops(bert: qkv.Model, top_k: int) -> None:
    wanted = of_bert(bert, TEXTS)
    assert all(len(entries) > 3 for (name, *_), entries in wanted[1].items() if name != "same")
    agree(scan_heads(bert, iter(TEXTS), top_k=top_k), wanted, top_k, TEXTS)


@pytest.mark.parametrize("kind", KINDS)
def test_scans_of_other_families_equal_plain_loops(kind: str, tmp_path: Path) -> None:
    """Cover causal masks, RoPE, fewer key heads, soft caps, windows, ALiBi, sinks and a bias."""
    model = qkv.load(str(write_small(tmp_path / "model", KINDS[kind], seed=2)), dtype="float64")
    texts = TEXTS[:6]
    traces = [model.trace(text) for text in texts]
    tokenizer = model.tokenizer
    special = tuple(one for one in range(30) if tokenizer.is_special(one))
    weights = [[layer[0] for layer in trace.attentions] for trace in traces]
    agree(
        scan_heads(model, texts),
        plain([trace.ids for trace in traces], weights, special),
        10,
        texts,
    )


def test_the_scores_are_those_of_head_scores(bert: qkv.Model) -> None:
    found = scan_heads(bert, TEXTS).scores
    for name, array in head_scores(bert, TEXTS).items():
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize(
    ("cells", "positions", "texts"), [(1, 10**6, 2), (100, 20, 3), (10**6, 1, 1)]
)
def test_how_texts_are_batched_and_cut_into_parts_changes_nothing(
    bert: qkv.Model, monkeypatch: pytest.MonkeyPatch, cells: int, positions: int, texts: int
) -> None:
    monkeypatch.setattr("qkv.circuits._reader.CELLS", cells)
    monkeypatch.setattr("qkv.circuits._reader.MOST_POSITIONS", positions)
    monkeypatch.setattr("qkv.circuits._reader.TEXTS", texts)
    agree(scan_heads(bert, TEXTS, top_k=3), of_bert(bert, TEXTS), 3, TEXTS)


@pytest.mark.parametrize("texts", [1, 2, 100])
def test_earlier_texts_are_the_examples_among_equal_values(
    monkeypatch: pytest.MonkeyPatch, texts: int
) -> None:
    monkeypatch.setattr("qkv.circuits._reader.TEXTS", texts)
    ids = [[5], [5, 6], [7, 8, 9], [6, 7], [8, 9], [5, 5]]
    found = scan_heads(uniform(), ids, ["previous", "same", "strongest"], top_k=2)
    # query 1 of any text puts 1/2 each on keys 0 and 1; query 2 of the longer text puts 1/3 on each
    got = found.examples("previous", -1, -2)
    assert [(one.value, one.number, one.query, one.key) for one in got] == [
        (0.5, 1, 1, 0),
        (0.5, 2, 1, 0),
    ]
    [one] = found.examples("same", 0, 0)  # the other texts have no equal earlier token
    assert (one.value, one.number, one.query, one.key) == (0.5, 5, 1, 0)
    assert np.array_equal(one.text, [5, 5])
    assert one.tokens == ["5", "5"]
    got = found.examples("strongest", 1, 1)
    assert [(one.value, one.number, one.query, one.key) for one in got] == [
        (0.5, 1, 1, 1),
        (0.5, 2, 1, 1),
    ]


def test_an_example_has_the_text_and_its_tokens(bert: qkv.Model) -> None:
    found = scan_heads(bert, TEXTS[:1], "first")
    [one] = found.examples("first", 1, 2)
    assert one.text == TEXTS[0]
    assert one.tokens == ["[CLS]", "the", "cat", "sat", "on", "the", "mat", "[SEP]"]
    assert one.key == 0
    assert list(found.scores) == ["first"]


def test_no_texts_have_no_examples(bert: qkv.Model) -> None:
    found = scan_heads(bert, iter(()))
    assert all(np.isnan(array).all() for array in found.scores.values())
    assert found.examples("first", 0, 0) == []


def test_nan_in_the_weights_affects_only_the_means() -> None:
    model = fresh_model(GPT2, seed=0)
    parameters = {name: array.copy() for name, array in model.parameters.items()}
    parameters["embed.weight"][7] = np.nan
    found = scan_heads(model.with_parameters(parameters), [[5, 6], [5, 7]], "previous")
    assert np.isnan(found.scores["previous"]).all()
    assert [one.number for one in found.examples("previous", 0, 0)] == [0]


@pytest.mark.alone
@pytest.mark.attack
def test_memory_does_not_grow_with_the_number_of_texts(
    bert: qkv.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qkv.circuits._reader.TEXTS", 32)
    monkeypatch.setattr("qkv.circuits._reader.MOST_POSITIONS", 256)
    words = ["the", "cat", "sat", "on", "mat", "a", "dog", "ran", "bank", "river", "run"]

    def texts(count: int) -> Iterator[str]:
        for number in range(count):
            yield " ".join(words[number * position % 11] for position in range(2, 6 + number % 9))

    def peak(count: int) -> int:
        tracemalloc.start()
        scan_heads(bert, texts(count), "strongest", top_k=2)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(100)  # memory that is allocated only once does not count
    assert peak(2000) < 6e5  # 32 texts with their tokens, and the weights of 256 positions


@pytest.mark.attack
def test_an_interrupt_ends_the_scan_and_leaves_the_model_unchanged(bert: qkv.Model) -> None:
    read = []

    def texts() -> Iterator[str]:
        for text in TEXTS:
            read.append(text)
            if len(read) == 4:
                raise KeyboardInterrupt
            yield text

    with pytest.raises(KeyboardInterrupt):
        scan_heads(bert, texts())
    assert len(read) == 4
    agree(scan_heads(bert, TEXTS), of_bert(bert, TEXTS), 10, TEXTS)


def test_an_error_while_reading_the_texts_is_raised(bert: qkv.Model) -> None:
    def texts() -> Iterator[str]:
        yield "the cat"
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        scan_heads(bert, texts())


def test_invalid_arguments_are_refused_before_a_text_is_read(bert: qkv.Model) -> None:
    def texts() -> Iterator[str]:
        raise AssertionError("a text was read")
        yield ""

    with pytest.raises(
        ValueError, match=f"scan_heads: `of` has 'x': choose among {', '.join(NAMES)}"
    ):
        scan_heads(bert, texts(), ["first", "x"])
    with pytest.raises(ValueError, match="scan_heads: top_k is 0"):
        scan_heads(bert, texts(), top_k=0)
    with pytest.raises(TypeError, match=r"scan_heads: top_k is 1\.5"):
        scan_heads(bert, texts(), top_k=1.5)  # type: ignore[arg-type]  # what is tested
    with pytest.raises(TypeError, match=r"scan_heads: `model` is str; pass a model"):
        scan_heads("minilm", texts())  # type: ignore[arg-type]  # what is tested


@pytest.mark.parametrize(("kind", "does"), [("t5", "reads one text"), ("vit", "reads images")])
def test_encoder_decoders_and_image_models_are_refused(
    kind: str, does: str, tmp_path: Path
) -> None:
    model = qkv.load(str(write_small(tmp_path / kind, CONFIGS[kind])))
    with pytest.raises(
        ValueError, match=f"scan_heads: .* {does}.*: load a text encoder or decoder"
    ):
        scan_heads(model, TEXTS)


def test_invalid_texts_are_refused(bert: qkv.Model) -> None:
    with pytest.raises(TypeError, match="scan_heads: text 2 is int, not a string"):
        scan_heads(bert, ["the", "cat", 3])
    with pytest.raises(ValueError, match=r"scan_heads: text 1 has 17 ids; pass 1 to 16"):
        scan_heads(bert, ["the", [1] * 17])
    with pytest.raises(TypeError, match="scan_heads: `texts` is int"):
        scan_heads(bert, 3)  # type: ignore[arg-type]  # what is tested


def test_unknown_scores_layers_and_heads_are_refused(bert: qkv.Model) -> None:
    found = scan_heads(bert, TEXTS, ["first", "same"])
    with pytest.raises(KeyError, match="examples: 'next' was not measured: choose among first"):
        found.examples("next", 0, 0)
    with pytest.raises(IndexError, match="examples: there is no layer 2; pass 0 to 1"):
        found.examples("first", 2, 0)
    with pytest.raises(IndexError, match="examples: there is no head -4; pass 0 to 2"):
        found.examples("first", 0, -4)
    with pytest.raises(TypeError, match="examples: head is 'a'; pass a whole number"):
        found.examples("first", 0, "a")  # type: ignore[arg-type]  # what is tested

"""Tests of scans of neurons and features against plain loops over a trace of each text."""

import tracemalloc

import numpy as np
import pytest

from qkv.circuits import SAE, scan
from qkv.circuits._scanning import Best

rng = np.random.default_rng(0)
# The first tokens differ: after equal tokens, activations of decoders differ only by rounding.
SIZES = (5, 1, 8, 3, 8, 2, 6, 4, 7, 5, 9)
TEXTS = [[4 + n, *rng.integers(4, 30, size - 1).tolist()] for n, size in enumerate(SIZES)]


def plain(arrays):
    """Return each unit's best positions, one per text, and its means over all tokens.

    `arrays` holds the activations (T, n) of each text.
    """
    every = np.concatenate(arrays)
    best = []
    for unit in range(every.shape[1]):
        each = [(-max(x[:, unit]), n, int(np.argmax(x[:, unit]))) for n, x in enumerate(arrays)]
        best.append(sorted(one for one in each if one[0] < 0))
    return best, (every > 0).mean(0), every.mean(0)


def agree(found, arrays, top):
    best, density, mean = plain(arrays)
    assert len(found) == len(best)
    assert found.tokens == sum(map(len, arrays))
    np.testing.assert_allclose(found.density, density, rtol=0, atol=1e-15)
    np.testing.assert_allclose(found.mean, mean, rtol=0, atol=1e-12)
    for unit, entries in enumerate(best):
        got = found.examples(unit)
        cells = [(one.number, one.position) for one in got]
        assert cells == [(number, position) for _, number, position in entries[:top]]
        for one, (below, number, _) in zip(got, entries, strict=False):
            np.testing.assert_allclose(one.value, -below, rtol=0, atol=1e-12)
            expected = arrays[number][:, unit]
            np.testing.assert_allclose(one.activations, expected, rtol=0, atol=1e-12)
            assert one.tokens == list(map(str, one.text)) or len(one.tokens) == len(one.text)
        np.testing.assert_allclose(found.largest[unit], -entries[0][0] if entries else 0)


@pytest.mark.parametrize(
    ("positions", "texts", "top", "kind", "of"),
    [
        pytest.param(*sizes, *where, marks=[] if 0 in (this, that) else pytest.mark.attack)
        for this, sizes in enumerate([(9, 2, 3), (2048, 4096, 20), (30, 100, 1)])
        for that, where in enumerate(
            [
                ("gpt2", ("post", 1)),
                ("llama", ("post", 0)),
                ("bert", ("resid_post", 1)),
                ("gpt2", ("z", 0)),
            ]
        )
    ],
)
def test_scanned_neurons_equal_plain_loops(small, monkeypatch, kind, of, positions, texts, top):
    monkeypatch.setattr("qkv.circuits._reader.MOST_POSITIONS", positions)
    monkeypatch.setattr("qkv.circuits._reader.TEXTS", texts)
    model = small(kind)
    arrays = [model.trace(text)[of][0].reshape(len(text), -1) for text in TEXTS]
    found = scan(model, iter(TEXTS), of=of, top=top)
    agree(found, arrays, top)
    assert found.unit == "neuron"
    assert found.at in model.trace(TEXTS[0]).names()


def test_scanned_features_equal_plain_loops(small):
    model = small("gpt2")
    sae = SAE(rng.standard_normal((12, 25)), rng.standard_normal((25, 12)), at=("mlp_out", 1), k=3)
    arrays = [sae.encode(model.trace(text)["mlp_out", 1][0]) for text in TEXTS]
    found = scan(model, TEXTS, of=sae, top=4)
    agree(found, arrays, 4)
    assert repr(found) == "<Scan of 25 features of blocks.1.hook_mlp_out, 58 tokens>"
    assert 0 < found.density.mean() <= 3 / 25


@pytest.mark.parametrize("windows", [[[0, 1, 2, 3, 4, 5]], [[3], [1], [5], [0], [4], [2]]])
def test_earlier_texts_are_kept_among_equal_values(windows):
    """The test sets the values itself.

    In a model, equal texts of a batch can get values that differ in the last bit.
    """
    best = Best(2, 3)
    for numbers in windows:
        values = np.array([[1.0 if number == 0 else 2.0, 0.0] for number in numbers])
        rows, units = best.among(values, np.array(numbers), slice(0, 2))
        if len(rows):
            texts, positions = np.array(numbers)[rows], np.zeros(len(rows), int)
            best.add(units, values[rows, units], texts, positions, [None] * len(rows))
    assert best.numbers.tolist() == [[1, 2, 3], [-1, -1, -1]]
    assert best.values.tolist() == [[2.0, 2.0, 2.0], [0.0, 0.0, 0.0]]


def test_texts_keep_their_words(small):
    model = small("bert")
    text = "the cat sat"
    found = scan(model, text, of=("post", 0))
    [one] = next(found.examples(unit) for unit in range(len(found)) if found.largest[unit])
    assert one.text == text
    assert one.tokens == model.tokenize(text).tokens


@pytest.mark.alone
@pytest.mark.attack
def test_memory_does_not_grow_with_the_number_of_texts(small, monkeypatch):
    monkeypatch.setattr("qkv.circuits._reader.TEXTS", 32)
    model = small("gpt2")

    def peak(count):
        tracemalloc.start()
        scan(model, (TEXTS[n % 11] for n in range(count)), of=("post", 0), top=2)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(100)
    assert peak(2000) < 8e5  # 32 texts, and the two best of each neuron


def test_invalid_arguments_are_refused(small):
    model = small("gpt2")

    def texts():
        raise AssertionError("a text was read")
        yield ""

    for of, error, words in (
        (
            "post",
            ValueError,
            "`of` is 'post', which names 2 activations; pass one of them, such as",
        ),
        (
            ("pattern", 0),
            ValueError,
            "`of` has blocks.0.attn.hook_pattern, which does not have one row per",
        ),
        (("past", 0), KeyError, r"there is no \('past', 0\); the nearest are"),
        (("post", 2), KeyError, "there is no layer 2"),
        (
            SAE(np.eye(12), np.eye(12)),
            ValueError,
            "`of` is <SAE.* has no activation name: set its attribute `at`, for example sae.at",
        ),
    ):
        with pytest.raises(error, match=words):
            scan(model, texts(), of=of)
    with pytest.raises(ValueError, match="scan: top is 0"):
        scan(model, texts(), of=("post", 0), top=0)
    with pytest.raises(TypeError, match="scan: `model` is str"):
        scan("gpt2", texts(), of=("post", 0))
    with pytest.raises(ValueError, match="scan: the texts contain no tokens; pass a text"):
        scan(model, [], of=("post", 0))
    with pytest.raises(ValueError, match=r"scan: .* reads images"):
        scan(small("vit"), texts(), of=("post", 0))
    found = scan(model, TEXTS, of=("post", 0))
    with pytest.raises(IndexError, match=f"there is no neuron {len(found)}; pass 0 to"):
        found.examples(len(found))
    with pytest.raises(TypeError, match=r"examples: .* is 0\.5; pass a whole number"):
        found.examples(0.5)


def test_a_negative_scan_finds_the_most_negative_activations(small):
    model = small("llama")
    arrays = [model.trace(ids, names="post")["post", 1][0].astype(np.float64) for ids in TEXTS]
    found = scan(model, TEXTS, of=("post", 1), top=4, negative=True)
    best, _, mean = plain([-array for array in arrays])
    np.testing.assert_allclose(found.mean, -mean, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.density, (np.concatenate(arrays) < 0).mean(0), atol=1e-15)
    for unit, entries in enumerate(best):
        examples = found.examples(unit)
        assert [(x.number, x.position) for x in examples] == [entry[1:] for entry in entries[:4]]
        for example, (value, number, position) in zip(examples, entries, strict=False):
            assert value < 0
            np.testing.assert_allclose(example.value, value, rtol=0, atol=1e-12)
            np.testing.assert_allclose(example.activations, arrays[number][:, unit], atol=1e-12)
            assert example.activations[position] == example.value
        assert found.largest[unit] == (examples[0].value if examples else 0)
    card = str(found.cards(top=1))
    assert "below 0 at" in card
    assert "above 0" not in card

"""Tests of traces of many texts: in parts, in batches and in bounded memory."""

import subprocess
import sys
import warnings

import numpy as np
import pytest

import qkv
from qkv.models import load
from qkv.models.run import batches
from qkv.models.tasks.tracing import names_to_keep
from rows import failing

TEXTS = ["the cat sat on the mat.", "running", "a dog ran, the cat ran", "xyzzy", "the bank"]


def same(found, expected):
    """Assert that two traces are equal up to rounding, including the padding."""
    assert found.names() == expected.names()
    for name, array in expected.items():
        assert found[name].shape == array.shape, name
        assert found[name].dtype == array.dtype, name
        np.testing.assert_allclose(found[name], array, atol=1e-12, err_msg=name)
    assert found.tokens == expected.tokens
    assert found.text == expected.text


EDITED = {
    "all": {},
    "top_k": {"top_k": 3},
    "without": {"hide": ["cat", (2, 1)], "ablate": [(0, 1)]},
    "mean": {"ablate": {(0, 1): "mean", (1, None): "zero"}},
    "edited": {
        "edit": {
            ("resid_post", 0): lambda x: 2 * x,
            ("pattern", 1): lambda weights: weights**2,
            "embed": np.random.default_rng(0).standard_normal((5, 9, 12)),
        }
    },
}


@pytest.mark.parametrize("options", EDITED.values(), ids=EDITED)
@pytest.mark.parametrize("which", ["double", "llama"])
def test_a_trace_in_batches_equals_the_whole_trace(request, which, options):
    model = request.getfixturevalue(which)
    options = {"logits": which == "llama", **options}
    whole = model.trace(TEXTS, batch_size=5, **options)
    for size in (1, 2, 3):
        found = model.trace(TEXTS, batch_size=size, **options)
        same(found, whole)
        for layer in () if {"top_k", "edit"} & options.keys() else (0, 1):
            inputs, expected = (one.attention_inputs(layer) for one in (found, whole))
            assert inputs.keys() == expected.keys()
            np.testing.assert_allclose(
                qkv.attention(**inputs), qkv.attention(**expected), atol=1e-12
            )


def test_batches_are_joined_for_every_activation(double, llama):
    """Batches are joined for every activation, even if a trace keeps it only on request."""
    for model in (double, llama):
        names = [name for name in model.network.hook_names if "hook_" in name.rpartition(".")[2]]
        names = [name for name in names if names_to_keep([name], names=name)(name)]
        same(model.trace(TEXTS, names=names, batch_size=2), model.trace(TEXTS, names=names))


def test_a_large_trace_is_split_into_batches_by_default(double, monkeypatch):
    whole = double.trace(TEXTS)
    runs = []
    network, run = double.network, double.network.run
    monkeypatch.setattr(
        network, "run", lambda batch, *a, **more: runs.append(len(batch)) or run(batch, *a, **more)
    )
    monkeypatch.setattr(batches, "POSITIONS", 20)
    same(double.trace(TEXTS), whole)
    assert len(runs) > 1
    assert sum(runs) == len(TEXTS)


def test_one_array_of_two_names_stays_one(double):
    for trace in (double.trace(TEXTS), double.trace(TEXTS, batch_size=2)):
        both = trace["normalized_resid_post", 0], trace["ln2.normalized", 0]
        assert np.shares_memory(*both)


@pytest.mark.parametrize("size", [1, 2, 5, 64])
def test_a_stream_gives_the_texts_in_order(double, size):
    read = []

    def texts():
        for text in TEXTS:
            read.append(text)
            yield text

    stream = double.trace_stream(texts(), batch_size=size, names=["pattern", "resid_post"])
    assert not read
    for place, trace in zip(range(0, len(TEXTS), size), stream, strict=True):
        assert read == TEXTS[: place + size]  # no further texts were read
        same(trace, double.trace(TEXTS[place : place + size], names=["pattern", "resid_post"]))
    assert read == TEXTS


def test_a_stream_of_ids(double):
    ids = np.array([[2, 4, 3], [2, 5, 3], [2, 6, 3]])
    for given in (ids, ids.tolist(), iter(ids)):
        found = [trace for trace in double.trace_stream(given, batch_size=2)]
        assert [len(trace) for trace in found] == [2, 1]
        assert [text for trace in found for text in trace.ids] == ids.tolist()
    assert list(double.trace_stream([])) == []


def test_a_stream_warns_once_of_all_that_was_cut(small):
    model = load(small)
    model.max_seq_length = 5
    texts = ["the cat sat on the mat", "the cat", "a dog ran a b c"]
    with pytest.warns(UserWarning, match="2 of 3 texts were cut to 5 tokens") as said:
        list(model.trace_stream(texts, batch_size=1))
    assert len(said) == 1
    assert said[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(model.trace_stream(["the cat"], batch_size=1))


def test_invalid_arguments_are_refused_before_texts_are_read(double):
    for texts, options, error, words in (
        ("the cat", {}, TypeError, "`texts` is one text; pass a list of texts, or call trace"),
        (np.array([2, 4]), {}, TypeError, "`texts` is one text"),
        ({"a": "b"}, {}, TypeError, "`texts` is dict"),
        (TEXTS, {"batch_size": 0}, ValueError, "batch_size is 0: it must be 1 or more"),
        (TEXTS, {"batch_size": 2.0}, TypeError, r"batch_size is 2\.0"),
        (TEXTS, {"names": "patern"}, KeyError, "trace_stream: there is no 'patern'; the nearest"),
        (TEXTS, {"layers": 9}, ValueError, "trace_stream: there is no layer 9"),
        (TEXTS, {"top_k": 0}, ValueError, "trace_stream: top_k is 0"),
        (TEXTS, {"logits": True}, ValueError, "trace_stream: .* has no head"),
        (TEXTS, {"edit": {("z", 0): ["a"]}}, TypeError, "trace_stream: `edit` has <U1 for"),
        (TEXTS, {"ablate": [(9, 0)]}, ValueError, "trace_stream: `ablate` names layer 9"),
        (TEXTS, {"hide": [(0, 1, 9)]}, ValueError, "trace_stream: `hide` names layer 9"),
        (TEXTS, {"ablate": {(0, 1): "mean"}}, ValueError, r"\"mean\" for \(0, 1\), but the mean"),
    ):
        with failing(texts, options, error, words), pytest.raises(error, match=words):
            double.trace_stream(texts, **options)


@pytest.mark.parametrize(("wrong", "error"), [("", ValueError), (3.5, TypeError)])
def test_stream_errors_number_texts_across_batches(double, wrong, error):
    stream = double.trace_stream(["the cat", "the dog", "a mat", wrong], batch_size=2)
    assert len(next(stream)) == 2
    with pytest.raises(error, match="trace_stream: text 3 is"):
        next(stream)


@pytest.mark.parametrize(
    ("texts", "options", "error", "words"),
    [
        (["the cat", 3], {}, TypeError, "text 1 is int"),
        ([[2, 4], [99]], {}, ValueError, "there is no token 99"),
        ([[2, 4], []], {}, ValueError, "text 1 has 0 ids"),
        (["a cat", "the dog"], {"hide": "mat"}, ValueError, "`hide` has 'mat', which is in none"),
        (["a cat", "a"], {"hide": [9, 3]}, ValueError, "`hide` has 9, which is in none of the"),
        (["a", "the cat"], {"hide": ["cat", "the"]}, ValueError, "hide masks every word of text 1"),
        (["a cat"], {"edit": {("z", 0): np.ones((1, 9, 3, 4))}}, ValueError, "`edit` has shape"),
        (["a cat"], {"edit": {("pattern", 0): abs}, "top_k": 2}, ValueError, "top_k is 2, but an"),
    ],
)
def test_an_error_of_a_batch_names_the_call_that_was_made(double, texts, options, error, words):
    stream = double.trace_stream(texts, batch_size=1, **options)
    with pytest.raises(error, match=f"trace_stream: {words}"):
        list(stream)


PROGRAM = """
import random
import sys

import qkv


def megabytes(name):
    with open("/proc/self/status") as status:
        (line,) = (line for line in status if line.startswith(name + ":"))
    return int(line.split()[1]) / 1024


model = qkv.load()
rng = random.Random(0)
words = "the cat sat on a mat while one dog ran over every old hill and two birds sang".split()
texts = [" ".join(rng.choices(words, k=rng.randint(6, 14))) for _ in range(2000)]
names = ["pattern", "resid_post", "z"]
model.trace(texts[:50], names=names)  # lays weights out
before = megabytes("VmRSS")
{call}
print(kept / 2**20, megabytes("VmHWM") - before)
"""


def measured(call):
    """Return the megabytes that a call keeps, and the megabytes that it needs at most."""
    program = PROGRAM.replace("{call}", call)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return map(float, done.stdout.split())


@pytest.mark.alone
@pytest.mark.attack
def test_tracing_2000_texts_needs_little_more_memory_than_the_trace():
    kept, peak = measured(
        "trace = model.trace(texts, names=names)\n"
        "assert len(trace) == 2000\n"
        "kept = sum(array.nbytes for _, array in trace.items())"
    )
    assert kept > 100
    assert kept < peak < 1.3 * kept


@pytest.mark.alone
@pytest.mark.attack
def test_a_stream_needs_far_less_memory_than_all_its_traces():
    kept, peak = measured(
        "kept = sum(a.nbytes for t in model.trace_stream(texts, names=names) for _, a in t.items())"
    )
    assert kept > 100
    assert peak < 0.25 * kept

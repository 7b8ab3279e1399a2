"""Tests of cached activations: they equal those of a trace, and a stopped call can continue."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

import qkv
from qkv.circuits import Cache, _caching, _reader, cache
from qkv.models.files.read import ModelError

rng = np.random.default_rng(0)
TEXTS = [rng.integers(4, 30, size).tolist() for size in (5, 1, 8, 3, 8, 2, 6)]
NAMES = [("resid_post", 1), "z", "mlp.post"]


@pytest.fixture
def small_files(monkeypatch):
    monkeypatch.setattr(_caching, "BYTES", 4000)
    monkeypatch.setattr(_reader, "MOST_POSITIONS", 9)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_cached_activations_equal_those_of_a_trace(small, tmp_path, small_files, kind):
    model = small(kind)
    found = cache(model, iter(TEXTS), tmp_path / "cache", names=NAMES, dtype="float64")
    files = sorted(path.name for path in (tmp_path / "cache").iterdir())
    assert len(files) > 2
    assert files[-1] == "cache.json"
    again = Cache(tmp_path / "cache")
    for one in (found, again):
        assert len(one) == 7
        assert one.tokens == sum(map(len, TEXTS))
        traces = [model.trace(ids) for ids in TEXTS]
        for number, (ids, expected) in enumerate(zip(TEXTS, traces, strict=True)):
            trace = one[number - 7 * (number > 4)]
            assert trace.ids == ids == one.ids(number).tolist()
            for name in ("resid_post", 1), ("z", 0), ("z", 1), ("post", 1):
                assert trace[name].dtype == np.float64
                np.testing.assert_allclose(trace[name], expected[name], rtol=0, atol=1e-12)
        rows = one.arrays(("z", 1))
        assert len(rows) == len(files) - 1
        assert not any(array.flags.writeable for array in rows)
        whole = np.concatenate([trace["z", 1][0] for trace in traces])
        np.testing.assert_allclose(np.concatenate(rows), whole, rtol=0, atol=1e-12)
        assert one.names == [
            *(f"blocks.{n}.{x}" for n in (0, 1) for x in ("attn.hook_z", "mlp.hook_post")),
            "blocks.1.hook_resid_post",
        ]
    assert [trace.ids for trace in again] == TEXTS
    assert repr(again).endswith(f"7 texts, 33 tokens of {model.name}>")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_types(small, tmp_path, dtype):
    model = small("gpt2")
    found = cache(model, TEXTS, tmp_path, names=("resid_post", 0), dtype=dtype)
    rows = np.concatenate(found.arrays("blocks.0.hook_resid_post"))
    assert rows.dtype.name == dtype
    expected = np.concatenate([model.trace(ids)["resid_post", 0][0] for ids in TEXTS])
    np.testing.assert_array_equal(rows, expected.astype(rows.dtype))


def test_a_stopped_call_continues_where_it_stopped(small, tmp_path, small_files, monkeypatch):
    model, run = small("gpt2"), []
    options = {"names": NAMES, "dtype": "float64"}
    expected = cache(model, TEXTS, tmp_path / "whole", **options)

    def stopped():
        yield from TEXTS[:5]
        raise KeyboardInterrupt

    monkeypatch.setattr(_reader, "TEXTS", 2)
    with pytest.raises(KeyboardInterrupt):
        cache(model, stopped(), tmp_path / "part", **options)
    known = len(Cache(tmp_path / "part"))
    assert 0 < known < 5
    recorded = _reader.record_rows

    def counted(model, ids, names):
        run.extend(ids)
        return recorded(model, ids, names)

    monkeypatch.setattr(_reader, "record_rows", counted)
    found = cache(model, TEXTS, tmp_path / "part", **options)
    # the first text runs again, to compare it with the folder
    assert [ids.tolist() for ids in run] == [TEXTS[0], *TEXTS[known:]]
    for one, other in zip(found, expected, strict=True):
        assert one.ids == other.ids
        for name in found.names:
            np.testing.assert_array_equal(one[name], other[name])
    more = cache(model, [*TEXTS, [9, 9]], tmp_path / "part", **options)
    assert len(more) == 8
    assert more.ids(7).tolist() == [9, 9]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"texts": [[4, 4], *TEXTS[1:]]}, "text 0 has different tokens in .*; pass the same texts"),
        ({"texts": TEXTS[:3]}, r"3 texts are given, but .* has 7 texts; pass all 7 texts, or"),
        ({"names": ("z", 0)}, r"has names \['blocks.1.hook_resid_post'\] but the call has"),
        ({"dtype": "float16"}, "has dtype 'float32' but the call has 'float16'; pass another"),
        ({"names": "pattern"}, "`names` has blocks.0.attn.hook_pattern, which does not have one"),
        ({"names": []}, "`names` is empty; pass activations"),
        ({"texts": [*TEXTS, []]}, "text 7 has 0 ids"),
        ({"dtype": "int8"}, "dtype is int8: choose"),
        ({"folder": ""}, "the name of the folder is empty"),
    ],
)
def test_invalid_or_mismatched_arguments_are_refused(small, tmp_path, change, words):
    about = {"texts": TEXTS, "folder": tmp_path, "names": ("resid_post", 1)}
    cache(small("gpt2"), **about)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises((TypeError, ValueError), match=f"cache: .*{words}") as caught:
        cache(small("gpt2"), **{**about, **change})
    assert "\n" not in str(caught.value)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_another_model_of_the_same_name_is_found_out(small, tmp_path):
    model = small("gpt2")
    cache(model, TEXTS, tmp_path, names=("resid_post", 1))
    other = model.with_parameters({n: a * 1.3 for n, a in model.parameters.items()})
    with pytest.raises(ValueError, match=r"hook_resid_post of text 0 differs from .*; pass the"):
        cache(other, TEXTS, tmp_path, names=("resid_post", 1))
    with pytest.raises(ValueError, match=r"cache: .* has model '.*' but the call has '.*'; pass"):
        cache(small("parallel"), TEXTS, tmp_path, names=("resid_post", 1))


def test_numbers_too_large_for_the_dtype_are_refused(small, tmp_path):
    model = small("gpt2")
    large = model.with_parameters({n: a * 1e4 for n, a in model.parameters.items()})
    with pytest.raises(ValueError, match=r"contains \S+, which is too large for float16; pass"):
        cache(large, TEXTS, tmp_path / "x", names=("post", 1), dtype="float16")


def test_texts_are_tokenized_as_in_a_trace(small, tmp_path):
    model = small("bert")
    texts = ["the cat sat", "a dog"]
    found = cache(model, texts, tmp_path, names="embed")
    assert [trace.ids for trace in found] == [model.trace(text).ids for text in texts]
    with pytest.raises(ValueError, match="cache: text 1 has no tokens: omit it"):
        cache(qkv.load("books-decoder"), ["the", ""], tmp_path / "other", names="embed")


def test_folders_that_hold_no_cache(small, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"Cache: .* has no cache.json; pass a folder from"):
        Cache(tmp_path)
    (tmp_path / "cache.json").write_text('{"qkv_cache": 1, "names": "z"}')
    with pytest.raises(ModelError, match=r"cache.json is not the manifest of a cache"):
        Cache(tmp_path)
    found = cache(small("gpt2"), TEXTS, tmp_path / "x", names="embed")
    with pytest.raises(KeyError, match=r"arrays: \('z', 0\) is not cached: choose among"):
        found.arrays(("z", 0))
    with pytest.raises(IndexError, match="cache: there is no text 7; pass 0 to 6"):
        found[7]
    with pytest.raises(TypeError, match="cache: text is 'a'; pass a whole number"):
        found["a"]
    manifest = json.loads((tmp_path / "x" / "cache.json").read_text())
    assert manifest["shards"] == [{"file": "00000.safetensors", "texts": 7, "tokens": 33}]
    assert set(load_file(tmp_path / "x" / "00000.safetensors")) == {"hook_embed", "ids", "starts"}
    manifest["shards"][0]["tokens"] = 32
    (tmp_path / "x" / "cache.json").write_text(json.dumps(manifest))
    with pytest.raises(ModelError, match=r"hook_embed has shape \(33, 12\), but cache.json lists"):
        Cache(tmp_path / "x")
    (tmp_path / "x" / "00000.safetensors").unlink()
    with pytest.raises(ModelError, match=r"00000.safetensors"):
        Cache(tmp_path / "x")

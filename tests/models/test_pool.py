"""Tests of encoding in several processes: vectors, their order, and errors."""

import json
import os
import signal
import sys

import numpy as np
import pytest

from processes import ends_with_its_parent
from qkv.models import Pool, load

from .support import Folder, tokenizer_json

WORDS = ["the", "cat", "sat", "on", "a", "mat", "dog", "ran"]


def texts_of(count):
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(WORDS, rng.integers(1, 12))) for _ in range(count)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = Folder(tmp_path_factory.mktemp("pool") / "model")
    folder.write()
    prompts = {"prompts": {"query": "a cat "}}
    folder.json("config_sentence_transformers.json", prompts)
    rules = json.loads(tokenizer_json())  # no special tokens: an empty text has no token
    folder.text("tokenizer.json", json.dumps(rules | {"post_processor": None}))
    found = load(folder.path)
    found.max_seq_length = 8
    return found


@pytest.fixture(scope="module")
def pool(model):
    with Pool(model, 2) as found:
        yield found


@pytest.mark.filterwarnings("ignore:.*cut to 8 tokens:UserWarning")
@pytest.mark.parametrize("chunk_size", [None, 1, 7, 1000])
def test_vectors_are_those_of_one_process(model, pool, chunk_size):
    texts = texts_of(30)
    expected = model.encode(texts)
    found = model.encode(iter(texts), pool=pool, chunk_size=chunk_size)
    # float32: without the kernel, the size of a batch changes the rounding
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    assert found.dtype == expected.dtype


@pytest.mark.filterwarnings("ignore:.*cut to 8 tokens:UserWarning")
@pytest.mark.parametrize(
    "options",
    [
        {"prompt_name": "query", "normalize_embeddings": True},
        {"prompt": "the dog ", "truncate_dim": 5},
        {"precision": "ubinary"},
    ],
)
def test_options_reach_the_processes_of_a_pool(model, pool, options):
    texts = texts_of(12)
    found, expected = model.encode(texts, pool=pool, **options), model.encode(texts, **options)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6)
    by_query = model.encode_query(texts, pool=pool)
    np.testing.assert_allclose(by_query, model.encode_query(texts), rtol=0, atol=2e-6)
    rows = model.encode(texts, pool=pool, output_value="token_embeddings", chunk_size=5)
    plain = model.encode(texts, output_value="token_embeddings")
    assert [len(one) for one in rows] == [len(one) for one in plain]


def test_quantization_in_a_pool_uses_the_range_of_all_texts(model, pool):
    """Quantization uses the range of all texts, not of a chunk."""
    texts = [" ".join(WORDS[: 1 + n % 8]) for n in range(120)]
    found = model.encode(texts, pool=pool, precision="uint8", chunk_size=30)
    expected = model.encode(texts, precision="uint8")
    assert np.abs(found.astype(int) - expected).max() <= 1


def test_one_text_and_none(model, pool):
    np.testing.assert_allclose(
        model.encode("the cat", pool=pool), model.encode("the cat"), rtol=0, atol=2e-6
    )
    assert model.encode([], pool=pool).shape == (0, 12)
    assert model.encode([], pool=pool, output_value="token_embeddings") == []


def test_truncated_texts_are_counted_in_one_warning(model, pool):
    texts = ["the cat sat on a mat the dog ran", "a", "the cat sat on a mat the dog ran on"]
    with pytest.warns(UserWarning, match=r"2 of 3 texts were cut to 8 tokens \(.* 10\)") as said:
        model.encode(texts, pool=pool, chunk_size=1)
    assert len(said) == 1


def test_an_error_names_the_text_by_its_place(model, pool):
    with pytest.raises(ValueError, match="encode: text 3 is empty: there is no token in it"):
        model.encode(["a", "a", "a", "", "a"], pool=pool, chunk_size=2)
    with pytest.raises(TypeError, match="encode: text 4 is int"):
        model.encode(["a", "a", "a", "a", 3], pool=pool, chunk_size=2)


def test_what_does_not_go_together(model, pool, small):
    with pytest.raises(ValueError, match="encode: pool cannot be combined with ablate, hide or"):
        model.encode(["a"], pool=pool, ablate=[(0, 0)])
    with pytest.raises(ValueError, match="encode: the pool is for a different model, model"):
        load(small).encode(["a"], pool=pool)
    with pytest.raises(ValueError, match="encode: chunk_size is 0"):
        model.encode(["a"], pool=pool, chunk_size=0)
    with pytest.raises(TypeError, match=r"Pool: processes is 2.5"):
        Pool(model, 2.5)


@pytest.mark.attack
def test_a_pool_that_is_gone(model):
    pool = Pool(model, 1)
    folder = pool._folder.name
    assert os.path.isdir(folder)
    model.encode(["a"], pool=pool)
    [worker] = pool._executor._processes
    os.kill(worker, signal.SIGKILL)
    for _ in range(2):  # the second time, no text can be sent to a process
        with pytest.raises(RuntimeError, match="encode: a process of the pool ended"):
            model.encode(["a"] * 3, pool=pool)
    pool.close()
    assert not os.path.exists(folder)
    with pytest.raises(RuntimeError, match="encode: the pool was closed"):
        model.encode(["a"], pool=pool)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps the number of a dead parent")
@pytest.mark.parametrize("busy", ["while True: pass", ""], ids=["a loop", "waiting for texts"])
def test_the_processes_of_a_pool_end_when_its_process_is_killed(busy, tmp_path):
    note = tmp_path / "child"
    work = f"import os\nopen({str(note)!r}, 'w').write(str(os.getpid()))\n{busy}"
    program = (
        "import time, qkv\n"
        "from qkv.models import Pool\n"
        "pool = Pool(qkv.load('random'), 1)\n"
        f"pool._executor.submit(exec, {work!r})\n"
        "time.sleep(600)"
    )
    assert ends_with_its_parent(program, note)

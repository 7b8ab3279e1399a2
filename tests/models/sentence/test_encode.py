"""Tests of `encode` against arithmetic by hand: sentence-transformers options, and many texts."""

import json
import subprocess
import sys
import tracemalloc
import warnings

import numpy as np
import pytest
from safetensors.numpy import save_file

import qkv
from qkv.models import ModelError, load
from qkv.models.network.pooling import _ACTIVATIONS
from qkv.models.sentence.encode import Encoder
from qkv.text import Tokenizer

TEXTS = ["the cat sat.", "a dog ran", "the mat"]
PROMPTS = {"query": "a cat ", "passage": "the mat, ", "none": ""}


def tokens_of(model, texts):
    found = model.encode(texts, output_value="token_embeddings")
    return [rows.astype(np.float64) for rows in found]


def with_prompts(folder, *, pooling=None, default=None):
    folder.write()
    folder.sentence(pooling or {"pooling_mode": "mean"})
    values = {"prompts": PROMPTS, "default_prompt_name": default}
    folder.json("config_sentence_transformers.json", values)
    return load(folder.path)


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6)


def test_a_call_does_not_copy_the_vocabulary(folder, monkeypatch):
    """The copy took longer than the computation for one short text."""
    model = with_prompts(folder)
    copied = property(lambda _: pytest.fail("the vocabulary was copied"))
    monkeypatch.setattr(Tokenizer, "vocabulary", copied)
    assert model.encode("the cat sat.").ndim == 1


# prompts


def test_a_prompt_goes_before_each_text(folder):
    model = with_prompts(folder)
    plain = model.encode([f"a cat {text}" for text in TEXTS])
    assert np.abs(plain - model.encode(TEXTS)).max() > 0.01
    for options in ({"prompt_name": "query"}, {"prompt": "a cat "}):
        np.testing.assert_array_equal(model.encode(TEXTS, **options), plain)
    np.testing.assert_array_equal(model.encode(TEXTS[0], prompt="a cat "), plain[0])
    np.testing.assert_array_equal(model.encode(TEXTS, prompt_name="none"), model.encode(TEXTS))


def test_the_default_prompt_gives_way_to_another(folder):
    model = with_prompts(folder, default="passage")
    plain = load(folder.path)
    passages = [f"the mat, {text}" for text in TEXTS]
    np.testing.assert_array_equal(model.encode(TEXTS), plain.encode(passages, prompt=""))
    queries = [f"a cat {text}" for text in TEXTS]
    for options in ({"prompt_name": "query"}, {"prompt": "a cat "}):
        found = model.encode(TEXTS, **options)
        np.testing.assert_array_equal(found, plain.encode(queries, prompt=""))


def test_invalid_or_conflicting_prompts_are_reported(folder):
    model = with_prompts(folder)
    with pytest.raises(ValueError, match=r"unknown prompt 'other': .* are query, document"):
        model.encode(TEXTS, prompt_name="other")
    with pytest.raises(TypeError, match="encode: prompt is int"):
        model.encode(TEXTS, prompt=3)
    with pytest.warns(UserWarning, match="prompt_name is not used"):
        found = model.encode(TEXTS, prompt_name="passage", prompt="a cat ")
    np.testing.assert_array_equal(found, model.encode(TEXTS, prompt_name="query"))


@pytest.mark.parametrize("files", [None, {}, {"prompts": {"passage": "the mat, "}}])
def test_a_model_without_prompts_has_two_empty_ones(folder, files):
    """Unless the files set them, the prompts `query` and `document` are empty.

    One program can then serve every model, as in sentence-transformers from version 5 on.
    """
    folder.write()
    if files is not None:
        folder.json("config_sentence_transformers.json", files)
    model = load(folder.path)
    for name in ("query", "document"):
        np.testing.assert_array_equal(model.encode(TEXTS, prompt_name=name), model.encode(TEXTS))
    with pytest.raises(ValueError, match=r"unknown prompt 'other': .* are query, document"):
        model.encode(TEXTS, prompt_name="other")


def test_an_empty_prompt_may_be_the_default(folder):
    folder.write()
    folder.json("config_sentence_transformers.json", {"default_prompt_name": "query"})
    model = load(folder.path)
    np.testing.assert_array_equal(model.encode(TEXTS), model.encode(TEXTS, prompt=""))


@pytest.mark.parametrize(
    ("mode", "pool"),
    [
        ("mean", lambda rows: rows[3:].mean(0)),
        ("max", lambda rows: rows[3:].max(0)),
        ("mean_sqrt_len_tokens", lambda rows: rows[3:].sum(0) / np.sqrt(len(rows) - 3)),
        ("weightedmean", lambda rows: np.arange(4, len(rows) + 1) @ rows[3:]
         / np.arange(4, len(rows) + 1).sum()),
        ("cls", lambda rows: rows[3]),
        ("lasttoken", lambda rows: rows[-1]),
    ],
)  # fmt: skip
def test_the_tokens_of_a_prompt_can_be_left_out(folder, mode, pool):
    """The tokens of a prompt are [CLS] and the words "a cat", without a [SEP]."""
    model = with_prompts(folder, pooling={"pooling_mode": mode, "include_prompt": False})
    rows = tokens_of(model, [f"a cat {text}" for text in TEXTS])
    close(model.encode(TEXTS, prompt_name="query"), [pool(one) for one in rows])
    alone = tokens_of(model, TEXTS)  # without a prompt, all tokens are pooled
    expected = {"mean": alone[0].mean(0), "max": alone[0].max(0)}
    if mode in expected:
        close(model.encode(TEXTS[0]), expected[mode])


def test_token_embeddings_include_the_tokens_of_the_prompt(folder):
    model = with_prompts(folder, pooling={"pooling_mode": "mean", "include_prompt": False})
    rows = model.encode("the cat", prompt="a cat ", output_value="token_embeddings")
    assert rows.shape == (6, 12)


def test_a_limit_counts_the_prompt(folder):
    folder.write()
    folder.sentence({"pooling_mode": "mean", "include_prompt": False}, limit=6)
    model = load(folder.path)
    with pytest.warns(UserWarning, match=r"cut to 6 tokens \(it has 7\)"):
        found = model.encode("the cat sat", prompt="a cat ")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = tokens_of(model, ["a cat the cat"])[0]
        close(found, rows[3:].mean(0))
    with pytest.warns(UserWarning, match=r"cut to 6 tokens \(it has 9\)"):
        found = model.encode("the cat", prompt="the cat sat on the ")
    close(found, tokens_of(model, ["the cat sat on"])[0][5])  # of [SEP]


def test_include_prompt_is_true_or_false(folder):
    folder.write()
    folder.sentence({"pooling_mode": "mean", "include_prompt": "no"})
    with pytest.raises(ModelError, match="include_prompt is 'no'"):
        load(folder.path)


# other options in the files


def test_white_space_around_a_text_has_tokens_and_counts():
    """The decoder has the tokens " h", "i", " " and a line feed; it adds no special tokens."""
    model = load("books-decoder")
    h, i, blank, line = (model.tokenizer.vocabulary[token] for token in ("Ġh", "i", "Ġ", "Ċ"))
    expected = [
        model(np.array([ids])).last_hidden_state[0].mean(0)
        for ids in ([h, i], [h, i, line], [h, i, blank], [blank])
    ]
    close(model.encode(["hi", "hi\n", "hi ", " "]), expected)
    with pytest.raises(ValueError, match="text 1 is empty: there is no token in it"):
        model.encode([" ", ""])


@pytest.mark.parametrize("mode", ["mean", "weightedmean", "lasttoken", "cls", "max"])
def test_a_text_whose_only_token_is_shared_with_the_prompt(folder, mode):
    """The prompt "a " has 2 tokens; with the text "c", the tokens are "a" and " c", also 2.

    As in sentence-transformers, the mean of no tokens is 0. A maximum would be -inf.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder.write()
    folder.sentence({"pooling_mode": mode, "include_prompt": False})
    words = {"[UNK]": 0, "a": 1, "Ġ": 2, "c": 3, "Ġc": 4}
    tokenizer = Tokenizer(models.BPE(words, [("Ġ", "c")], unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    folder.text("tokenizer.json", tokenizer.to_str())
    model = load(folder.path)
    if mode == "max":
        with pytest.raises(ValueError, match="0 is empty: there is no token after the prompt's 2"):
            model.encode("c", prompt="a ")
        return
    first = model(np.array([[1, 4]])).last_hidden_state[0, 0]
    close(model.encode("c", prompt="a "), first if mode == "cls" else np.zeros(12))


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "xlm-roberta"])
def test_the_limit_is_read_from_any_sentence_config_file(folder, family):
    folder.write()
    folder.json(f"sentence_{family}_config.json", {"max_seq_length": 7})
    assert load(folder.path).max_seq_length == 7


def dense(folder, number, weight, offset=None, **config):
    """Insert a Dense module with these weights at index `number` of the modules."""
    path = folder.path / "modules.json"
    modules = json.loads(path.read_text())
    place = f"{number}_Dense"
    kind = {"idx": number, "path": place, "type": "sentence_transformers.models.Dense"}
    modules.insert(number, kind)
    path.write_text(json.dumps(modules))
    values = {"in_features": weight.shape[1], "out_features": weight.shape[0]}
    folder.json(f"{place}/config.json", values | {"bias": offset is not None} | config)
    arrays = {"linear.weight": weight} | ({} if offset is None else {"linear.bias": offset})
    save_file(arrays, folder.path / place / "model.safetensors")


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


ACTIVATIONS = {
    "torch.nn.modules.activation.Tanh": np.tanh,
    "torch.nn.modules.linear.Identity": lambda x: x,
    "torch.nn.modules.activation.ReLU": lambda x: np.maximum(x, 0),
    "torch.nn.modules.activation.Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_dense_layer(folder, name):
    folder.write()
    folder.sentence({"pooling_mode": "mean"}, normalize=True)
    weight, bias = numbers(5, 12), numbers(5, seed=1)
    dense(folder, 2, weight, bias, activation_function=name)
    model = load(folder.path)
    pooled = np.array([rows.mean(0) for rows in tokens_of(model, TEXTS)])
    expected = ACTIVATIONS[name](pooled @ weight.T.astype(np.float64) + bias)
    found = model.encode(TEXTS, normalize_embeddings=False)
    assert found.dtype == np.float32
    close(found, expected)
    close(model.encode(TEXTS), expected / np.linalg.norm(expected, axis=1, keepdims=True))
    assert model.encode(()).shape == (0, 5)


@pytest.mark.parametrize("name", _ACTIVATIONS)
def test_activations_of_large_numbers(name):
    """Neither infinite nor with a warning, which is an error in these tests."""
    with np.errstate(all="raise", under="ignore"):
        assert np.isfinite(_ACTIVATIONS[name](np.float32([-3e38, -100, 100, 3e38]))).all()


def test_two_dense_layers_and_what_is_saved(folder, tmp_path):
    folder.write()
    folder.sentence({"pooling_mode": "cls"})
    first, second = numbers(20, 12), numbers(3, 20, seed=1)
    identity = {"activation_function": "torch.nn.modules.linear.Identity"}
    dense(folder, 2, first, **identity)
    dense(folder, 3, second, **identity)
    model = load(folder.path)
    pooled = np.array([rows[0] for rows in tokens_of(model, TEXTS)])
    np.testing.assert_allclose(model.encode(TEXTS), pooled @ first.T @ second.T, atol=2e-5)
    model.save(tmp_path / "copy")
    np.testing.assert_array_equal(load(tmp_path / "copy").encode(TEXTS), model.encode(TEXTS))
    assert load(folder.path, dtype=np.float64).encode(TEXTS).dtype == np.float64


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"in_features": 11}, r"linear.weight is F32 \(5, 12\), but config.json requires.*11"),
        ({"bias": True}, "linear.bias is missing"),
        ({"activation_function": "my.Own"}, "my.Own"),
        ({"module_input_name": "token_embeddings"}, "token_embeddings"),
        ({"out_features": -1}, "out_features is -1"),
    ],
)
def test_a_dense_layer_that_does_not_fit(folder, config, words):
    folder.write()
    folder.sentence({"pooling_mode": "mean"})
    dense(folder, 2, numbers(5, 12), **config)
    with pytest.raises(ModelError, match=words):
        load(folder.path)


# truncated vectors


@pytest.mark.parametrize("scaled_by_files", [False, True])
@pytest.mark.parametrize("normalize", [None, False, True])
def test_vectors_are_cut_where_sentence_transformers_cuts_them(folder, scaled_by_files, normalize):
    """The modules, Normalize included, run first, then truncation, then `normalize_embeddings`."""
    folder.write()
    folder.sentence({"pooling_mode": "mean"}, normalize=scaled_by_files)
    model = load(folder.path)
    expected = np.array([rows.mean(0) for rows in tokens_of(model, TEXTS)])
    if scaled_by_files and normalize is None:
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    expected = expected[:, :5]
    if normalize:
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    options = {"truncate_dim": 5, "normalize_embeddings": normalize}
    found = model.encode(TEXTS, **options)
    assert found.shape == (3, 5)
    assert found.dtype == np.float32
    close(found, expected)
    close(model.encode(TEXTS[1], **options), expected[1])
    close(model.encode(iter(TEXTS), **options), expected)
    close(np.concatenate(list(model.encode_stream(TEXTS, **options))), expected)
    assert model.encode((), **options).shape == (0, 5)


def test_a_cut_that_the_files_ask_for(folder, tmp_path):
    """The files' truncate_dim applies to all vectors, unless a call asks for fewer numbers."""
    whole = load(folder.write()).encode(TEXTS)
    folder.json("config_sentence_transformers.json", {"truncate_dim": 5})
    load(folder.path).save(tmp_path / "copy")
    model = load(tmp_path / "copy")
    np.testing.assert_array_equal(model.encode(TEXTS), whole[:, :5])
    np.testing.assert_array_equal(next(model.encode_stream(TEXTS)), whole[:, :5])
    np.testing.assert_array_equal(model.encode(TEXTS, truncate_dim=2), whole[:, :2])
    encoder = model.text_encoder()
    pooled = encoder.pool_texts(encoder.ids(TEXTS))
    close(encoder.sentence.finish(pooled), whole[:, :5])
    assert model.encode(()).shape == (0, 5)
    assert model.get_embedding_dimension() == 5
    with pytest.raises(ValueError, match="truncate_dim is 6: it must be at most 5"):
        model.encode(TEXTS, truncate_dim=6)


@pytest.mark.parametrize("number", [0, -1, 2.5, "5", True])
def test_an_invalid_truncate_dim_in_the_files_is_refused(folder, number):
    folder.write()
    folder.json("config_sentence_transformers.json", {"truncate_dim": number})
    with pytest.raises(ModelError, match="truncate_dim is"):
        load(folder.path)


def test_truncate_dim_counts_the_outputs_of_dense_layers(folder):
    folder.write()
    folder.sentence({"pooling_mode": "mean"})
    dense(folder, 2, numbers(5, 12))
    model = load(folder.path)
    np.testing.assert_array_equal(model.encode(TEXTS, truncate_dim=5), model.encode(TEXTS))
    found = model.encode(TEXTS, truncate_dim=np.int64(2))
    np.testing.assert_array_equal(found, model.encode(TEXTS)[:, :2])
    with pytest.raises(ValueError, match="encode: truncate_dim is 6: it must be at most 5"):
        model.encode(TEXTS, truncate_dim=6)


def test_vectors_of_tokens_are_not_cut(folder):
    """`truncate_dim` does not affect token vectors, as in sentence-transformers."""
    model = load(folder.write())
    rows = model.encode("the cat", output_value="token_embeddings", truncate_dim=5)
    assert rows.shape == (4, 12)


@pytest.mark.parametrize(
    ("number", "error"),
    [(0, ValueError), (-1, ValueError), (13, ValueError), (2.0, TypeError), (True, TypeError)],
)
def test_an_invalid_truncate_dim_is_refused(folder, number, error):
    model = load(folder.write())
    with pytest.raises(error, match="encode: truncate_dim is"):
        model.encode(TEXTS, truncate_dim=number)
    with pytest.raises(error, match="encode_stream: truncate_dim is"):
        next(model.encode_stream(TEXTS, truncate_dim=number))


def test_truncated_vectors_are_copies_not_views(folder):
    """Truncated vectors are copies: a view would keep the whole vectors in memory."""
    model = load(folder.write())
    assert next(model.encode_stream(TEXTS, truncate_dim=5)).base is None


# many texts


def test_windows_and_batches_change_nothing(folder, monkeypatch):
    model = load(folder.write())
    rng = np.random.default_rng(0)
    words = ["the", "cat", "sat", "on", "a", "mat", "dog", "ran"]
    texts = [" ".join(rng.choice(words, rng.integers(0, 14))) for _ in range(300)]
    expected = model.encode(texts)
    assert expected.shape == (300, 12)
    close(np.array([model.encode(text) for text in texts[:20]]), expected[:20])
    limits = {"sentence.encode.TEXTS": 37, "run.batches.LETTERS": 100, "sentence.encode.TOKENS": 1}
    for name, value in limits.items():
        with monkeypatch.context() as patch:
            patch.setattr(f"qkv.models.{name}", value)
            close(model.encode(texts), expected)
            close(model.encode(iter(texts)), expected)
            tokens = model.encode((text for text in texts), output_value="token_embeddings")
            assert [len(rows) for rows in tokens] == [len(model.tokenize(text)) for text in texts]


def test_a_stream_of_vectors(folder, monkeypatch):
    monkeypatch.setattr("qkv.models.sentence.encode.TEXTS", 2)
    model = load(folder.write())
    read = []
    texts = (read.append(text) or text for text in TEXTS)
    stream = model.encode_stream(texts, normalize_embeddings=True)
    first = next(stream)
    assert read == TEXTS[:2]
    assert first.shape == (2, 12)
    expected = model.encode(TEXTS, normalize_embeddings=True)
    close(np.concatenate([first, *stream]), expected)


@pytest.mark.parametrize(
    ("texts", "options", "error", "words"),
    [
        (["a", 3], {}, TypeError, "text 1 is int"),
        ({"a": "b"}, {}, TypeError, "`texts` is dict"),
        (["a"], {"batch_size": 0}, ValueError, "batch_size is 0"),
        (["a"], {"truncate_dim": 13}, ValueError, "truncate_dim is 13"),
        (["a"], {"prompt_name": "x"}, ValueError, "unknown prompt 'x'"),
        (["a"], {"batchsize": 3}, TypeError, "unknown argument 'batchsize': choose from batch_s"),
    ],
)
def test_an_error_of_a_stream_names_it(folder, texts, options, error, words):
    model = load(folder.write())
    with pytest.raises(error, match=f"encode_stream: {words}"):
        list(model.encode_stream(texts, **options))


def test_one_warning_for_all_windows(folder, monkeypatch):
    monkeypatch.setattr("qkv.models.sentence.encode.TEXTS", 2)
    folder.write()
    folder.json("sentence_bert_config.json", {"max_seq_length": 4})
    model = load(folder.path)
    texts = ["the cat sat on", "a", "the cat", "the cat sat", "a"]
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        assert model.encode(iter(texts)).shape == (5, 12)
    (warning,) = noted
    assert str(warning.message) == "2 of 5 texts were cut to 4 tokens (the longest has 6)"
    assert warning.filename == __file__


def test_errors_give_the_index_of_a_text_of_wrong_type(folder, monkeypatch):
    monkeypatch.setattr("qkv.models.sentence.encode.TEXTS", 2)
    model = load(folder.write())
    ran = []
    run = model.network.run
    monkeypatch.setattr(
        model.network, "run", lambda batch, *more: ran.append(len(batch)) or run(batch, *more)
    )
    with pytest.raises(TypeError, match="encode: text 4 is int"):
        model.encode(["a", "a", "a", "a", 3])
    assert not ran  # a list is checked before anything is computed
    with pytest.raises(TypeError, match="encode: text 4 is int"):
        model.encode(iter(["a", "a", "a", "a", 3]))
    assert ran == [2, 2]


class Plain:
    """A stream with only `write`, which some programs use as standard error."""

    def write(self, text):
        raise AssertionError(text)


@pytest.mark.parametrize(
    ("stream", "show"),
    [(None, None), (None, True), ("closed", None), ("closed", True), ("no terminal", None)],
)
def test_without_a_standard_error_there_is_no_bar(folder, monkeypatch, tmp_path, stream, show):
    """Without a usable standard error, e.g. in `pythonw`, `encode` works and shows no bar."""
    model = load(folder.write())
    with (tmp_path / "gone").open("w") as closed:
        pass
    streams = {None: None, "closed": closed, "no terminal": Plain()}
    monkeypatch.setattr(sys, "stderr", streams[stream])
    assert model.encode(TEXTS, show_progress_bar=show).shape == (3, 12)


MEMORY = """
import qkv
model = qkv.load("random")
line = "the cat sat on the mat and {} more words of no consequence" + " " * 1150
def lines(count):
    return (line.format(n) for n in range(count))
def run(count):
    total = 0
    for vectors in model.encode_stream(lines(count)):
        total += len(vectors)
    assert total == count
    # not ru_maxrss, which begins with the memory of the process that started this one
    with open("/proc/self/status") as status:
        (line,) = (line for line in status if line.startswith("VmHWM:"))
    return int(line.split()[1])
print(run(2_000), run(20_000))
"""


@pytest.mark.alone
@pytest.mark.attack
@pytest.mark.skipif(sys.platform != "linux", reason="what a process has used is asked of Linux")
def test_memory_does_not_grow_with_the_number_of_texts():
    """Held at once, the lines alone would take 25 MB, and their tokens 40 MB."""
    done = subprocess.run(
        [sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True
    )
    few, many = map(int, done.stdout.split())
    assert many - few < 15_000, f"{few} KiB for 2,000 lines, {many} KiB for 20,000"


@pytest.mark.alone
@pytest.mark.attack
def test_vectors_of_a_list_take_their_memory_once(monkeypatch):
    model = qkv.models.random_model("a cat", dim=512)
    made = lambda _, batch, advance: np.ones((len(batch), 512), np.float32)  # noqa: E731
    monkeypatch.setattr(Encoder, "_vectors", made)
    tracemalloc.start()
    try:
        vectors = model.encode(["a cat"] * 10_000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert vectors.shape == (10_000, 512)
    assert peak < 1.5 * vectors.nbytes + 5_000_000, f"{peak:,} bytes for {vectors.nbytes:,}"

"""Tests of a BERT model: its computation, its inputs and its outputs."""

import copy
import json
import pickle
import warnings

import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

import qkv
from qkv.models import Model, load, random_model
from qkv.ops import linear as linear_layer
from rows import failing

from .formulas import layer_norm
from .support import Folder, close, mask_bert, plain_bert, refused, tokenizer_json

TEXTS = [
    "the cat sat on the mat.",
    "running",
    "a dog ran, the cat ran, a dog sat",
    "xyzzy",
    "the bank",
]


@pytest.fixture(scope="module")
def model(small):
    return load(small)


@pytest.fixture(scope="module")
def expected(small, model):
    """The hidden states and the weights of the plain BERT for each of TEXTS."""
    tensors = load_file(small / "model.safetensors")
    return [plain_bert(tensors, model.config, model.tokenize(text).ids) for text in TEXTS]


# computation


def test_trace_has_the_hidden_states_and_weights_of_the_plain_bert(double, expected):
    trace = double.trace(TEXTS)
    assert len(trace.hidden_states) == 3
    assert len(trace.attentions) == 2
    for number, (states, weights) in enumerate(expected):
        one = trace[number]
        for found, state in zip(one.hidden_states, states, strict=True):
            close(found[0], state)
        for found, weight in zip(one.attentions, weights, strict=True):
            close(found[0], weight)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("hidden_act", act) for act in ("relu", "gelu_new")),
        *(("num_attention_heads", heads) for heads in (1, 4)),
        ("layer_norm_eps", 0.1),
    ],
)
def test_other_options(folder, key, value):
    folder.config[key] = value
    model = load(folder.write(), dtype=np.float64)
    ids = model.tokenize("the cat sat").ids
    states, _ = plain_bert(folder.tensors, folder.config, ids)
    close(model(ids[None]).last_hidden_state[0], states[-1])


def test_the_residual_stream_adds_up(double):
    """`full_embed` is the normed sum of the embeddings; `resid_mid` is `resid_pre` + `attn_out`."""
    trace = double.trace(TEXTS[0])
    parameters = double.parameters
    total = trace["embed"] + trace["token_type_embed"] + trace["pos_embed"]
    norm = (parameters[f"embed_norm.{part}"] for part in ("weight", "bias"))
    close(trace["full_embed"], layer_norm(total, *norm, 1e-12))
    np.testing.assert_array_equal(trace["full_embed"], trace["resid_pre", 0])
    rows = parameters["embed.weight"][double.tokenize(TEXTS[0]).ids]
    np.testing.assert_array_equal(trace["embed"][0], rows)
    np.testing.assert_array_equal(trace["pos_embed"][0], parameters["pos_embed.weight"][:9])
    for layer in range(2):
        close(trace["resid_mid", layer], trace["resid_pre", layer] + trace["attn_out", layer])
        z = trace["z", layer].reshape(1, 9, 12)
        out = z @ parameters[f"blocks.{layer}.attn.out_proj.weight"]
        close(trace["attn_out", layer], out + parameters[f"blocks.{layer}.attn.out_proj.bias"])
    np.testing.assert_array_equal(trace["normalized_resid_post", 0], trace["resid_pre", 1])


# names and layers of a trace


def test_a_trace_keeps_the_selected_names_and_layers(model):
    def kept(**options):
        return model.trace("the cat", **options).names()

    assert kept(names="pattern") == [f"blocks.{n}.attn.hook_pattern" for n in (0, 1)]
    assert kept(names=["embed", "q"], layers=1) == ["hook_embed", "blocks.1.attn.hook_q"]
    assert kept(names=["blocks.0.hook_mlp_out", "attn.hook_z"], layers=[0, -1]) == [
        *("blocks.0.attn.hook_z", "blocks.0.hook_mlp_out", "blocks.1.attn.hook_z"),
    ]
    assert kept(layers=[], names=["hook_pos_embed"]) == ["hook_pos_embed"]
    assert kept(names=("pattern", -1)) == ["blocks.1.attn.hook_pattern"]
    assert kept(names=("pattern", "q"), layers=0) == [
        *("blocks.0.attn.hook_q", "blocks.0.attn.hook_pattern"),
    ]
    tuples = [("embed", None), ("scale", 0, "ln1"), ("ln1.scale", 1), ("result", 1)]
    named = ["hook_embed", "blocks.0.ln1.hook_scale", "blocks.1.attn.hook_result"]
    assert kept(names=tuples) == [*named, "blocks.1.ln1.hook_scale"]
    assert kept(names=[*tuples[:1], "pattern"], layers=0) == [
        *("hook_embed", "blocks.0.attn.hook_pattern"),
    ]
    assert ("attn", 1) in model.trace("the cat", names=[("attn", 1)])  # another name of the pattern
    assert not any(name.startswith("blocks.0.") for name in kept(layers=-1))
    assert len(kept(layers=-1)) == 4 + 12 + 4 + 2  # the last terms: norms and MLP


def test_layer_minus_1_of_a_partial_trace_is_the_models_last(model):
    first = model.trace("the cat", layers=0)
    assert (first.num_layers, first.layers) == (2, [0])
    with pytest.raises(KeyError, match=r"layer 1 was not traced; only layer 0 was traced"):
        first["pattern", -1]
    with pytest.raises(KeyError, match=r"holds resid_post only for layer 0.*\['resid_post', 0\]"):
        _ = first.hidden_states
    last = model.trace("the cat", layers=-1)
    assert last["pattern", -1] is last["blocks.1.attn.hook_pattern"]
    assert last.attention_inputs(-1).keys() == last.attention_inputs(1).keys()


def test_trace_refuses_invalid_names_layers_and_top_k(model):
    for options, error, words in (
        ({"names": ["ln_final.hook_scale"]}, KeyError, r"nearest are .*ln2\.hook_scale"),
        ({"names": "hook_pre_linear"}, KeyError, r"nearest are .*hook_pre"),
        ({"names": ["pattern", "blocks.2.attn.hook_q"]}, KeyError, "no layer 2: the model has 2"),
        ({"layers": [2]}, ValueError, "no layer 2: the model has 2"),
        ({"names": [("patern", 0)]}, KeyError, r"no \('patern', 0\); the nearest are blocks\.0"),
        ({"names": ("pattern", 2)}, KeyError, "no layer 2: the model has 2 layers, numbered 0 to"),
        ({"names": [()]}, KeyError, r"no \(\)"),
        ({"names": [3]}, TypeError, r"trace: `names` contains 3; pass names, such as \"pattern\""),
        ({"names": 3}, TypeError, "trace: `names` is 3"),
        ({"layers": 0.5}, TypeError, r"`layers` contains 0\.5: layers are whole numbers"),
        ({"top_k": 0}, ValueError, "pass 1 or more"),
    ):
        with failing(options, error, words), pytest.raises(error, match=words):
            model.trace("the cat", **options)


def test_tokens_offsets_and_specials(model):
    trace = model.trace("A barking cat!")
    assert trace.tokens == ["[CLS]", "a", "[UNK]", "cat", "[UNK]", "[SEP]"]
    assert trace.offsets == [(0, 0), (0, 1), (2, 9), (10, 13), (13, 14), (0, 0)]
    assert trace.special == [True, False, False, False, False, True]
    assert trace.model == "model"
    many = model.trace(["the cat", "a"])
    assert many.tokens == [["[CLS]", "the", "cat", "[SEP]"], ["[CLS]", "a", "[SEP]"]]
    assert many[1].tokens == ["[CLS]", "a", "[SEP]"]
    assert model.trace(["a"]).tokens == [["[CLS]", "a", "[SEP]"]]


# encode


@pytest.mark.parametrize("batch_size", [1, 2, 3, 100])
def test_encode_keeps_the_order_whatever_the_batch(model, expected, batch_size):
    found = model.encode(TEXTS, batch_size=batch_size)
    assert found.shape == (5, 12)
    assert found.dtype == np.float32
    for vector, (states, _) in zip(found, expected, strict=True):
        close(vector, states[-1].mean(0), 1e-5)


def test_encode_takes_what_sentence_transformers_takes(model):
    whole = model.encode(TEXTS)
    for given in (iter(TEXTS), tuple(TEXTS), np.array(TEXTS)):
        np.testing.assert_array_equal(model.encode(given), whole)
    assert model.encode("the cat").shape == (12,)
    assert model.encode(["the cat"]).shape == (1, 12)
    for nothing in ((), [], iter(())):
        empty = model.encode(nothing)
        assert empty.shape == (0, 12)
        assert empty.dtype == np.float32


def test_token_embeddings(model):
    found = model.encode(TEXTS, output_value="token_embeddings", batch_size=2)
    assert [array.shape for array in found] == [(9, 12), (4, 12), (13, 12), (3, 12), (4, 12)]
    trace = model.trace(TEXTS)
    for number, array in enumerate(found):
        close(array, trace[number].hidden_states[-1][0], 1e-5)
    assert model.encode("the cat", output_value="token_embeddings").shape == (4, 12)
    assert model.encode((), output_value="token_embeddings") == []


def test_an_empty_text_has_the_special_tokens(model):
    found = model.encode("", output_value="token_embeddings")
    assert found.shape == (2, 12)
    np.testing.assert_array_equal(model.encode(["", " "])[0], model.encode(""))


def test_no_text_and_an_empty_text_have_nothing_to_trace(model):
    with pytest.raises(ValueError, match="no text is given"):
        model.trace([])
    for text in ("", " ", "\t\n"):
        for given, said in ((text, "the text is empty"), (["the cat", text], "text 1 is empty")):
            with failing(given), pytest.raises(ValueError, match=f"trace: {said}"):
                model.trace(given)


@pytest.mark.parametrize("call", ["trace", "encode"])
@pytest.mark.parametrize(
    ("texts", "error", "words"),
    [
        (None, TypeError, "NoneType"),
        (b"the cat", TypeError, "bytes"),
        (["the cat", None], TypeError, "text 1 is NoneType"),
        (["\ud800"], ValueError, "surrogate"),
        ({"text": "the cat"}, TypeError, r"dict, of which only the keys .* list\(texts\.values"),
    ],
)
def test_trace_and_encode_refuse_invalid_texts(model, call, texts, error, words):
    with pytest.raises(error, match=words) as caught:
        getattr(model, call)(texts)
    assert str(caught.value).startswith(f"{call}: ")


def test_binary_text_is_text(model):
    """NUL bytes and control characters become unknown words or nothing, and cause no crash."""
    assert np.isfinite(model.encode("\x00\x01\xff \x7f the cat")).all()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"batch_size": 0}, ValueError),
        ({"batch_size": 2.5}, TypeError),
        ({"batch_size": True}, TypeError),
        ({"output_value": "nonsense"}, ValueError),
        ({"output_value": "token_embeddings", "normalize_embeddings": True}, ValueError),
    ],
)
def test_options_of_encode_that_make_no_sense(model, options, error):
    with pytest.raises(error, match=f"encode: {next(iter(options))}|encode: normalize"):
        model.encode("the cat", **options)


@pytest.mark.parametrize("call", ["encode", "trace"])
def test_no_padding_is_computed(model, monkeypatch, call):
    """The input of each linear layer has exactly one row per token."""
    rows = []
    linear = linear_layer.linear

    def counting(x, weight, *rest, **options):
        rows.append(x.size // x.shape[-1])
        return linear(x, weight, *rest, **options)

    monkeypatch.setattr(linear_layer, "linear", counting)
    getattr(model, call)(TEXTS)
    assert rows == [9 + 4 + 13 + 3 + 4] * (2 * 6)  # q, k, v, out, up, down in each of two layers


# the limit

LONG = "the cat sat on the mat. a dog ran, the cat sat on the mat."  # 18 + 2 tokens, 16 positions


def test_a_long_text_is_cut_as_the_tokenizers_library_cuts(model):
    library = Tokenizer.from_str(tokenizer_json())
    library.enable_truncation(16)
    whole = model.tokenize(LONG)
    assert len(whole) == 20
    encoding = library.encode(LONG)
    with pytest.warns(UserWarning, match=r"1 of 1 text was cut to 16 tokens \(it has 20\)"):
        trace = model.trace(LONG)
    assert trace.tokens == encoding.tokens
    assert trace.offsets == encoding.offsets
    assert trace.special == [mask == 1 for mask in encoding.special_tokens_mask]
    with pytest.warns(UserWarning, match="were cut"):
        found = model.encode([LONG, "the"])
    expected = model(np.array(encoding.ids)[None]).last_hidden_state[0].mean(0)
    close(found[0], expected, 1e-5)


@pytest.mark.parametrize("call", ["encode", "trace"])
def test_one_warning_counts_truncated_texts_and_points_to_the_caller(folder, call):
    folder.write()
    folder.json("sentence_bert_config.json", {"max_seq_length": 8})
    model = load(folder.path)
    assert model.max_seq_length == 8
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        getattr(model, call)([*TEXTS, "a dog ran, a cat"])  # 8 tokens: just fits
    (warning,) = noted
    assert str(warning.message) == "2 of 6 texts were cut to 8 tokens (the longest has 13)"
    assert warning.filename == __file__
    kept = ["the cat sat on the mat.", "the cat sat on the"]
    with pytest.warns(UserWarning, match="cut"):
        cut = model.trace(kept[0])
    assert cut.tokens[-2:] == ["mat", "[SEP]"]


# ids


def test_an_attention_mask_excludes_padding(model):
    ids = np.array([[2, 4, 5, 6, 3]])
    alone = model(ids).last_hidden_state
    right = np.array([[2, 4, 5, 6, 3, 99, -1]])
    for mask in (
        [[1] * 5 + [0] * 2],
        np.array([[True] * 5 + [False] * 2]),
        np.uint8([[1] * 5 + [0] * 2]),
    ):
        found = model(right, mask).last_hidden_state
        close(found[:, :5], alone, 1e-6)
        assert (found[:, 5:] == 0).all()


def test_a_fully_masked_text_gives_zeros(model):
    found = model([[2, 4, 3], [2, 5, 3]], [[0, 0, 0], [1, 1, 1]]).last_hidden_state
    assert (found[0] == 0).all()
    close(found[1:], model([[2, 5, 3]]).last_hidden_state, 1e-6)
    assert model(np.zeros((0, 4), int)).last_hidden_state.shape == (0, 4, 12)
    assert model(np.zeros((2, 0), int)).last_hidden_state.shape == (2, 0, 12)


def test_ids_and_masks_that_do_not_fit(model):
    for ids, mask, error, words in (
        ([[[2, 4, 3]]], None, ValueError, r"shape \(1, 1, 3\); pass \(B, T\), or \(T,\)"),
        ([2, 4, 3], [[1, 1, 1]], ValueError, r"\(1, 3\), but input_ids have shape \(3,\)"),
        ([[2.0, 4.0]], None, TypeError, "float64; pass integers"),
        ([[2, 30]], None, ValueError, "no token 30: the ids run from 0 to 29"),
        ([[4] * 17], None, ValueError, "17 columns, but the model has only 16 positions"),
        ([[2, 4, 3]], [[1, 1]], ValueError, r"\(1, 2\), but input_ids have shape \(1, 3\)"),
        ([[2, 4, 3]], [[1.0, 1.0, 0.0]], TypeError, "attention_mask is float64; pass True or 1"),
        ([[2, 4, 3]], [[1, 2, 0]], ValueError, "numbers other than 0 and 1"),
    ):
        with failing(ids, mask, error, words), pytest.raises(error, match=words):
            model(ids, mask)


def test_ids_of_one_text_need_no_batch(model):
    expected = model([[2, 4, 3]], [[1, 1, 0]])
    found = model([2, 4, 3], [1, 1, 0])
    np.testing.assert_array_equal(found.last_hidden_state, expected.last_hidden_state)
    assert model(np.array([2, 4, 3])).last_hidden_state.shape == (1, 3, 12)


# tokenizers


def test_a_model_without_a_tokenizer_runs_on_ids(folder):
    folder.write()
    (folder.path / "tokenizer.json").unlink()
    model = load(folder.path)
    assert model.tokenizer is None
    assert model([[2, 4, 3]]).last_hidden_state.shape == (1, 3, 12)
    for call in (model.trace, model.encode, model.tokenize):
        with pytest.raises(ValueError, match=r"has no tokenizer\.json, .*call model\(input_ids\)"):
            call("the cat")
    with pytest.raises(ValueError, match="decode: model has no tokenizer"):
        model.decode([4])


def test_a_token_without_a_row_is_an_error_when_a_text_has_it(folder):
    mask_bert(folder.path)
    text = "the cat sat [MASK]"
    expected = load(folder.path).encode(text)
    tokenizer = Tokenizer.from_file(str(folder.path / "tokenizer.json"))
    tokenizer.add_tokens([f"w{number}" for number in range(20, 32)])
    tokenizer.save(str(folder.path / "tokenizer.json"))
    with pytest.warns(UserWarning, match="ids up to 31, but the token table has only 30 rows"):
        model = load(folder.path)
    np.testing.assert_array_equal(model.encode(text), expected)
    assert model.tokenize("w29").ids.tolist()[1] == 29
    message = "the token 'w31' has the id 31, but the token table has only 30 rows"
    for call in (model.trace, model.encode, model.tokenize, model.predict):
        with pytest.raises(ValueError, match=message):
            call("the w31 [MASK]")
    with pytest.raises(ValueError, match=message):
        model.tokenizer.pair("the bank", "w31")
    with pytest.raises(ValueError, match="there is no token 31: the ids run from 0 to 29"):
        model.trace([[2, 31, 3]])
    with pytest.raises(ValueError, match="one entry of the vocabulary"):
        model.trace(text, edit=[{"op": "swap", "token": 1, "with": "w31"}])
    with pytest.raises(ValueError, match="has tokens without a row in the token table"):
        qkv.play(model=model)


@pytest.mark.parametrize("content", ["", "{}", "not json", '{"model": 3}', "[1]", "\x00" * 9])
def test_a_broken_tokenizer(folder, content):
    folder.write()
    folder.text("tokenizer.json", content)
    refused(folder.path, "tokenizer.json")


def test_a_tokenizer_that_fails_when_it_is_used(folder):
    """The library accepts this file, but panics at the first text; a panic is no Exception."""
    folder.write()
    content = json.loads(tokenizer_json())
    content["post_processor"]["special_tokens"] = {}
    folder.json("tokenizer.json", content)
    refused(folder.path, "tokenizer.json does not work as a tokenizer")


def test_decode_and_tokenize(model):
    ids = model.tokenize("The cat sat.").ids
    assert ids.tolist() == [2, 4, 5, 6, 14, 3]
    assert model.decode(ids) == "the cat sat ."


# saving


@pytest.mark.parametrize("prefix", ["", "bert."])
@pytest.mark.parametrize("dtype", [None, np.float64])
def test_a_saved_model_is_loaded_unchanged(folder, tmp_path, prefix, dtype):
    head = {f"{prefix}pooler.dense.bias": np.arange(12, dtype=np.float32)}
    names = {f"{prefix}{name}": array for name, array in folder.tensors.items()}
    folder.config |= {"torch_dtype": "float32", "id2label": {"0": "no"}}
    folder.write()
    folder.weights("model.safetensors", {**names, **head})
    folder.sentence({"pooling_mode": "cls"}, normalize=True, limit=9)
    model = load(folder.path, dtype=dtype)
    model.save(tmp_path / "new" / "folder")
    again = load(tmp_path / "new" / "folder")
    texts = TEXTS[:2]
    np.testing.assert_array_equal(again.encode(texts), model.encode(texts))
    assert again.encode(texts).dtype == model.encode(texts).dtype
    assert again.max_seq_length == 9
    assert again.tokenizer.vocabulary == model.tokenizer.vocabulary
    kept = {key: value for key, value in model.config.items() if key != "torch_dtype"}
    assert again.config == {**kept, "dtype": "float64" if dtype else "float32"}
    saved = load_file(tmp_path / "new" / "folder" / "model.safetensors")
    np.testing.assert_equal(saved, {**names, **head})


def test_a_model_is_saved_where_it_came_from(folder):
    model = load(folder.write())
    before = model.encode(TEXTS)
    model.parameters["blocks.1.norm2.bias"] = model.parameters["blocks.1.norm2.bias"] + 1
    changed = model.encode(TEXTS)
    model.save(folder.path)
    np.testing.assert_array_equal(load(folder.path).encode(TEXTS), changed)
    close(changed, before + 1, 1e-6)
    assert not [path for path in folder.path.iterdir() if path.name.endswith(".part")]


def test_saving_removes_files_of_the_previous_model(folder, tmp_path):
    """Saving removes the old files that `load` would read, and keeps all others."""
    other = Folder(tmp_path / "other")
    other.json("generation_config.json", {"eos_token_id": 3})
    other.json("sentence_bert_config.json", {"max_seq_length": 3})
    other.json("config_sentence_transformers.json", {"prompts": {"a": "b"}})
    other.sentence({"pooling_mode": "cls"}, normalize=True)
    other.text("README.md", "mine")
    other.text("special_tokens_map.json", "{}")
    (other.path / "sentence_roberta_config.json").mkdir()
    load(other.write())
    folder.write()
    (folder.path / "tokenizer.json").unlink()
    model = load(folder.path)
    model.save(other.path)
    kept = {"1_Pooling", "README.md", "sentence_roberta_config.json"}
    left = {path.name for path in other.path.iterdir()}
    assert left == {"config.json", "model.safetensors", *kept}
    again = load(other.path)
    assert again.tokenizer is None
    assert again.max_seq_length == model.max_seq_length == 16


def test_where_nothing_can_be_saved(model, tmp_path, monkeypatch):
    """A file is not a folder; an empty name would mean the current folder."""
    (tmp_path / "file").write_text("here")
    monkeypatch.chdir(tmp_path)
    for folder, error, said in (
        (tmp_path / "file", NotADirectoryError, "is a file; pass a folder"),
        (tmp_path / "file" / "below", OSError, "file"),
        ("", ValueError, "save: the name of the folder is empty"),
    ):
        with failing(folder), pytest.raises(error, match=said):
            model.save(folder)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["here"]


def test_another_limit(folder):
    model = load(folder.write())  # of 16 positions, with [CLS] and [SEP] around a text
    text = "the cat sat on the mat"
    model.max_seq_length = 5
    with pytest.warns(UserWarning, match="cut to 5 tokens"):
        assert len(model.trace(text).tokens) == 5
    for limit, error, words in (
        (10**5, ValueError, "max_seq_length is 100000, but model has 16 positions; pass at most"),
        (None, ValueError, "max_seq_length is None, but model has 16 positions"),
        (2, ValueError, "max_seq_length is 2: it must be 3 or more"),
        (-1, ValueError, "max_seq_length is -1"),
        (2.0, TypeError, r"max_seq_length is 2\.0; pass a whole number"),
    ):
        with pytest.raises(error, match=words):
            model.max_seq_length = limit
    assert model.max_seq_length == 5
    model.max_seq_length = 16
    assert len(model.trace(text).tokens) == 8


def test_a_name_that_a_model_does_not_have_cannot_be_set(small):
    model = load(small)
    with pytest.raises(AttributeError, match="attribute 'max_length': the nearest are max_seq_len"):
        model.max_length = 3
    with pytest.raises(AttributeError, match=r"model: unknown attribute 'xyzzy'$"):
        model.xyzzy = 3
    with pytest.raises(AttributeError):
        model.dim = 3
    model.max_seq_length, model.name = 5, "mine"  # these attributes can be set
    twins = [copy.copy(model), copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    for twin in [model, *twins, model.with_parameters(dict(model.parameters))]:
        assert (twin.max_seq_length, twin.name) == (5, "mine")
        assert len(twin.trace("the cat").tokens) == 4
        with pytest.raises(AttributeError, match="max_seq_length"):
            twin.max_length = 3


def test_a_subclass_of_model_can_set_any_attribute(small):
    class Mine(Model):
        def __init__(self, **parts):
            super().__init__(**parts)
            self.note = "read on Monday"

    model = load(small)
    model.__class__ = Mine
    model.other = 3
    assert model.other == 3
    random = random_model()
    parts = {"config": random.config, "design": random.design, "weights": random._weights}
    assert Mine(name="own", **parts).note == "read on Monday"


def test_a_model_says_what_it_is(model):
    assert repr(model) == "<Model model: bert, 2 layers, 3 heads, vectors of 12>"
    assert (model.dim, model.num_layers, model.num_heads, model.max_seq_length) == (12, 2, 3, 16)


# the progress bar


def test_a_progress_bar_is_shown_on_request_or_for_long_work_in_a_terminal(
    model, capfd, monkeypatch
):
    def shown(**options):
        model.encode(TEXTS, **options)
        out, err = capfd.readouterr()
        assert out == ""
        return err

    assert shown() == shown(show_progress_bar=False) == ""
    asked = shown(show_progress_bar=True)
    assert "encode" in asked
    assert "100%" in asked
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert shown() == ""
    monkeypatch.setattr("qkv._progress.PATIENCE", -1.0)
    assert "100%" in shown()


def test_a_name_of_another_library_says_what_to_do():
    model = load("random")
    with pytest.raises(AttributeError, match=r"'Model' object has no attribute 'cuda': .* CPU"):
        model.cuda()
    with pytest.raises(AttributeError, match=r"no attribute 'encoded'$"):
        model.encoded()
    assert not hasattr(model, "eval")

"""Tests of configs: keys that change the result are used or refused, never ignored."""

import itertools
import json

import numpy as np
import pytest

from qkv.models import ModelError, load

from ..sizes import DECODER
from ..small_models import write_small
from ..support import Folder, refused


def test_no_config(folder):
    folder.write()
    (folder.path / "config.json").unlink()
    refused(folder.path, "holds no config.json: a model is a folder with")


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"not json", b"[]", b"3", b"null", b"\xff\xfe", b"[" * 100_000, b'{"a": 1}{}'],
)
def test_a_config_that_is_no_json_object(folder, content):
    (folder.write() / "config.json").write_bytes(content)
    refused(folder.path, "config.json")


def test_no_family(folder):
    del folder.config["model_type"]
    refused(folder.write(), "config.json", "model_type is missing", "bert")


SIZES = [
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
    *("intermediate_size", "max_position_embeddings", "type_vocab_size"),
]
FAMILIES = ["config.json", "qkv supports: albert, "]


@pytest.mark.parametrize(
    ("key", "value", "parts"),
    [
        *(("model_type", value, FAMILIES) for value in ("mamba", "BERT", "bert2", 3, ["bert"], {})),
        *(("hidden_act", value, ["gelu_new"]) for value in ("gelu_10", "tanh", "", None, 3)),
        ("position_embedding_type", "relative_key", ["does not support"]),
        ("is_decoder", True, ["does not support"]),
        ("add_cross_attention", True, ["does not support"]),
        ("is_encoder_decoder", True, ["does not support"]),
        ("is_causal", False, ["does not support"]),
        ("per_layer_config", {"1": {"intermediate_size": 10}}, ["does not support"]),
        ("pruned_heads", {"0": [1]}, ["does not support"]),
        ("quantization_config", {"bits": 8}, ["does not support"]),
        ("cross_attention_hidden_size", 12, ["does not support"]),
        ("num_attention_heads", 5, ["hidden_size is 12", "multiple"]),
    ],
)
def test_an_unsupported_value_is_refused_by_name(folder, key, value, parts):
    folder.config[key] = value
    refused(folder.write(), key, repr(value), *parts)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        *itertools.product(SIZES, [0, -1, 1.5, 12.0, True, "12", None, [12], 10**12, 10**30], [""]),
        *(
            ("layer_norm_eps", it, "layer_norm_eps")
            for it in (0, -1e-5, np.nan, np.inf, "1e-12", True)
        ),
    ],
)
def test_an_impossible_number_is_refused_before_memory_is_allocated(folder, key, value, said):
    folder.config[key] = value
    refused(folder.write(), said)


def test_num_hidden_layers_must_match_the_tensors(folder):
    folder.config["num_hidden_layers"] = 3
    refused(folder.write(), "the tensor encoder.layer.2.attention.self.query.weight is missing")
    folder.config["num_hidden_layers"] = 1
    refused(folder.write(), "encoder.layer.1.", "does not belong")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("position_embedding_type", "absolute"),
        ("is_decoder", False),
        ("pruned_heads", {}),
        ("hidden_dropout_prob", 0.1),
        ("torch_dtype", "float32"),
        ("use_cache", True),
        ("pooler_type", "first_token_transform"),
        ("whatever", None),
    ],
)
def test_options_without_effect_are_accepted(folder, key, value):
    folder.config[key] = value
    load(folder.write())


def test_unknown_keys_are_named_in_a_warning(folder):
    folder.config |= {"alibi": True, "window": 3}
    with pytest.warns(UserWarning, match="does not know alibi, window"):
        load(folder.write())


def test_missing_sizes_default_to_bert_base(folder):
    """A size missing in the config has BERT-base's value, as in transformers.

    Here, the missing size becomes 3072, and the error says that the file's tensor has another size.
    """
    del folder.config["intermediate_size"]
    refused(folder.write(), "(3072, 12)")


# the files of sentence-transformers


def test_each_pooling_mode_equals_its_formula(folder):
    folder.write()
    text = "the cat sat."
    tokens = load(folder.path).encode(text, output_value="token_embeddings").astype(np.float64)
    expected = {
        "cls_token": tokens[0],
        "mean_tokens": tokens.sum(0) / 6,
        "max_tokens": tokens.max(0),
        "mean_sqrt_len_tokens": tokens.sum(0) / np.sqrt(6),
        "weightedmean_tokens": np.arange(1, 7) @ tokens / 21,
        "lasttoken": tokens[5],
    }
    for name, vector in expected.items():
        folder.sentence({"word_embedding_dimension": 12, f"pooling_mode_{name}": True})
        found = load(folder.path).encode(text)
        np.testing.assert_allclose(found, vector, rtol=0, atol=2e-6, err_msg=name)
        folder.sentence({f"pooling_mode_{name}": True}, normalize=True)
        found = load(folder.path).encode(text)
        np.testing.assert_allclose(found, vector / np.linalg.norm(vector), rtol=0, atol=2e-6)
    folder.sentence({"pooling_mode": "max", "embedding_dimension": 12})
    np.testing.assert_allclose(load(folder.path).encode(text), expected["max_tokens"], atol=2e-6)


def test_several_poolings_are_concatenated(folder):
    folder.write()
    folder.sentence({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True})
    model = load(folder.path)
    tokens = model.encode("the cat", output_value="token_embeddings")
    assert model.encode(()).shape == (0, 24)
    np.testing.assert_array_equal(model.encode("the cat"), np.hstack([tokens[0], tokens.mean(0)]))


def test_pooling_defaults_to_the_mean(folder):
    folder.write()
    folder.sentence({"pooling_mode_mean_tokens": False})
    model = load(folder.path)
    tokens = model.encode("the cat", output_value="token_embeddings")
    np.testing.assert_array_equal(model.encode("the cat"), tokens.mean(0))


@pytest.mark.parametrize(
    ("pooling", "named"),
    [
        ({"pooling_mode_median_tokens": True}, "pooling_mode_median_tokens"),
        ({"pooling_mode": "median"}, "median"),
        ({"pooling_mode": 3}, "is 3"),
        ({"pooling_mode": [{}]}, "{}"),
    ],
)
def test_a_pooling_that_is_not_known(folder, pooling, named):
    folder.write()
    folder.sentence(pooling)
    refused(folder.path, "qkv supports only cls, max, mean", named)


def test_a_module_that_is_not_known(folder):
    folder.write()
    modules = folder.sentence({"pooling_mode": "mean"})
    modules.append({"path": "2_LSTM", "type": "sentence_transformers.models.LSTM"})
    folder.json("modules.json", modules)
    refused(folder.path, "does not support the module ", ".LSTM; the supported")


@pytest.mark.parametrize("modules", [{}, [], [3], [{"type": "Transformer"}], ["Transformer"]])
def test_an_invalid_modules_json_is_refused(folder, modules):
    folder.write()
    folder.json("modules.json", modules)
    refused(folder.path, "modules.json")


@pytest.mark.parametrize("place", ["../x", "/etc", "a/../../b", "c:\\x", 3])
def test_a_module_outside_of_the_folder(folder, place):
    folder.write()
    modules = folder.sentence({"pooling_mode": "mean"})
    modules[1]["path"] = place
    folder.json("modules.json", modules)
    refused(folder.path, "is outside the model's folder")


def test_the_transformer_may_be_in_a_subfolder(folder, tmp_path):
    """The layout of early sentence-transformers models: the transformer is in a subfolder."""
    expected = load(folder.write()).encode("the cat")
    outer = Folder(tmp_path / "outer")
    modules = outer.sentence({"pooling_mode": "mean"})
    modules[0]["path"] = "0_Transformer"
    outer.json("modules.json", modules)
    folder.path.rename(outer.path / "0_Transformer")
    np.testing.assert_array_equal(load(outer.path).encode("the cat"), expected)
    load(outer.path).save(tmp_path / "again")
    np.testing.assert_array_equal(load(tmp_path / "again").encode("the cat"), expected)


@pytest.mark.parametrize(
    ("file", "key", "value"),
    [
        *(("sentence_bert", "max_seq_length", it) for it in (0, -1, 2.5, "9", True)),
        *(
            ("tokenizer", "model_max_length", it)
            for it in (0, -1, 2.5, "9", True, [], np.nan, np.inf)
        ),
    ],
)
def test_a_limit_that_makes_no_sense(folder, file, key, value):
    folder.write()
    folder.sentence({"pooling_mode": "mean"})
    folder.json(f"{file}_config.json", {key: value})
    refused(folder.path, key)


@pytest.mark.parametrize(("limit", "expected"), [(8, 8), (16, 16), (10**9, 16), (None, 16)])
def test_max_seq_length_is_capped_by_the_positions(folder, limit, expected):
    folder.write()
    folder.json("sentence_bert_config.json", {"max_seq_length": limit})
    assert load(folder.path).max_seq_length == expected


@pytest.mark.parametrize(("limit", "expected"), [(8, 8), (50, 50), (None, 32)])
def test_max_seq_length_may_exceed_the_positions_of_a_rotary_model(tmp_path, limit, expected):
    """The model has 32 positions, and its rotations go on after them."""
    path = write_small(tmp_path / "model", {"model_type": "llama", **DECODER})
    (path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": limit}))
    model = load(path)
    assert model.max_seq_length == expected
    with pytest.warns(UserWarning, match=f"1 text was cut to {expected} tokens"):
        assert len(model.trace("the cat " * 40).tokens) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [(8, 8), (8.0, 8), (10**9, 16), (int(1e30), 16), (1e30, 16), (None, 16)],
)
def test_max_seq_length_falls_back_to_model_max_length(folder, given, expected):
    folder.write()
    folder.sentence({"pooling_mode": "mean"})
    assert load(folder.path).max_seq_length == 16
    folder.json("tokenizer_config.json", {"model_max_length": given})
    assert load(folder.path).max_seq_length == expected
    folder.json("sentence_bert_config.json", {"do_lower_case": False})
    assert load(folder.path).max_seq_length == expected
    folder.json("sentence_bert_config.json", {"max_seq_length": 12})
    assert load(folder.path).max_seq_length == 12


def test_model_max_length_is_ignored_without_modules_json(folder):
    folder.write()
    folder.json("tokenizer_config.json", {"model_max_length": 8})
    assert load(folder.path).max_seq_length == 16


def test_do_lower_case_lowercases_texts(folder):
    folder.write()
    text = folder.path.joinpath("tokenizer.json").read_text()
    folder.text("tokenizer.json", text.replace('"lowercase":true', '"lowercase":false'))
    assert load(folder.path).tokenize("The CAT").tokens == ["[CLS]", "[UNK]", "[UNK]", "[SEP]"]
    folder.json("sentence_bert_config.json", {"do_lower_case": True})
    model = load(folder.path)
    assert model.tokenize("The CAT").tokens == ["[CLS]", "the", "cat", "[SEP]"]
    # a special token stays special; the final sigma is not a special case, and offsets are those
    # of the original text, in which a capital may be one letter of two
    assert model.tokenize("The[SEP]CAT").tokens == ["[CLS]", "the", "[SEP]", "cat", "[SEP]"]
    assert model.tokenizer.inner.normalizer.normalize_str("ΟΔΟΣ") == "οδοσ"
    assert model.tokenize("\u0130 CAT").offsets[-2] == (2, 5)
    model.save(folder.path.parent / "saved")
    again = load(folder.path.parent / "saved")
    assert again.tokenizer.rules == model.tokenizer.rules


FOUR, FIVE = ({"model_max_length": length} for length in (4, 5))


def bert_config(folder, values, config="sentence_bert_config.json"):
    """Load an encoder whose sentence_bert_config.json has these values."""
    folder.write()
    folder.sentence({"pooling_mode": "mean"})
    folder.json(config, values)
    return load(folder.path)


@pytest.mark.parametrize(
    ("values", "limits"),
    [
        ({"query_length": 5, "document_length": 7}, (16, 5, 7)),
        ({"max_seq_length": 9, "query_length": 12}, (9, 12, 9)),
        ({"max_seq_length": 9, "query_length": 99}, (9, 16, 9)),  # there are 16 positions
        ({"max_seq_length": 9, "processor_kwargs": {"model_max_length": 6}}, (6, 6, 6)),
        ({"tokenizer_args": {"model_max_length": 6}, "document_length": 4}, (6, 6, 4)),
        ({"query_length": 5, "processing_kwargs": {"text": {"max_length": 8}}}, (8, 8, 8)),
        ({"max_seq_length": 9, "processing_kwargs": {"common": {"max_length": 8}}}, (8, 8, 8)),
        ({"query_length": None, "document_length": None, "processing_kwargs": {}}, (16, 16, 16)),
    ],
)
def test_lengths_in_sentence_bert_config(folder, values, limits):
    """The lengths are those of texts without a task, of queries and of documents."""
    model = bert_config(folder, values)
    assert model.max_seq_length == limits[0]
    calls = (model.encode, model.encode_query, model.encode_document)
    for encode, limit in zip(calls, limits, strict=True):
        with pytest.warns(UserWarning, match=f"1 text was cut to {limit} tokens"):
            assert len(encode("the cat " * 10, output_value="token_embeddings")) == limit


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"transformer_task": "fill-mask"}, "transformer_task is 'fill-mask'"),
        ({"modality_config": {"message": {"method": "forward"}}}, "'message', so .* chat template"),
        ({"modality_config": {"text": {"method_output_name": ["hidden_states", -2]}}}, "_states'"),
        ({"modality_config": {"text": {"method": "encode"}}}, "text.method is 'encode'"),
        ({"processing_kwargs": {"text": {"truncation": False}}}, "text.truncation is False"),
        ({"query_expansion": {"strategy": "fixed", "length": 32}}, "query_expansion.strategy is"),
        ({"tokenizer_name_or_path": "bert-base-cased"}, "tokenizer_name_or_path is 'bert-base"),
        ({"query_length": 0}, "query_length is 0"),
        ({"max_seq_length": 2}, "at most 2 tokens of a text, .* adds 2 tokens to each"),
        *(
            ({"do_lower_case": it}, "bert_config.json: do_lower_case")
            for it in ("yes", 1, 0, [], {})
        ),
        ({"query_length": 2}, "reads at most 2 tokens of a text, and its tokenizer adds 2"),
        ({"processor_kwargs": {"model_max_length": 0.5}}, "model_max_length is 0.5"),
        (
            {"tokenizer_args": FOUR, "processor_kwargs": FIVE},
            "length is 5 and tokenizer_args.model_m",
        ),
    ],
)
def test_values_of_sentence_bert_config_that_qkv_does_not_support(folder, values, words):
    with pytest.raises(ModelError, match=words):
        bert_config(folder, values)


@pytest.mark.parametrize(
    ("values", "unknown"),
    [
        ({"processing_kwargs": {"text": {"add_special_tokens": False}}}, "text.add_special_tokens"),
        ({"processor_kwargs": {"truncation_side": "left"}}, "processor_kwargs.truncation_side"),
        ({"tokenizer_args": {"strip_accents": True}}, "tokenizer_args.strip_accents"),
        ({"config_args": {"num_hidden_layers": 1}}, "config_args.num_hidden_layers"),
        ({"model_kwargs": {"subfolder": "onnx"}}, "model_kwargs.subfolder"),
        ({"max_length": 8, "processing_kwargs": [1]}, "max_length, processing_kwargs"),
    ],
)
def test_other_keys_of_sentence_bert_config_are_named_in_a_warning(folder, values, unknown):
    with pytest.warns(UserWarning, match=rf"_bert_config.json: qkv does not know .*{unknown}: unk"):
        bert_config(folder, values)


def test_keys_of_sentence_bert_config_that_change_no_vector(folder):
    """A warning would be an error here."""
    text = {"method": "forward", "method_output_name": "last_hidden_state"}
    values = {
        "transformer_task": "feature-extraction",
        "modality_config": {"text": text, "image": {"method": "forward"}},
        "module_output_name": "token_embeddings",
        "unpad_inputs": False,
        "processing_kwargs": {
            "text": {"padding": True, "truncation": True},
            "image": {"size": 3},
            "chat_template": {"add_generation_prompt": True},
        },
        "model_args": {"torch_dtype": "float16", "attn_implementation": {"": "eager"}},
        "tokenizer_args": {"use_fast": True, "trust_remote_code": True},
        "config_args": {},
        "do_lower_case": None,
    }
    assert bert_config(folder, values).max_seq_length == 16


def test_a_pooling_key_that_is_unknown_is_named_in_a_warning(folder):
    folder.write()
    folder.sentence({"pooling_mode": "mean", "embedding_dimension": 12, "weights": [1]})
    with pytest.warns(UserWarning, match="1_Pooling/config.json: qkv does not know weights: unkn"):
        load(folder.path)


@pytest.mark.parametrize(
    ("prompts", "words"),
    [
        ({"default_prompt_name": "q"}, "default_prompt_name is 'q'; it must be one of query"),
        ({"default_prompt_name": "q", "prompts": {"query": "q: "}}, "is 'q'; it must be one of"),
        ({"default_prompt_name": 3, "prompts": {"query": "q: "}}, "is 3"),
        ({"prompts": {"query": 3}}, "prompts is"),
    ],
)
def test_invalid_prompts_are_refused(folder, prompts, words):
    folder.write()
    folder.json("config_sentence_transformers.json", {"default_prompt_name": None})
    load(folder.path)
    folder.json("config_sentence_transformers.json", prompts)
    refused(folder.path, words)

"""Tests of loading: heads that are missing, tied or unknown, and checks of tokenizer rules."""

import json
import shutil
import warnings

import numpy as np
import pytest
import safetensors.numpy

import qkv
from qkv.models.files.find import shipped_models

from .small_models import CONFIGS, arrays_of, write_small


def save_file(arrays, path, metadata=None):
    """Replace a file of weights: a loaded model may still read the memory of the old file."""
    path.unlink(missing_ok=True)
    safetensors.numpy.save_file(arrays, path, metadata)


def test_a_model_in_memory_is_saved_first():
    class Llama:
        def save_pretrained(self, folder):
            raise AssertionError("nothing is saved")

    said = (
        r"load: the model has type Llama and is in memory; call save_pretrained\(folder\) on it "
        r"and .* pass the "
    )
    with pytest.raises(TypeError, match=said + r"folder: qkv.load\(folder\)$"):
        qkv.load(Llama())


def test_a_model_loads_without_a_head_if_its_tensors_are_missing(tmp_path):
    folder = write_small(tmp_path / "model", CONFIGS["llama"])
    whole = qkv.load(folder)
    arrays = arrays_of(CONFIGS["llama"])
    del arrays["lm_head.weight"]
    save_file(arrays, folder / "model.safetensors")
    with pytest.warns(UserWarning, match=r"names a head, but the tensor lm_head\.weight is"):
        model = qkv.load(folder)
    ids = [[5, 6, 7]]
    assert model(ids).logits is None
    np.testing.assert_array_equal(model(ids).last_hidden_state, whole(ids).last_hidden_state)
    with pytest.raises(ValueError, match="generate"):
        model.generate([5, 6], max_new_tokens=1)


def test_a_head_matrix_in_the_files_overrides_tied_weights(tmp_path):
    """If the files hold a head matrix, it is used, although the config ties the head to the table.

    The test loads three files with a head matrix. In the first file, the head matrix equals the
    token table. In the second file, the two differ. The third file has no token table.
    """
    config = {**CONFIGS["llama"], "tie_word_embeddings": True}
    folder = write_small(tmp_path / "model", config)
    ids, arrays = [[5, 6, 7]], arrays_of(config)
    table = arrays["embed_tokens.weight"]
    first = qkv.load(folder)(ids).logits

    def logits_with(**others):
        save_file({**arrays, **others}, folder / "model.safetensors")
        model = qkv.load(folder)
        model.save(tmp_path / "copy")
        found = model(ids).logits
        np.testing.assert_array_equal(qkv.load(tmp_path / "copy")(ids).logits, found)
        return found

    np.testing.assert_array_equal(logits_with(**{"lm_head.weight": table.copy()}), first)
    np.testing.assert_array_equal(logits_with(**{"lm_head.weight": -2 * table}), -2 * first)
    del arrays["embed_tokens.weight"]
    np.testing.assert_array_equal(logits_with(**{"lm_head.weight": table}), first)


def with_head(folder, family, head, *parts, before=""):
    """Write and load a model whose class name ends with `head`.

    The file has extra tensors with the names `parts`, for example those of a task head. Return
    three values: the part of the class name before `head`, the model, and the list of warnings.
    """
    config = CONFIGS[family]
    base = config["architectures"][0].partition("For")[0].removesuffix("LMHeadModel")
    config = {**config, "architectures": [base + head]}
    folder = write_small(folder / "model", config)
    arrays = {before + name: array for name, array in arrays_of(config).items()}
    arrays |= {name: np.zeros((2, 8), np.float32) for name in parts}
    save_file(arrays, folder / "model.safetensors", {"format": "pt"})
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model = qkv.load(folder)
    return base, model, [str(one.message) for one in told]


QA = ("ForQuestionAnswering", ["qa_outputs.bias", "qa_outputs.weight"])
_TOWERS = {"clip", "clip_text_model", "clip_vision_model"}  # no class has another head


@pytest.mark.parametrize(
    ("family", "head", "parts"),
    [
        *((family, *QA) for family in CONFIGS if family not in _TOWERS),
        ("albert", "ForMultipleChoice", ["albert.pooler.weight", "classifier.weight"]),
        ("mpnet", "ForNextSentencePrediction", ["cls.seq_relationship.weight"]),
        ("gpt2", "DoubleHeadsModel", ["lm_head.weight", "multiple_choice_head.summary.weight"]),
        ("gpt2", "ForTokenClassification", ["classifier.weight"]),
        ("roberta", "ForCausalLM", ["lm_head.dense.weight"]),
        ("t5", "ForSequenceClassification", ["classification_head.dense.weight"]),
        ("vit", "ForMaskedImageModeling", ["decoder.0.weight"]),
        ("distilbert", "ForWhatIsToCome", []),
        ("distilbert", "WithALayer", ["linear.weight"]),
    ],
)
def test_a_warning_names_a_head_that_is_not_computed(family, head, parts, tmp_path):
    base, model, (said,) = with_head(tmp_path, family, head, *parts)
    assert f"config.json: qkv does not compute the head of {base}{head} (ignored tensors: " in said
    names = {name.rpartition(".")[0] for name in parts}
    assert ", ".join(sorted(names)) in said if parts else "the files lack the head" in said
    assert "the rest of the model works and computes vectors (trace, encode), but no logits" in said
    assert model.design.head is None
    assert set(parts) <= set(model._weights.heads)


@pytest.mark.parametrize("head", ["Model", "EncoderModel", "Backbone"])
def test_a_class_without_a_head_is_loaded_without_a_word(head, tmp_path):
    assert with_head(tmp_path, "electra", head, "pooler.dense.weight")[2] == []


def test_a_question_answering_llama_is_loaded_from_prefixed_tensors(tmp_path):
    _, model, told = with_head(
        tmp_path, "llama", "ForQuestionAnswering", "qa_outputs.weight", before="transformer."
    )
    assert len(told) == 1
    plain = qkv.load(write_small(tmp_path / "plain", CONFIGS["llama"]))
    ids = [[5, 6, 7]]
    np.testing.assert_array_equal(model(ids).last_hidden_state, plain(ids).last_hidden_state)


# parts that qkv does not read


def test_an_adapter_beside_a_model_is_named(tmp_path):
    folder = write_small(tmp_path / "model", CONFIGS["llama"])
    expected = qkv.load(folder)([[5, 6]]).logits
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "some/llama"}')
    save_file({"lora_A.weight": np.ones((2, 2))}, folder / "adapter_model.safetensors")
    (folder / "model.safetensors").rename(folder / "weights.safetensors")
    with pytest.warns(UserWarning, match=r"adapter_config\.json: it is a PEFT adapter, which qkv "):
        model = qkv.load(folder)
    np.testing.assert_array_equal(model([[5, 6]]).logits, expected)


@pytest.mark.parametrize("config", [True, False])
def test_an_adapter_alone_is_not_a_model(tmp_path, config):
    folder = write_small(tmp_path / "model", CONFIGS["llama"])
    (folder / "model.safetensors").unlink()
    if not config:
        (folder / "config.json").unlink()
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "some/llama"}')
    save_file({"lora_A.weight": np.ones((2, 2))}, folder / "adapter_model.safetensors")
    message = r"holds only a PEFT adapter .*merge it into its base model \(some/llama\) with peft"
    with pytest.raises(qkv.ModelError, match=message):
        qkv.load(folder)


def test_heads_for_other_vectors_are_named(tmp_path):
    folder = write_small(tmp_path / "model", CONFIGS["xlm-roberta"])
    for name in ("sparse_linear.pt", "colbert_linear.pt"):
        (folder / name).write_bytes(b"")
    with (
        pytest.warns(UserWarning, match=r"sparse_linear\.pt: .* qkv computes only dense vectors"),
        pytest.warns(UserWarning, match=r"colbert_linear\.pt: .* qkv computes only dense vectors"),
    ):
        qkv.load(folder)


@pytest.mark.parametrize("name", ["LlamaEncoderModel", "LlamaBiModel"])
def test_a_bidirectional_class_of_a_decoder_is_named(tmp_path, name):
    config = {**CONFIGS["llama"], "architectures": [name]}
    with pytest.warns(
        UserWarning, match=f'{name} is not a class.* causal; .* add "is_causal": false'
    ):
        qkv.load(write_small(tmp_path / "model", config))
    config["auto_map"] = {"AutoModel": f"modeling.{name}"}
    with (
        pytest.warns(UserWarning, match="the code that auto_map names; decoders stay causal"),
        pytest.warns(UserWarning, match="attention is causal"),
    ):
        qkv.load(write_small(tmp_path / "model", config))


def test_a_decoder_that_attends_to_both_sides(tmp_path, recwarn):
    config = {**CONFIGS["llama"], "architectures": ["LlamaBiModel"], "is_causal": False}
    model = qkv.load(write_small(tmp_path / "model", config))
    assert not recwarn
    pattern = model.trace([[5, 6, 7]])["pattern", 0]
    assert (pattern > 0).all()
    causal = qkv.load(write_small(tmp_path / "causal", CONFIGS["llama"]))
    assert (causal.trace([[5, 6, 7]])["pattern", 0][:, :, 0, 1:] == 0).all()


def test_code_that_auto_map_names_does_not_make_a_bidirectional_decoder_causal(tmp_path):
    config = {**CONFIGS["qwen2"], "is_causal": False, "auto_map": {"AutoModel": "modeling.X"}}
    with pytest.warns(UserWarning, match="code that auto_map names$"):
        model = qkv.load(write_small(tmp_path / "model", config))
    with pytest.raises(ValueError, match="generate: "):
        model.generate([[5, 6]])


@pytest.mark.parametrize("family", ["t5", "mt5"])
def test_an_encoder_whose_config_names_a_decoder_runs_alone(tmp_path, family):
    folder = write_small(tmp_path / "model", CONFIGS[family])
    ids = [[5, 6, 7]]
    expected = qkv.load(folder)(ids, decoder_input_ids=[[0]]).encoder_last_hidden_state
    arrays = arrays_of(CONFIGS[family])
    save_file({n: x for n, x in arrays.items() if "decoder" not in n}, folder / "model.safetensors")
    with pytest.warns(UserWarning, match="names M?T5ForConditionalGeneration, but the files hold"):
        model = qkv.load(folder)
    np.testing.assert_array_equal(model(ids).last_hidden_state, expected)
    model.save(tmp_path / "saved")
    again = qkv.load(tmp_path / "saved")
    np.testing.assert_array_equal(again(ids).last_hidden_state, expected)


@pytest.fixture
def no_limits(monkeypatch):
    """Make `load` fail if it checks the rules of a tokenizer."""

    def fail(values):
        raise AssertionError("the rules were checked")

    monkeypatch.setattr("qkv.text._tokenizer_limits._check", fail)


@pytest.mark.parametrize("name", shipped_models())
def test_the_rules_of_the_included_models_are_not_checked(name, no_limits):
    assert qkv.load(name).tokenizer is not None
    assert qkv.load(shipped_models()[name]).tokenizer is not None


def test_a_changed_copy_of_an_included_model_is_refused(tmp_path, monkeypatch):
    """The copy has the name of the included model, and stands in the current folder."""
    shutil.copytree(shipped_models()["books"], tmp_path / "books")
    path = tmp_path / "books" / "tokenizer.json"
    rules = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps({**rules, "normalizer": {"type": "Prepend", "prepend": "x" * 5000}}))
    monkeypatch.chdir(tmp_path)
    for name in ("books", path.parent):
        with pytest.raises(qkv.ModelError, match="has 5,000 characters: the limit is 4,096"):
            qkv.load(name)

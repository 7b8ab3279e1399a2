"""Tests of SPLADE, ColBERT and BGE-M3 against sentence-transformers and torch."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import MultiVectorEncoder, SparseEncoder
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.sparse_encoder.modules import SpladePooling
from transformers import BertConfig, BertForMaskedLM, BertModel, XLMRobertaConfig, XLMRobertaModel

import qkv
from qkv.models import ModelError

from .models import scatter
from .sentences import WORDS, tokenizer
from .support import close, texts_from

SIZES = {
    **{"vocab_size": len(WORDS) + 5, "hidden_size": 24, "num_hidden_layers": 2},
    **{"num_attention_heads": 3, "intermediate_size": 30, "max_position_embeddings": 40},
}
TEXTS = [*texts_from(WORDS, 9, 20), "w1", "unknown w3"]
TOKEN = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}


def body(folder: Path, kind: Any, **options: Any) -> Transformer:
    model = kind(BertConfig(**SIZES))
    scatter(model)
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return Transformer(str(folder), **options)


def splade(home: Path, *pooling: Any) -> SparseEncoder:
    """Save a random SPLADE model in the folder `model`."""
    first = body(home / "body", BertForMaskedLM, transformer_task="fill-mask")
    made = SparseEncoder(modules=[first, SpladePooling(*pooling)], device="cpu")
    made.save(str(home / "model"))
    return made


def colbert(home: Path, *modules: Any, expansion: Any = None) -> tuple[qkv.Model, Any]:
    """Save a ColBERT model of a random BERT and these modules; load it with both libraries."""
    first = body(home / "body", BertModel, query_expansion=expansion)
    prompts = {"query": "w7 ", "document": "w8 "}
    theirs = MultiVectorEncoder(modules=[first, *modules], device="cpu", prompts=prompts)
    theirs.save(str(home / "model"))
    return qkv.load(home / "model"), theirs


def same_vectors(ours: qkv.Model, theirs: Any, name: str, **options: Any) -> list[Any]:
    """Compare the vectors of each token that the method `name` gives, and return ours."""
    found = getattr(ours, name)(TEXTS, output_value="token_embeddings", **options)
    for one, other in zip(found, getattr(theirs, name)(TEXTS, convert_to_numpy=True), strict=True):
        close(one, other)
    return found


@pytest.mark.parametrize("pool", ["max", "sum"])
@pytest.mark.parametrize("activation", ["relu", "log1p_relu"])
def test_splade(tmp_path: Path, pool: Any, activation: Any) -> None:
    theirs = splade(tmp_path, pool, activation)
    ours = qkv.load(tmp_path / "model")
    found = ours.encode(TEXTS, batch_size=2)
    assert found.shape == (len(TEXTS), SIZES["vocab_size"])
    assert ours.get_embedding_dimension() == SIZES["vocab_size"]
    expected = theirs.encode(TEXTS, convert_to_sparse_tensor=False).numpy()
    close(found, expected)
    close(ours.similarity(found[:2], found), theirs.similarity(expected[:2], expected).numpy())
    ours.save(tmp_path / "again")
    np.testing.assert_array_equal(qkv.load(tmp_path / "again").encode(TEXTS, batch_size=2), found)


def test_the_module_of_older_files_of_splade(tmp_path: Path) -> None:
    splade(tmp_path)
    expected = qkv.load(tmp_path / "model").encode(TEXTS)
    path = tmp_path / "model" / "modules.json"
    old = "sentence_transformers.sparse_encoder.models.MLMTransformer.MLMTransformer"
    modules = json.loads(path.read_text())
    path.write_text(json.dumps([{**modules[0], "type": old}, modules[1]]))
    (tmp_path / "model" / "sentence_bert_config.json").unlink()
    np.testing.assert_array_equal(qkv.load(tmp_path / "model").encode(TEXTS), expected)


def test_splade_needs_a_head_for_words(tmp_path: Path) -> None:
    splade(tmp_path)
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"architectures": ["BertModel"]}))
    with pytest.raises(ModelError, match="has a SpladePooling but no head for words"):
        qkv.load(tmp_path / "model")


@pytest.mark.parametrize("tasks", [["document"], ["query", "document"]], ids=str)
@pytest.mark.parametrize("last", ["mask", "length"])
def test_colbert(tmp_path: Path, tasks: list[str], last: str) -> None:
    dense = Dense(24, 7, bias=False, activation_function=torch.nn.Identity(), **TOKEN)
    ends = [Normalize(**TOKEN), MultiVectorMask(["w3", "w5", "nowhere"], skiplist_tasks=tasks)]
    ends = ends if last == "mask" else ends[::-1]
    ours, theirs = colbert(tmp_path, dense, *ends)
    for name in ("encode", "encode_query", "encode_document"):
        found = same_vectors(ours, theirs, name)
    assert found[-1].shape == (4, 7)  # without w3: [CLS] w8 [UNK] [SEP]
    with pytest.raises(ValueError, match=r'pass output_value="token_embeddings"'):
        ours.encode(TEXTS)


@pytest.mark.filterwarnings("ignore:.* texts were cut to")
@pytest.mark.parametrize("attend", [False, True])
@pytest.mark.parametrize("strategy", ["fixed", "min"])
def test_the_expanded_queries_of_sentence_transformers(
    tmp_path: Path, strategy: str, attend: bool
) -> None:
    expansion = {"strategy": strategy, "attend": attend, "length": 9}
    dense = Dense(24, 7, bias=False, activation_function=torch.nn.Identity(), **TOKEN)
    modules = [dense, MultiVectorMask(["w3"]), Normalize(**TOKEN)]
    ours, theirs = colbert(tmp_path, *modules, expansion=expansion)
    for name in ("encode", "encode_query", "encode_document"):
        lengths = {*map(len, same_vectors(ours, theirs, name, batch_size=3))}
        assert (min(lengths) == 9) is (name == "encode_query")
        assert (max(lengths) > 9) is (name != "encode_query" or strategy == "min")


@pytest.mark.parametrize(
    "changes", [{"length": 41}, {"token": "nowhere"}], ids=["too long", "unknown token"]
)
def test_an_expansion_that_a_model_cannot_compute(tmp_path: Path, changes: Any) -> None:
    expansion = {"strategy": "min", "length": 9}
    colbert(tmp_path, MultiVectorMask(), Normalize(**TOKEN), expansion=expansion)
    path = tmp_path / "model" / "sentence_bert_config.json"
    values = json.loads(path.read_text())
    values["query_expansion"] |= changes
    path.write_text(json.dumps(values))
    with pytest.raises(ValueError, match="but it has no such token or too few positions"):
        qkv.load(tmp_path / "model").encode_query(TEXTS, output_value="token_embeddings")


@pytest.mark.filterwarnings("ignore:.* texts were cut to")
@pytest.mark.parametrize("attend", [False, True])
@pytest.mark.parametrize("marker", ["w9 ", "[Q] "])
def test_a_colbert_of_pylate(tmp_path: Path, marker: str, attend: bool) -> None:
    """The vectors follow from a few lines of transformers; `[Q] ` is one token, added by PyLate."""
    model, made = BertModel(BertConfig(**SIZES | {"vocab_size": len(tokenizer()) + 1})), tokenizer()
    scatter(model)
    made.add_tokens(["[Q] "])
    model.eval().save_pretrained(tmp_path)
    made.save_pretrained(tmp_path)
    dense = Dense(24, 7, bias=False, activation_function=torch.nn.Identity())
    torch.nn.init.normal_(dense.linear.weight)
    (tmp_path / "1_Dense").mkdir()
    dense.save(str(tmp_path / "1_Dense"))
    config = {"in_features": 24, "out_features": 7, "bias": False}
    config["activation_function"] = "torch.nn.modules.linear.Identity"
    (tmp_path / "1_Dense" / "config.json").write_text(json.dumps(config))
    types = ("sentence_transformers.models.Transformer", "pylate.models.Dense.Dense")
    rows = [
        {"idx": n, "name": str(n), "path": path, "type": kind}
        for n, (path, kind) in enumerate(zip(("", "1_Dense"), types, strict=True))
    ]
    (tmp_path / "modules.json").write_text(json.dumps(rows))
    values = {"model_type": "ColBERT", "query_prefix": marker, "document_prefix": "w8 "}
    values |= {"query_length": 8, "document_length": 12, "attend_to_expansion_tokens": attend}
    values |= {"do_query_expansion": True, "skiplist_words": ["w3", "w5"]}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(values))
    ours = qkv.load(tmp_path)
    ours.save(tmp_path / "again")
    vocabulary = made.get_vocab()
    skip = [vocabulary["w3"], vocabulary["w5"]]
    for model_of_ours in (ours, qkv.load(tmp_path / "again")):
        for task, prefix, limit in (("query", marker, 8), ("document", "w8 ", 12)):
            encode = getattr(model_of_ours, f"encode_{task}")
            found = encode(TEXTS, output_value="token_embeddings", batch_size=3)
            index = vocabulary.get(prefix, vocabulary.get(prefix.strip()))
            for text, vectors in zip(TEXTS, found, strict=True):
                ids = made(text, truncation=True, max_length=limit - 1)["input_ids"]
                ids = [ids[0], index, *ids[1:]]
                mask = [1] * len(ids)
                if task == "query":
                    mask += [int(attend)] * (8 - len(ids))
                    ids += [made.mask_token_id] * (8 - len(ids))
                with torch.inference_mode():
                    given = torch.tensor([ids]), torch.tensor([mask])
                    states = dense.linear(model(*given).last_hidden_state[0])
                states = torch.nn.functional.normalize(states, dim=-1).numpy()
                close(vectors, states if task == "query" else states[~np.isin(ids, skip)])
    with pytest.raises(ValueError, match="a ColBERT model adds tokens that are not counted in"):
        ours.encode_query(TEXTS, output_value="token_embeddings", ablate=[(0, 0)])


def test_a_sparse_vector_of_splade_as_a_dict(tmp_path: Path) -> None:
    splade(tmp_path)
    ours = qkv.load(tmp_path / "model")
    sparse = ours.encode(TEXTS, output_value="sparse")
    for vector, found in zip(ours.encode(TEXTS), sparse, strict=True):
        assert [*found] == np.flatnonzero(vector).tolist()
        close([*found.values()], vector[vector > 0])


def test_the_three_vectors_of_bge_m3(tmp_path: Path) -> None:
    """BGE-M3 is an XLM-R with two linear layers; the reference follows FlagEmbedding's code."""
    folder, sizes = tmp_path / "model", SIZES | {"pad_token_id": 0}
    backbone = XLMRobertaModel(XLMRobertaConfig(**sizes)).eval()
    scatter(backbone)
    backbone.save_pretrained(folder)
    made = tokenizer()
    made.save_pretrained(folder)
    layers = {"sparse_linear": (1, torch.nn.ReLU()), "colbert_linear": (24, torch.nn.Identity())}
    linear = {}
    for name, (size, activation) in layers.items():
        layer = Dense(24, size, activation_function=activation, **TOKEN)
        torch.nn.init.normal_(layer.linear.weight)
        with torch.no_grad():  # about half of the weights are positive
            mean = backbone(torch.arange(5, 35)[None]).last_hidden_state[0].mean(0)
            layer.linear.bias.copy_(-layer.linear.weight @ mean)
        (folder / name).mkdir()
        layer.save(str(folder / name))
        linear[name] = layer.linear
    ours = qkv.load(folder)
    ours.save(tmp_path / "again")
    for model in (ours, qkv.load(tmp_path / "again")):
        sparse = model.encode(TEXTS, output_value="sparse", batch_size=3)
        multi = model.encode(TEXTS, output_value="multi_vector", batch_size=3)
        for text, weights, vectors in zip(TEXTS, sparse, multi, strict=True):
            given = made(text, return_tensors="pt")
            with torch.inference_mode():
                states = backbone(given.input_ids, given.attention_mask).last_hidden_state[0]
                expected = linear["colbert_linear"](states[1:])
                close(vectors, torch.nn.functional.normalize(expected, dim=-1).numpy())
                by_token = torch.relu(linear["sparse_linear"](states))[:, 0].tolist()
            lexical: dict[int, float] = {}
            for token, weight in zip(given.input_ids[0].tolist(), by_token, strict=True):
                if token > 4 and weight > lexical.get(token, 0):
                    lexical[token] = weight
            assert weights.keys() == lexical.keys()
            close([*weights.values()], [lexical[token] for token in weights])
    assert 0 < sum(map(len, sparse)) < sum(map(len, multi)) - len(TEXTS)  # some weights are 0


def test_outputs_that_a_model_does_not_have(tmp_path: Path) -> None:
    body(tmp_path, BertModel)
    model = qkv.load(tmp_path)
    with pytest.raises(ValueError, match=r'output_value is "sparse", but .* has no sparse_linear'):
        model.encode(TEXTS, output_value="sparse")
    with pytest.raises(ValueError, match=r'"multi_vector", but .* has no colbert_linear'):
        model.encode(TEXTS, output_value="multi_vector")

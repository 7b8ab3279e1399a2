"""Tests of modules of plain arithmetic, as sentence-transformers saves them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sentence_transformers.sentence_transformer import modules
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    Dropout,
    LayerNorm,
    Normalize,
    Pooling,
    Router,
    StaticEmbedding,
)
from tokenizers import Tokenizer, models, pre_tokenizers

import qkv
from qkv.models.files._modules_json import READ
from qkv.models.files.sentence import ACTIVATIONS

from .models import scatter
from .sentences import SPECIAL, WORDS, tokenizer
from .support import close
from .test_routers import PROMPTS, TEXTS, both, compare, saved, transformer

KNOWN = len(SPECIAL) + len(WORDS)


def static(dim: int = 16, seed: int = 0) -> StaticEmbedding:
    """Return a random table of embeddings for the sixty words."""
    torch.manual_seed(seed)
    return StaticEmbedding(tokenizer(), embedding_dim=dim)


def normed(dim: int) -> LayerNorm:
    """Return a LayerNorm whose weights differ from the initial ones."""
    found = LayerNorm(dim)
    scatter(found)
    return found


@pytest.mark.parametrize("name", sorted({name.rpartition(".")[2] for name in ACTIVATIONS}))
def test_activations(tmp_path: Path, name: str) -> None:
    """In a linear layer's config, qkv accepts both import paths of an activation class.

    Examples are torch.nn.modules.activation.ReLU and torch.nn.ReLU.
    """
    dense = Dense(16, 12, activation_function=getattr(torch.nn, name)())
    with torch.no_grad():
        dense.linear.weight *= 4  # outputs far from 0 on both sides
    ours, theirs = saved(tmp_path, static(), dense)
    compare(ours, theirs, [None])
    path = tmp_path / "1_Dense/config.json"
    values = json.loads(path.read_text())
    assert values["activation_function"] in ACTIVATIONS
    path.write_text(json.dumps(values | {"activation_function": f"torch.nn.{name}"}))
    compare(*both(tmp_path), [None])


@pytest.mark.parametrize("size", [16, 9])
@pytest.mark.parametrize("bias", [False, True])
def test_the_residual_input_is_added(tmp_path: Path, size: int, bias: bool) -> None:
    """The input is added as it is, or through a linear layer if the sizes differ."""
    dense = Dense(16, size, bias=bias, use_residual=True)
    ours, theirs = saved(tmp_path / "one", static(), dense)
    compare(ours, theirs, [None])
    ours.save(tmp_path / "two")
    compare(*both(tmp_path / "two"), [None])


ORDERS = {
    "static": lambda: [static()],
    "static, norm, dropout, length 1": lambda: [static(), normed(16), Dropout(0.3), Normalize()],
    "length 1 in the middle": lambda: [static(), Normalize(), Dense(16, 8), normed(8)],
    "length 1 twice": lambda: [static(), Normalize(), Dense(16, 8), Normalize()],
}


@pytest.mark.parametrize("order", ORDERS)
def test_orders(tmp_path: Path, order: str) -> None:
    ours, theirs = saved(tmp_path / "one", *ORDERS[order](), prompts=PROMPTS)
    compare(ours, theirs, [None, "query", "document"])
    for options in ({"truncate_dim": 3}, {"prompt": "w5 ", "normalize_embeddings": True}):
        close(ours.encode(TEXTS, **options), theirs.encode(TEXTS, **options))
    ours.save(tmp_path / "two")
    compare(*both(tmp_path / "two"), [None, "query"])


@pytest.mark.parametrize("order", ["norm", "norm and dropout behind a linear layer"])
def test_behind_a_transformer(tmp_path: Path, order: str) -> None:
    more = [normed(24)] if order == "norm" else [Dense(24, 7), normed(7), Dropout(0.1)]
    ours, theirs = saved(tmp_path / "one", transformer(tmp_path / "bert"), Pooling(24), *more)
    compare(ours, theirs, [None])
    ours.save(tmp_path / "two")
    compare(*both(tmp_path / "two"), [None])


def test_texts_of_a_table(tmp_path: Path) -> None:
    """A table adds no special tokens, keeps spaces as tokens, and gives zeros for an empty text."""
    words = {"[UNK]": 0, " ": 1, "a": 2, "b": 3}
    letters = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    letters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    ours, theirs = saved(tmp_path, StaticEmbedding(letters, embedding_dim=5), normed(5))
    texts = ["", "a", " a ", "  ", "ab", "a b", "abba", "ü"]
    close(ours.encode(texts), theirs.encode(texts))
    close(ours.encode(""), theirs.encode(""))
    close(ours.encode([" a "], prompt=" b "), theirs.encode([" a "], prompt=" b "))
    assert [len(ours.tokenize(text)) for text in texts[:4]] == [0, 1, 3, 2]
    trace = ours.trace("abba")
    assert trace.names() == ["hook_embed", "hook_full_embed"]
    table = theirs[0].embedding.weight.detach().numpy()
    np.testing.assert_array_equal(trace["hook_embed"][0], table[[2, 3, 3, 2]])


@pytest.mark.filterwarnings("ignore:.* cut to 6 tokens:UserWarning")
def test_a_table_whose_tokenizer_cuts(tmp_path: Path) -> None:
    made = static()
    made.tokenizer.enable_truncation(6)
    ours, theirs = saved(tmp_path / "one", made)
    assert ours.max_seq_length == 6
    compare(ours, theirs, [None])
    ours.save(tmp_path / "two")
    compare(*both(tmp_path / "two"), [None])
    assert qkv.load(tmp_path / "two").max_seq_length == 6


@pytest.mark.parametrize("parts", [(), ("mapping",), ("weights",), ("mapping", "weights")])
@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.float64])
def test_tables_of_model2vec(tmp_path: Path, parts: tuple[str, ...], kind: torch.dtype) -> None:
    """A table may map several tokens to one row, and may have a factor for each token.

    Therefore, a table may have fewer rows than the vocabulary has tokens.
    """
    saved(tmp_path / "one", static())
    torch.manual_seed(3)
    rows = 20 if "mapping" in parts else KNOWN
    tensors = {"embeddings": torch.randn(rows, 16).to(kind)}
    tensors |= {"mapping": torch.randint(0, rows, (KNOWN,))} if "mapping" in parts else {}
    tensors |= {"weights": torch.rand(KNOWN)} if "weights" in parts else {}
    save_file(tensors, tmp_path / "one/model.safetensors")
    ours, theirs = both(tmp_path / "one")
    bound = 2e-3 if kind == torch.float16 else 1e-5  # sentence-transformers adds vectors in float16
    close(ours.encode(TEXTS), theirs.encode(TEXTS), bound)
    ours.save(tmp_path / "two")
    close(both(tmp_path / "two")[1].encode(TEXTS), theirs.encode(TEXTS), bound)


@pytest.mark.parametrize("default", ["query", "document"])
def test_a_route_of_a_table(tmp_path: Path, default: str) -> None:
    """A table encodes queries, and a transformer encodes documents, as is usual with routers."""
    routes = Router.for_query_document(
        [static(24), Dense(24, 24)],
        [transformer(tmp_path / "bert"), Pooling(24)],
        default_route=default,
    )
    ours, theirs = saved(tmp_path / "one", routes, Normalize(), prompts=PROMPTS)
    compare(ours, theirs)
    ours.save(tmp_path / "two")
    compare(*both(tmp_path / "two"))
    assert ours.routes["query"].num_layers == 0
    assert ours.routes["document"].num_layers == 2


@pytest.mark.parametrize(
    "modes", [["mean", "cls"], ["lasttoken", "max"], ["mean", "mean"], "weightedmean"]
)
@pytest.mark.parametrize("include", [True, False])
def test_pooling_in_the_order_of_the_file(
    tmp_path: Path, modes: str | list[str], include: bool
) -> None:
    pooling = Pooling(24, modes, include_prompt=include)
    bert = transformer(tmp_path / "bert")
    compare(*saved(tmp_path / "one", bert, pooling, prompts=PROMPTS), [None, "query"])


@pytest.mark.parametrize("name", sorted({*modules.__all__} - {"Module", "InputModule", "Asym"}))
def test_every_module_is_read_or_refused(tmp_path: Path, name: str) -> None:
    """If qkv does not support a module, the error is one line and names the module."""
    if name in (*READ, "Router"):
        return
    saved(tmp_path, static())
    path = tmp_path / "modules.json"
    about = {"idx": 1, "name": "1", "path": "1", "type": f"sentence_transformers.models.{name}"}
    path.write_text(json.dumps([*json.loads(path.read_text()), about]))
    with pytest.raises(qkv.models.ModelError, match=f"not support the module .*{name}; ") as said:
        qkv.load(tmp_path)
    assert len(str(said.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("config", "number", "words"),
    [
        ({"module_input_name": "token_embeddings"}, 2, "token_embeddings"),
        ({"dimension": 15}, 1, r"norm.weight is F32 \(16,\), but config.json requires floats of"),
        ({"type": "my.models.Dense"}, 0, "does not support the module my.models.Dense"),
    ],
)
def test_what_does_not_fit(tmp_path: Path, config: Any, number: int, words: str) -> None:
    saved(tmp_path, static(), normed(16), Normalize())
    names = ["modules.json", "1_LayerNorm/config.json", "2_Normalize/config.json"]
    path = tmp_path / names[number]
    values = json.loads(path.read_text())
    changed = [values[0], values[1] | config] if number == 0 else values | config
    path.write_text(json.dumps(changed))
    with pytest.raises(qkv.models.ModelError, match=words):
        qkv.load(tmp_path)


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"other": torch.zeros(3, 2)}, "the tensors embedding.weight and embeddings are missing"),
        ({"embedding.weight": torch.zeros(3)}, r"embedding.weight is F32 \(3,\): it must have 2"),
        (
            {"embeddings": torch.zeros(3, 2), "mapping": torch.tensor([0, 3])},
            "mapping has row numbers from 0 to 3 and embeddings has 3 rows; "
            "row numbers must be from 0 to 2",
        ),
        ({"embeddings": torch.zeros(3, 2), "weights": torch.zeros(2)}, "weights has 2 numbers"),
    ],
)
def test_tables_that_are_broken(tmp_path: Path, tensors: Any, words: str) -> None:
    saved(tmp_path, static())
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(qkv.models.ModelError, match=words):
        qkv.load(tmp_path)


def test_a_table_refuses_calls_that_need_layers_or_logits(tmp_path: Path) -> None:
    """Calls that need layers, heads or logits raise errors; edits of embeddings work."""
    ours, _ = saved(tmp_path, static())
    assert "0 layers, 0 heads" in repr(ours)
    with pytest.raises(ValueError, match="layer 0"):
        ours.encode(TEXTS, ablate=[(0, 0)])
    for call in (ours.predict, ours.generate):
        with pytest.raises(ValueError, match=r"no head|does not predict"):
            call("w1")
    vectors = ours.encode(TEXTS, edit={"hook_embed": lambda x: 2 * x})
    np.testing.assert_allclose(vectors, 2 * ours.encode(TEXTS), rtol=1e-6)

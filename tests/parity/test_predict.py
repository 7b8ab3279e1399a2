"""Tests that a model's guesses are the softmax of transformers' logits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertForMaskedLM, LlamaConfig, LlamaForCausalLM

import qkv

from .models import double, made

V = 97
MASK = 9
SIZES: dict[str, Any] = {
    "vocab_size": V,
    "hidden_size": 24,
    "num_attention_heads": 3,
    "num_hidden_layers": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 32,
}
IDS = {"bert": [4, MASK, 21, 3, 50, MASK, 96], "llama": [4, 8, 21, 3, 50, 60, 96]}


def pair_of(folder: Path, kind: str, dtype: torch.dtype) -> Any:
    """Return a random model in both libraries. The words of the model are w0, w1 and so on."""
    if kind == "bert":
        pair = made(folder, BertForMaskedLM, BertConfig(**SIZES), dtype)
    else:
        config = LlamaConfig(**SIZES, num_key_value_heads=1, tie_word_embeddings=False)
        pair = made(folder, LlamaForCausalLM, config, dtype)
    words = {f"w{i}": i for i in range(V) if i != MASK} | {"[MASK]": MASK}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    pair.ours = qkv.load(folder, dtype="float64" if dtype is torch.float64 else "float32")
    return pair


def near(pair: Any, found: Any, logits: torch.Tensor) -> None:
    """Assert that one position's words and probabilities are those of its logits (V,)."""
    shares = torch.softmax(logits.double(), -1).numpy()
    order = np.argsort(-shares, kind="stable")
    names = ["[MASK]" if i == MASK else f"w{i}" for i in order]
    assert len(found) == V
    if pair.is_double:
        assert [word for word, _ in found] == names
    by_word = dict(found)
    pair.near(np.array([by_word[name] for name in names]), shares[order], "probabilities")


@pytest.mark.parametrize("kind", IDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_guesses(tmp_path: Path, kind: str, dtype: torch.dtype) -> None:
    pair, ids = pair_of(tmp_path, kind, dtype), IDS[kind]
    with torch.inference_mode(), double(pair.is_double):
        logits = pair.theirs(torch.tensor([ids])).logits[0]
    places = [1, 5] if kind == "bert" else [-1]
    text = " ".join("[MASK]" if i == MASK else f"w{i}" for i in ids)
    for given in (text, ids, np.array([ids])):
        found = pair.ours.predict(given, top_k=V)
        assert len(found) == len(places)
        for row, place in zip(found, places, strict=True):
            near(pair, row, logits[place])
    trace = pair.ours.trace(text, logits=True)
    pair.near(trace["logits"][0], logits, "logits of the trace")
    last = "normalized_resid_post" if kind == "bert" else "resid_post"
    pair.near(pair.ours.unembed(trace[last, -1])[0], logits, "unembed")


@pytest.mark.parametrize("kind", IDS)
def test_guesses_with_an_ablated_head_and_a_masked_word(tmp_path: Path, kind: str) -> None:
    """Both libraries make the same guesses in a run with an ablated head and a masked word.

    In transformers, the head's columns of the output projection are 0, and the attention mask is 0
    at the word.
    """
    pair, ids = pair_of(tmp_path, kind, torch.float64), IDS[kind]
    body = pair.theirs.base_model
    layer = body.encoder.layer[1] if kind == "bert" else body.layers[1]
    project = layer.attention.output.dense if kind == "bert" else layer.self_attn.o_proj
    with torch.inference_mode(), double(True):
        project.weight[:, 16:] = 0  # the last of three heads of 8
        mask = torch.ones(1, len(ids), dtype=torch.int64)
        mask[0, 3] = 0
        positions = torch.arange(len(ids))[None]
        logits = pair.theirs(torch.tensor([ids]), attention_mask=mask, position_ids=positions)
    found = pair.ours.predict(ids, top_k=V, ablate=[(1, 2)], hide="w3")
    near(pair, found[-1], logits.logits[0, 5 if kind == "bert" else -1])
    edited = pair.ours([ids], ablate=[(1, 2)], hide=[3])
    seen = [i for i in range(len(ids)) if i != 3]  # the masked position's own output has no meaning
    pair.near(edited.logits[0, seen], logits.logits[0, seen].numpy(), "logits with edits")

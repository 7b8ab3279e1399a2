"""Files that do not hold the output matrix as their config says: beside the table, or alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import qkv

from .models import Pair, compare_batch, compare_saved, made

SIZES = {
    "vocab_size": 37,
    **{"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1},
    **{"num_attention_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0},
    **{"bos_token_id": 1, "eos_token_id": 2},
}
DECODER = {**SIZES, "num_key_value_heads": 1, "head_dim": 8}
TABLE = "model.embed_tokens.weight"
# The class, its sizes, the output matrix and the token table.
FAMILIES: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "Albert": (
        *("MaskedLM", {**SIZES, "hidden_size": 32, "embedding_size": 16}),
        *("predictions.decoder", "albert.embeddings.word_embeddings"),
    ),
    "Bert": ("MaskedLM", SIZES, "cls.predictions.decoder", "bert.embeddings.word_embeddings"),
    "Bloom": (
        *("CausalLM", {"vocab_size": 37, "hidden_size": 16, "n_layer": 1, "n_head": 2}),
        *("lm_head", "transformer.word_embeddings"),
    ),
    "DistilBert": (
        "MaskedLM",
        {"vocab_size": 37, "dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 24},
        *("vocab_projector", "distilbert.embeddings.word_embeddings"),
    ),
    "Electra": (
        *("MaskedLM", {**SIZES, "hidden_size": 32, "embedding_size": 16}),
        *("generator_lm_head", "electra.embeddings.word_embeddings"),
    ),
    "GPT2": (
        "LMHeadModel",
        {"vocab_size": 37, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64},
        *("lm_head", "transformer.wte"),
    ),
    "Gemma2": ("CausalLM", DECODER, "lm_head", "model.embed_tokens"),
    "GptOss": (
        "CausalLM",
        {**DECODER, "num_local_experts": 2, "num_experts_per_tok": 1},
        *("lm_head", "model.embed_tokens"),
    ),
    "Llama": ("CausalLM", DECODER, "lm_head", "model.embed_tokens"),
    "MPNet": ("MaskedLM", SIZES, "lm_head.decoder", "mpnet.embeddings.word_embeddings"),
    "ModernBert": (
        "MaskedLM",
        {**SIZES, "cls_token_id": 1, "sep_token_id": 2},
        *("decoder", "model.embeddings.tok_embeddings"),
    ),
    "NomicBert": (
        *("MaskedLM", SIZES),
        *("cls.predictions.decoder", "nomic_bert.embeddings.word_embeddings"),
    ),
    "Roberta": ("MaskedLM", SIZES, "lm_head.decoder", "roberta.embeddings.word_embeddings"),
}


def changed(folder: Path, pair: Pair, change: Any) -> Pair:
    """The same again with other tensors in the file."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    theirs = type(pair.theirs).from_pretrained(folder, attn_implementation="eager").eval()
    return Pair(qkv.load(folder), theirs, pair.bound)


def tied(folder: Path, family: str) -> tuple[Pair, str, str]:
    """A tied model, and the names of output matrix and token table."""
    top, sizes, output, table = FAMILIES[family]
    config = getattr(transformers, f"{family}Config")(**sizes, tie_word_embeddings=True)
    name = f"{family}{top}" if top == "LMHeadModel" else f"{family}For{top}"
    pair = made(folder, getattr(transformers, name), config)
    return pair, f"{output}.weight", f"{table}.weight"


@pytest.mark.parametrize("family", FAMILIES)
def test_an_output_matrix_that_is_not_the_table_it_should_be(tmp_path: Path, family: str) -> None:
    """transformers warns and uses it."""
    pair, output, _ = tied(tmp_path / "theirs", family)
    other = torch.randn(37, 16)
    again = changed(tmp_path / "theirs", pair, lambda tensors: tensors.update({output: other}))
    assert torch.equal(again.theirs.get_output_embeddings().weight, other)
    compare_batch(again, [9, 4], "right")
    compare_saved(again, tmp_path / "ours")
    ids = np.array([[4, 8, 15]])
    saved = qkv.load(tmp_path / "ours")(ids).logits
    np.testing.assert_array_equal(saved, again.ours(ids).logits)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_table_twice(tmp_path: Path, family: str) -> None:
    pair, output, table = tied(tmp_path, family)
    again = changed(tmp_path, pair, lambda tensors: tensors.update({output: tensors[table] + 0}))
    assert "head.out_proj.weight" not in again.ours.parameters
    compare_batch(again, [9, 4], "right")


@pytest.mark.parametrize("family", [*FAMILIES, "T5"])
def test_the_table_under_the_name_of_the_output_matrix(tmp_path: Path, family: str) -> None:
    if family == "T5":
        sizes = {"vocab_size": 37, "d_model": 16, "num_layers": 1, "num_heads": 2, "d_ff": 24}
        config = transformers.T5Config(**sizes, decoder_start_token_id=0)
        pair = made(tmp_path / "theirs", transformers.T5ForConditionalGeneration, config)
        output, table = "lm_head.weight", "shared.weight"
    else:
        pair, output, table = tied(tmp_path / "theirs", family)
    again = changed(
        tmp_path / "theirs", pair, lambda tensors: tensors.update({output: tensors.pop(table)})
    )
    ids = np.array([[4, 8, 15, 16]])
    inputs = (ids, None, ids) if family == "T5" else (ids,)
    expected = pair.ours(*inputs).logits
    assert expected is not None
    np.testing.assert_array_equal(again.ours(*inputs).logits, expected)
    compare_saved(again, tmp_path / "ours")


@pytest.mark.parametrize("family", ["Bert", "Roberta", "MPNet"])
@pytest.mark.parametrize("both", [True, False])
def test_the_bias_of_words_that_is_not_the_one_it_should_be(
    tmp_path: Path, family: str, both: bool
) -> None:
    pair, output, _ = tied(tmp_path / "theirs", family)
    home = output.removesuffix("decoder.weight")

    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors[f"{home}decoder.bias"] = torch.randn(37)
        if not both:
            del tensors[f"{home}bias"]

    again = changed(tmp_path / "theirs", pair, change)
    compare_batch(again, [9, 4], "right")
    compare_saved(again, tmp_path / "ours")


def test_an_output_matrix_of_another_size(tmp_path: Path) -> None:
    _, output, _ = tied(tmp_path, "Llama")
    tensors = load_file(tmp_path / "model.safetensors") | {output: torch.randn(36, 16)}
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(qkv.ModelError, match=r"lm_head\.weight has shape \(36, 16\) and must have"):
        qkv.load(tmp_path)


def test_beside_images(tmp_path: Path) -> None:
    """Where the output matrix has a name of its own."""
    config = transformers.Gemma3Config(
        text_config={**DECODER, "head_dim": 8},
        vision_config={
            **{"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2},
            **{"intermediate_size": 8, "image_size": 8, "patch_size": 4},
        },
        mm_tokens_per_image=4,
        tie_word_embeddings=True,
    )
    pair = made(tmp_path, transformers.Gemma3ForConditionalGeneration, config)
    tables = [name for name in load_file(tmp_path / "model.safetensors") if "embed_tokens" in name]
    output = "language_model.lm_head.weight"
    assert tables == ["language_model.model.embed_tokens.weight"]
    alone = changed(tmp_path, pair, lambda t: t.update({output: t.pop(*tables)}))
    ids = np.array([[4, 8, 15]])
    expected = pair.ours(ids).logits
    assert expected is not None
    np.testing.assert_array_equal(alone.ours(ids).logits, expected)
    both = changed(tmp_path, pair, lambda t: t.update({tables[0]: t[output], output: -t[output]}))
    np.testing.assert_array_equal(both.ours(ids).logits, -expected)
    compare_batch(both, [9, 4], "right")

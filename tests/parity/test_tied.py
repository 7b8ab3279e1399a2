"""Tests of files that hold an output matrix although the config ties it to the token table.

A file holds the output matrix in addition to the token table, or in place of the table.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import qkv
from models.sizes import SMALL
from qkv.models.families import PUBLISHED

from .models import Pair, compare_batch, compare_saved, made

# Families without an output matrix over words, or with tests of their own.
OTHERS = {
    **dict.fromkeys(("clip", "clip_text_model", "clip_vision_model"), "gives vectors"),
    "dinov2": "gives classes of images",
    "vit": "gives classes of images",
    "gemma3": "test_beside_images",
    "mt5": "as t5",
    "t5": "reads one text and writes another: test_the_table_under_the_name_of_the_output_matrix",
}
WITH_BIAS = [
    "bert",
    "roberta",
    "xlm-roberta",
    "camembert",
    "mpnet",
    "albert",
    "nomic_bert",
    "deberta-v2",
]
FAMILIES = [name for name in PUBLISHED if name not in OTHERS]


def changed(folder: Path, pair: Pair, change: Any) -> Pair:
    """Change the tensors of the file, and load the model again with both libraries."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    theirs = type(pair.theirs).from_pretrained(folder, attn_implementation="eager").eval()
    return Pair(qkv.load(folder), theirs, pair.bound)


def tied(folder: Path, family: str, **changes: Any) -> tuple[Pair, str, str]:
    """Return a tied model, and the names of the output matrix and the token table in files."""
    sizes, kinds = SMALL[family]
    kind = getattr(transformers, kinds[0])
    apart = kind(kind.config_class(**sizes, **changes, tie_word_embeddings=False))
    apart.save_pretrained(folder)
    stored = load_file(folder / "model.safetensors")
    output, table = (
        next(name for name, tensor in stored.items() if torch.equal(tensor, part.weight))
        for part in (apart.get_output_embeddings(), apart.get_input_embeddings())
    )
    config = kind.config_class(**sizes, **changes, tie_word_embeddings=True)
    return made(folder, kind, config), output, table


@pytest.mark.parametrize("family", FAMILIES)
def test_an_output_matrix_that_differs_from_the_tied_table(tmp_path: Path, family: str) -> None:
    """An output matrix that differs from the tied table is used, as in transformers."""
    pair, output, _ = tied(tmp_path / "theirs", family)
    other = torch.randn_like(pair.theirs.get_output_embeddings().weight)
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


@pytest.mark.parametrize("family", [*FAMILIES, "t5", "mt5"])
def test_the_table_under_the_name_of_the_output_matrix(tmp_path: Path, family: str) -> None:
    is_pair = family in ("t5", "mt5")
    pair, output, table = tied(tmp_path / "theirs", family)
    if is_pair:  # transformers never saves an output matrix of T5 or mT5 beside the token table
        output = "lm_head.weight"
    again = changed(
        tmp_path / "theirs", pair, lambda tensors: tensors.update({output: tensors.pop(table)})
    )
    ids = np.array([[4, 8, 15, 16]])
    inputs = (ids, None, ids) if is_pair else (ids,)
    expected = pair.ours(*inputs).logits
    assert expected is not None
    np.testing.assert_array_equal(again.ours(*inputs).logits, expected)
    compare_saved(again, tmp_path / "ours")


@pytest.mark.parametrize("family", WITH_BIAS)
@pytest.mark.parametrize("both", [True, False])
def test_output_bias_under_the_name_decoder_bias(tmp_path: Path, family: str, both: bool) -> None:
    pair, output, _ = tied(tmp_path / "theirs", family)
    home = output.removesuffix("decoder.weight")

    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors[f"{home}decoder.bias"] = torch.randn(pair.theirs.config.vocab_size)
        if not both:
            del tensors[f"{home}bias"]

    again = changed(tmp_path / "theirs", pair, change)
    compare_batch(again, [9, 4], "right")
    compare_saved(again, tmp_path / "ours")


def test_an_output_matrix_of_another_size(tmp_path: Path) -> None:
    _, output, _ = tied(tmp_path, "llama")
    tensors = load_file(tmp_path / "model.safetensors") | {output: torch.randn(36, 24)}
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(qkv.ModelError, match=r"lm_head\.weight has shape \(36, 24\), but must"):
        qkv.load(tmp_path)


def test_beside_images(tmp_path: Path) -> None:
    """In a multimodal model, the output matrix is read under its own name."""
    config = transformers.Gemma3Config(**SMALL["gemma3"][0], tie_word_embeddings=True)
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

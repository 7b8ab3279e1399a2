"""Tests that transformers opens models trained by qkv.learn, and their tokenizers."""

from pathlib import Path

import pytest
import torch
import transformers

import qkv
from qkv.learn import TextRun, train_on_text

from .support import close

TEXT = "the cat sat on the mat and the dog ran to the river bank\n" * 40
IDS = [[5, 9, 7, 11, 6, 8]]


@pytest.fixture(params=["masked", "causal"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    (tmp_path / "corpus.txt").write_text(TEXT, encoding="utf-8")
    run = TextRun(
        corpus=(str(tmp_path / "corpus.txt"),),
        objective=request.param,
        **{"layers": 2, "heads": 2, "dim": 16, "vocabulary": 300, "length": 32},
        **{"steps": 8, "tokens_per_step": 64, "rate": 0.01},
    )
    train_on_text(run, tmp_path / request.param)
    return tmp_path / request.param


def test_transformers_opens_what_was_trained(folder: Path) -> None:
    kind = {
        "masked": transformers.AutoModelForMaskedLM,
        "causal": transformers.AutoModelForCausalLM,
    }[folder.name]
    theirs, about = kind.from_pretrained(folder, output_loading_info=True)
    assert not about["missing_keys"]
    assert not about["unexpected_keys"]
    theirs.eval()
    with torch.no_grad():
        expected = theirs(torch.tensor(IDS)).logits
    ours = qkv.load(folder)(IDS).logits
    assert expected.std() > 0.05
    close(ours, expected)


def test_the_tokenizer_is_the_same(folder: Path) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    text = "the cat sat on the river bank"
    assert theirs(text)["input_ids"] == qkv.load(folder).tokenize(text).ids.tolist()
    if folder.name == "masked":
        assert theirs.mask_token == "[MASK]"
    else:
        assert theirs.eos_token == "<|endoftext|>"

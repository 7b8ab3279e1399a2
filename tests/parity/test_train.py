"""Tests that transformers opens models trained by qkv.learn, and tests of AdamW against torch."""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import qkv
from qkv.learn import AdamW, Network, TextRun, fresh_model, train_on_text

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


def test_adamw_is_that_of_torch() -> None:
    config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 30}
    sizes = {"n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 8}
    network = Network(fresh_model({**config, **sizes}, dtype=np.float64))
    settings = {"betas": (0.8, 0.95), "eps": 1e-6}
    ours = AdamW(network, decay=0.1, clip=0.5, **settings)
    tensors = {name: torch.tensor(array) for name, array in network.parameters.items()}
    for tensor in tensors.values():
        tensor.requires_grad_(True)
    groups = [
        {"params": [t for t in tensors.values() if t.ndim > 1], "weight_decay": 0.1},
        {"params": [t for t in tensors.values() if t.ndim == 1], "weight_decay": 0.0},
    ]
    theirs = torch.optim.AdamW(groups, **settings)
    rng = np.random.default_rng(0)
    for rate, size in ((0.01, 1.0), (0.02, 1e-3), (0.005, 10.0)):
        network.gradient[:] = rng.standard_normal(network.gradient.shape) * size
        for name, tensor in tensors.items():
            tensor.grad = torch.tensor(network.gradients[name])
        torch.nn.utils.clip_grad_norm_(tensors.values(), 0.5)
        for group in theirs.param_groups:
            group["lr"] = rate
        theirs.step()
        ours.step(rate)
    for name, tensor in tensors.items():
        close(network.parameters[name], tensor.detach().numpy(), 1e-6)

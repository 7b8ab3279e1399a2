"""Tests of trained models from the Hub against transformers in float64.

The tests compare ids, hidden states, weights and logits. `make real` downloads about 2 GB once.
Without a network, each test is skipped with a message.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import qkv
from parity.models import Pair, compare_trace, double

TEXTS = ["The bank of the river was steep.", "Attention is a weighted mean, and 1 + 1 = 2."]
MODELS = {  # each model, and the class of transformers that loads it
    "openai-community/gpt2": "AutoModelForCausalLM",
    "EleutherAI/pythia-70m": "AutoModelForCausalLM",
    "HuggingFaceTB/SmolLM-135M": "AutoModelForCausalLM",  # has the architecture of Llama
    "google-bert/bert-base-uncased": "AutoModelForMaskedLM",
    "sentence-transformers/all-MiniLM-L6-v2": "AutoModel",
    "answerdotai/ModernBERT-base": "AutoModelForMaskedLM",
}
FILES = ["*.json", "*.safetensors", "*.txt", "*/config.json"]


def fetched(name: str) -> Path:
    """Return the folder of a downloaded model, or skip the test if the download fails."""
    hub = pytest.importorskip("huggingface_hub")
    try:
        return Path(hub.snapshot_download(name, allow_patterns=FILES, ignore_patterns=["onnx/*"]))
    except Exception as error:  # any error: of the Hub's library, HTTP or the system
        pytest.skip(f"{name} cannot be fetched: {type(error).__name__}: {str(error)[:200]}")


@pytest.mark.parametrize("name", MODELS)
def test_a_trained_model_agrees_with_transformers(name: str) -> None:
    agree(fetched(name), MODELS[name])


def agree(folder: Path, kind: str) -> None:
    """Check that both libraries agree on each text."""
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
    with double(True):
        theirs = getattr(transformers, kind).from_pretrained(
            folder, dtype=torch.float64, attn_implementation="eager"
        )
    pair = Pair(qkv.load(folder, dtype=np.float64), theirs.eval(), 1e-9)
    for text in TEXTS:
        ids = tokenizer(text, return_tensors="pt")
        assert pair.ours.tokenize(text).ids.tolist() == ids["input_ids"][0].tolist()
        with torch.inference_mode(), double(True):
            outputs = theirs(**ids, output_hidden_states=True, output_attentions=True)
        compare_trace(pair, pair.ours.trace(text), outputs)
        if "logits" in outputs:
            found = pair.ours(ids["input_ids"].numpy()).logits
            assert found is not None
            pair.near(found, outputs.logits, "logits")

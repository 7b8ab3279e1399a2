"""Trained models of the Hub against transformers in float64: ids, hidden states, weights, logits.

`make real` downloads about 2 GB once. Without a network each test says so and is skipped.
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
MODELS = {  # what transformers loads it with
    "openai-community/gpt2": "AutoModelForCausalLM",
    "EleutherAI/pythia-70m": "AutoModelForCausalLM",
    "HuggingFaceTB/SmolLM-135M": "AutoModelForCausalLM",  # a Llama
    "google-bert/bert-base-uncased": "AutoModelForMaskedLM",
    "sentence-transformers/all-MiniLM-L6-v2": "AutoModel",
    "answerdotai/ModernBERT-base": "AutoModelForMaskedLM",
}
FILES = ["*.json", "*.safetensors", "*.txt", "*/config.json"]


def fetched(name: str) -> Path:
    """The folder of a model; without a network the test ends here, and says so."""
    hub = pytest.importorskip("huggingface_hub")
    try:
        return Path(hub.snapshot_download(name, allow_patterns=FILES, ignore_patterns=["onnx/*"]))
    except Exception as error:  # of the Hub's library, of HTTP, of the system: all the same here
        pytest.skip(f"{name} cannot be fetched: {type(error).__name__}: {str(error)[:200]}")


@pytest.mark.parametrize("name", MODELS)
def test_a_trained_model_gives_what_transformers_gives(name: str) -> None:
    agree(fetched(name), MODELS[name])


def agree(folder: Path, kind: str) -> None:
    """Both libraries, on each text."""
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

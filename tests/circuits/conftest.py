"""Small models of several kinds, of random float64 weights, and what is refused of others."""

from collections.abc import Callable
from pathlib import Path

import pytest

import qkv
from models.small_models import CONFIGS, write_small
from models.support import CONFIG

BERT = {**CONFIG, "architectures": ["BertForMaskedLM"]}
BLOOM = {
    **{"model_type": "bloom", "architectures": ["BloomForCausalLM"], "vocab_size": 30},
    **{"hidden_size": 12, "n_layer": 2, "n_head": 4},
}
KINDS = {
    **{name: CONFIGS[name] for name in ("gpt2", "llama", "gemma2", "t5", "vit")},
    **{"bert": BERT, "bloom": BLOOM},
    "modernbert": {**CONFIGS["modernbert"], "architectures": ["ModernBertForMaskedLM"]},
    "headless": CONFIG,
    "classes": CONFIGS["modernbert"],
}


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], qkv.Model]:
    """A model of one of these kinds, loaded once."""
    found: dict[str, qkv.Model] = {}

    def model(kind: str) -> qkv.Model:
        if kind not in found:
            folder: Path = tmp_path_factory.mktemp(kind) / "model"
            found[kind] = qkv.load(str(write_small(folder, KINDS[kind], seed=5)), dtype="float64")
        return found[kind]

    return model

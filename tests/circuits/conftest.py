"""Small models of several kinds with random float64 weights, including kinds that are refused."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import qkv
from models.small_models import CONFIGS, write_small
from models.support import CONFIG
from qkv.models.families import design_of
from qkv.models.files.names import Storage

BERT = {**CONFIG, "architectures": ["BertForMaskedLM"]}
BLOOM = {
    **{"model_type": "bloom", "architectures": ["BloomForCausalLM"], "vocab_size": 30},
    **{"hidden_size": 12, "n_layer": 2, "n_head": 4},
}
GPT_OSS = {  # sinks, windows, experts
    **{name: value for name, value in CONFIGS["llama"].items() if name != "mlp_bias"},
    **{"model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"]},
    **{"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 4},
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
KINDS = {
    **CONFIGS,
    **{"bert": BERT, "bloom": BLOOM, "gpt_oss": GPT_OSS},
    "opt_projected": {**CONFIGS["opt"], "word_embed_proj_dim": 10},  # and hidden_size is 24
    "modernbert": {**CONFIGS["modernbert"], "architectures": ["ModernBertForMaskedLM"]},
    "headless": CONFIG,
    "classes": CONFIGS["modernbert"],
}


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], qkv.Model]:
    """Return a function that loads a model of a kind, once for each kind."""
    found: dict[str, qkv.Model] = {}

    def model(kind: str) -> qkv.Model:
        if kind not in found:
            folder: Path = tmp_path_factory.mktemp(kind) / "model"
            found[kind] = (
                parallel()
                if kind == "parallel"
                else qkv.load(str(write_small(folder, KINDS[kind], seed=5)), dtype="float64")
            )
        return found[kind]

    return model


def parallel() -> qkv.Model:
    """Return a decoder whose MLPs and attention read the same input, with an output bias."""
    config = CONFIGS["gpt2"]
    design, names = design_of(config, "config.json")
    head = replace(design.head, tied=False, bias=True)
    design = replace(design, parallel=True, head=head)
    rng = np.random.default_rng(5)
    parameters = {
        name: rng.standard_normal(shape) * 0.5 + ("norm" in name) for name, shape in design.shapes()
    }
    return qkv.Model(
        name="parallel", config=config, design=design, weights=Storage(names, parameters)
    )

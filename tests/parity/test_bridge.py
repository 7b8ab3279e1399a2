"""Tests of the names of TransformerLens's bridge against the modules that the bridge wraps."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from qkv.circuits import SAE

from .models import Pair, made

V, D = 97, 24
IDS = [5, 9, 31, 7, 60, 9]
SIZES: dict[str, Any] = {
    **{"vocab_size": V, "hidden_size": D, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "intermediate_size": 40},
}
# The modules of layer 1 (`*`), by the name of the bridge's component. The bridge has a `hook_in`
# and a `hook_out` for each. Modules that hold queries, keys and values together are not here.
GPT2 = {
    **{"": "transformer.h.1", "ln1": "*.ln_1", "attn": "*.attn", "attn.o": "*.attn.c_proj"},
    **{"ln2": "*.ln_2", "mlp": "*.mlp", "mlp.in": "*.mlp.c_fc", "mlp.out": "*.mlp.c_proj"},
    **{"ln_final": "transformer.ln_f", "unembed": "lm_head"},
}
NEOX = {
    **{"": "gpt_neox.layers.1", "ln1": "*.input_layernorm", "attn": "*.attention"},
    **{"attn.o": "*.attention.dense", "ln2": "*.post_attention_layernorm", "mlp": "*.mlp"},
    **{"mlp.in": "*.mlp.dense_h_to_4h", "mlp.out": "*.mlp.dense_4h_to_h"},
    **{"ln_final": "gpt_neox.final_layer_norm", "unembed": "lm_head"},
}
GEMMA2 = {
    **{"": "model.layers.1", "ln1": "*.input_layernorm", "attn": "*.self_attn"},
    **{f"attn.{name}": f"*.self_attn.{name}_proj" for name in "qkvo"},
    **{"ln1_post": "*.post_attention_layernorm", "ln2": "*.pre_feedforward_layernorm"},
    **{"mlp": "*.mlp", "mlp.gate": "*.mlp.gate_proj", "mlp.in": "*.mlp.up_proj"},
    **{"mlp.out": "*.mlp.down_proj", "ln2_post": "*.post_feedforward_layernorm"},
    **{"ln_final": "model.norm", "unembed": "lm_head"},
}
FAMILIES: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {
    "gpt2": ("GPT2LMHeadModel", {"vocab_size": V, "n_embd": D, "n_head": 4, "n_layer": 2}, GPT2),
    "gpt_neox": ("GPTNeoXForCausalLM", {**SIZES, "rotary_pct": 0.7}, NEOX),
    "gemma2": (
        "Gemma2ForCausalLM",
        {**SIZES, "num_key_value_heads": 2, "head_dim": 6, "final_logit_softcapping": None},
        GEMMA2,
    ),
}
# One factor of a gated MLP alone reads these; a trace has no such activation.
ABSENT = ("mlp.gate.hook_in", "mlp.in.hook_in")
CASES = [
    (family, f"{part}.hook_{side}".removeprefix("."))
    for family, (_, _, modules) in FAMILIES.items()
    for part in modules
    for side in ("in", "out")
    if not (family == "gemma2" and f"{part}.hook_{side}" in ABSENT)
]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    """A random model of each family in both libraries."""
    found = {}
    for family, (kind, config, _) in FAMILIES.items():
        found[family] = made(tmp_path_factory.mktemp(family), kind, config, torch.float32)
        found[family].bound = 2e-5
    return found


@torch.no_grad()
def run(
    model: PreTrainedModel, modules: dict[str, str], name: str, added: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the values that a component reads or returns, and the logits with `added` to them."""
    part, _, side = name.rpartition("hook_")
    path = modules[part.removesuffix(".")].replace("*", modules[""])
    kept: list[torch.Tensor] = []

    def change(value: Any) -> Any:
        first = value[0] if isinstance(value, tuple) else value
        kept.append(first.detach().clone())
        new = first if added is None else first + added.reshape(first.shape)
        return (new, *value[1:]) if isinstance(value, tuple) else new

    def before(module: Any, args: Any, kwargs: Any) -> Any:
        if args:
            return (change(args[0]), *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": change(kwargs["hidden_states"])}

    module = model.get_submodule(path)
    hook = (
        module.register_forward_pre_hook(before, with_kwargs=True)
        if side == "in"
        else module.register_forward_hook(lambda module, args, out: change(out))
    )
    with hook:
        logits = model(torch.tensor([IDS])).logits
    return kept[0], logits


@pytest.mark.parametrize(("family", "name"), CASES, ids=" ".join)
def test_a_name_of_the_bridge_means_what_its_component_reads_or_returns(
    pairs: dict[str, Pair], family: str, name: str
) -> None:
    pair, modules = pairs[family], FAMILIES[family][2]
    outside = name.startswith(("ln_final", "unembed"))
    full = name if outside else f"blocks.1.{name}"
    given, _ = run(pair.theirs, modules, name)
    if name == "unembed.hook_out":
        trace = pair.ours.trace(IDS, names=[], logits=True)
        pair.near(trace[full], given, name)
        assert trace["hook_unembed"] is trace[full]
        return
    trace = pair.ours.trace(IDS, names=[full])
    pair.near(trace[full].reshape(given.shape), given, name)
    added = torch.randn(given.shape, generator=torch.Generator().manual_seed(3))
    _, logits = run(pair.theirs, modules, name, added)
    edit = {full: lambda x: x + added.numpy().reshape(x.shape)}
    pair.near(pair.ours.trace(IDS, edit=edit, logits=True)["logits"], logits, name)
    assert np.abs(logits.numpy() - pair.ours.trace(IDS, logits=True)["logits"]).max() > 1e-2


def test_the_factors_of_a_gated_mlp_have_no_inputs_of_their_own(pairs: dict[str, Pair]) -> None:
    trace = pairs["gemma2"].ours.trace(IDS)
    for name in ABSENT:
        with pytest.raises(KeyError, match=r"there is no .*; the nearest are"):
            pairs["gemma2"].ours.trace(IDS, names=f"blocks.1.{name}")
    # This trace has not kept the output of the attention before its norm.
    with pytest.raises(KeyError, match=r"attn\.hook_out"):
        trace["blocks.1.attn.hook_out"]


@pytest.mark.parametrize("name", ["hook_out", "attn.hook_in", "mlp.hook_in", "ln2.hook_in"])
def test_an_sae_at_a_name_of_the_bridge_is_spliced(pairs: dict[str, Pair], name: str) -> None:
    pair = pairs["gpt2"]
    rng = np.random.default_rng(0)
    encoder, decoder = rng.standard_normal((D, 30)), rng.standard_normal((30, D))
    sae = SAE(encoder, decoder, at=f"blocks.1.{name}")
    given, _ = run(pair.theirs, GPT2, name)
    features = torch.relu(given @ torch.tensor(encoder, dtype=torch.float32))
    decoded = features @ torch.tensor(decoder, dtype=torch.float32)
    _, logits = run(pair.theirs, GPT2, name, decoded - given)
    trace = pair.ours.trace(IDS, edit={sae.at: sae}, logits=True)
    pair.near(trace["logits"], logits, "logits")
    pair.near(trace["sae_acts_post", 1], features, "features")
    assert trace[f"blocks.1.{name}.hook_sae_acts_post"] is trace["sae_acts_post", 1]

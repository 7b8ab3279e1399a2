"""Activation patching: every place and every head of every layer, one at a time."""

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

import qkv
from benchmarks.common import Row, Way, faster
from benchmarks.models import in_transformers, in_type, largest, random_model
from benchmarks.peers import from_torch, needs, torch
from qkv.circuits import attribution_patch, patch

GPT2 = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "vocab_size": 50257,
    "n_embd": 768,
    "n_layer": 6,
    "n_head": 12,
    "n_positions": 1024,
}
NAME = "GPT-2's shape, 6 of 12 layers"
METRIC = (-1, 11, 12)
ONCE = True  # a sweep of the others takes half a minute
ENVIRONMENT = {"TQDM_DISABLE": "1"}  # TransformerLens draws a bar for each sweep


def rows(shrink: int = 1) -> Iterator[Row]:
    """Two texts whose second tokens differ, so that nearly every patch changes something."""
    config = GPT2 if shrink == 1 else GPT2 | {"n_layer": 2, "n_embd": 96, "vocab_size": 600}
    model = random_model(config)
    exact = in_type(model, "float64")
    lens, hooked = in_transformer_lens(model), in_transformers(model, "AutoModelForCausalLM")
    sweeps = {"TransformerLens": (lens_sweep, lens), "hooks": (hooks_sweep, hooked)}
    for at, length in (("resid_pre", 16), ("z", 16), ("resid_pre", 32)):
        clean = np.random.default_rng(0).integers(20, 500, max(4, length // shrink))
        corrupted = clean.copy()
        corrupted[1] += 1
        texts = {"clean": clean, "corrupted": corrupted, "at": at}
        ours = {"metric": METRIC, **texts}
        error = near(patch(exact, **ours))
        ways = {"qkv": Way(partial(patch, model, **ours), error)}
        for name, (sweep, peer) in sweeps.items():
            ways[name] = peer and Way(partial(sweep, peer, **texts), error, 1e-3)
        first = partial(attribution_patch, model, **ours)
        ways["to first order"] = Way(first, near(attribution_patch(exact, **ours)))
        goals = (
            faster("TransformerLens", 3.0),
            faster("hooks", None),
            faster("qkv", None, way="to first order"),
        )
        yield Row(f"{NAME}, {len(clean)} tokens, {at}", ways, goals, rounds=3)


def near(truth: np.ndarray) -> Callable[[Any], float]:
    """What a sweep is off by at most, as a share of how far its numbers lie apart."""
    middle = truth.mean()
    error = largest(truth - middle)
    return lambda found: error(np.asarray(found, np.float64) - middle)


@needs("transformer_lens")
def in_transformer_lens(model: qkv.Model) -> Any:
    """The same model in TransformerLens."""
    from transformer_lens.model_bridge import TransformerBridge

    with tempfile.TemporaryDirectory() as folder:
        model.save(folder)
        return TransformerBridge.boot_transformers(folder, device="cpu")


def lens_sweep(model: Any, *, clean: np.ndarray, corrupted: np.ndarray, at: str) -> np.ndarray:
    """What TransformerLens has for it, which runs the whole model for each patch."""
    from transformer_lens import patching

    kind = {"resid_pre": "resid_pre", "z": "attn_head_out_all_pos"}[at]
    sweep = getattr(patching, f"get_act_patch_{kind}")
    one, other = (torch().from_numpy(ids)[None] for ids in (clean, corrupted))
    with torch().no_grad():
        _, cache = model.run_with_cache(one)
        return from_torch(sweep(model, other, cache, of))


def hooks_sweep(model: Any, *, clean: np.ndarray, corrupted: np.ndarray, at: str) -> np.ndarray:
    """The same by hand, with a hook of torch on transformers' model."""
    one, other = (torch().from_numpy(ids)[None] for ids in (clean, corrupted))
    blocks, heads = model.transformer.h, model.config.n_head
    modules = [block if at == "resid_pre" else block.attn.c_proj for block in blocks]
    kept: list[Any] = []

    def run(ids: Any, module: Any, hook: Callable[[Any], Any]) -> Any:
        handle = module.register_forward_pre_hook(lambda _, given: (hook(given[0]), *given[1:]))
        try:
            return model(ids).logits
        finally:
            handle.remove()

    def keep(x: Any) -> Any:
        kept.append(x.clone())
        return x

    for module in modules:
        run(one, module, keep)
    count = len(clean) if at == "resid_pre" else heads
    found = np.zeros((len(modules), count))
    for layer, module in enumerate(modules):
        size = kept[layer].shape[-1] // heads
        for number in range(count):
            where = (slice(None), number)
            if at == "z":
                where = (..., slice(number * size, (number + 1) * size))

            def put_in(x: Any, where: Any = where, clean: Any = kept[layer]) -> Any:
                x = x.clone()
                x[where] = clean[where]
                return x

            found[layer, number] = of(run(other, module, put_in))
    return found


def of(logits: Any) -> Any:
    """`METRIC` of logits (1, T, V)."""
    place, token, other = METRIC
    return logits[0, place, token] - logits[0, place, other]

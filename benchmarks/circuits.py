"""Activation patching of each position and head, and exact scores of all edges between parts."""

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

import qkv
from benchmarks.common import Row, Way, faster
from benchmarks.models import in_transformers, in_type, largest, random_model
from benchmarks.peers import from_torch, needs, torch
from qkv.circuits import Graph, attribution_patch, edges, patch, path

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
KIND = "AutoModelForCausalLM"
ONCE = True  # not measured again on one thread, because another library's sweep takes 30 seconds
ENVIRONMENT = {"TQDM_DISABLE": "1"}  # TransformerLens shows a progress bar for each sweep


def rows(shrink: int = 1) -> Iterator[Row]:
    """Yield rows for two texts that differ only in the second token.

    The second token affects the activations of all later positions, so most patches change the
    metric.
    """
    config = GPT2 if shrink == 1 else GPT2 | {"n_layer": 2, "n_embd": 96, "vocab_size": 600}
    model = random_model(config)
    exact = in_type(model, "float64")
    lens, hooked = in_transformer_lens(model), in_transformers(model, KIND)
    wide = in_transformers(model, KIND, "float64")
    sweeps = {"TransformerLens": (lens_sweep, lens), "hooks": (hooks_sweep, hooked)}
    for at, length in (("resid_pre", 16), ("z", 16), ("resid_pre", 32)):
        clean = np.random.default_rng(0).integers(20, 500, max(4, length // shrink))
        corrupted = clean.copy()
        corrupted[1] += 1
        texts = {"clean": clean, "corrupted": corrupted, "at": at}
        ours = {"metric": METRIC, **texts}
        error = near(hooks_sweep(wide, **texts) if wide else np.asarray(patch(exact, **ours)))
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
    yield edge_row(model, exact, hooked, shrink)


def edge_row(model: qkv.Model, exact: qkv.Model, hooked: Any, shrink: int) -> Row:
    """Make the table row for the scores of all edges.

    The row compares the time of qkv with the time of a computation with torch hooks.
    """
    clean = np.random.default_rng(0).integers(20, 500, max(4, 16 // shrink))
    corrupted = clean.copy()
    corrupted[1] += 1
    texts = {"clean": clean, "corrupted": corrupted}
    ours = partial(edges, model, **texts, metric=METRIC)
    layers = model.num_layers
    some = [
        ("embed", "attn.0.3.v"),
        ("attn.0.7", f"attn.{layers - 1}.2.q"),
        ("mlp.0", f"attn.{layers - 1}.5.k"),
        ("attn.0.1", "mlp.0"),
        ("embed", f"mlp.{layers - 1}"),
        (f"attn.{layers - 1}.4", "logits"),
    ]
    truth = np.array(
        [path(exact, *texts.values(), sender=s, receivers=r, metric=METRIC) for s, r in some]
    )

    def error(found: Any) -> float:
        """Return the largest error of edge scores, divided by the range of the scores."""
        scores = found if isinstance(found, dict) else {edge[:2]: edge[2] for edge in found.edges}
        return near(truth)([scores[pair] for pair in some])

    first = partial(ours, method="eap")
    true_first = edges(exact, **texts, metric=METRIC, method="eap")
    pairs = [edge[:2] for edge in true_first.edges]

    def scores_of(graph: Graph) -> list[float]:
        return [graph.score(*pair) for pair in pairs]

    first_error = near(np.array(scores_of(true_first)))
    ways = {
        "qkv": Way(ours, error),
        "hooks": hooked and Way(partial(hooks_edges, hooked, **texts), error, 1e-3),
        "to first order": Way(first, lambda graph: first_error(scores_of(graph))),
    }
    goals = (faster("hooks", 2.0), faster("qkv", None, way="to first order"))
    return Row(f"{NAME}, {len(clean)} tokens, {len(pairs)} edges", ways, goals, rounds=2)


def near(truth: np.ndarray) -> Callable[[Any], float]:
    """Return a function that computes a sweep's largest error, relative to the range of `truth`."""
    middle = truth.mean()
    error = largest(truth - middle)
    return lambda found: error(np.asarray(found, np.float64) - middle)


@needs("transformer_lens")
def in_transformer_lens(model: qkv.Model) -> Any:
    """Load the same model in TransformerLens."""
    from transformer_lens.model_bridge import TransformerBridge

    with tempfile.TemporaryDirectory() as folder:
        model.save(folder)
        return TransformerBridge.boot_transformers(folder, device="cpu")


def lens_sweep(model: Any, *, clean: np.ndarray, corrupted: np.ndarray, at: str) -> np.ndarray:
    """Patch with TransformerLens, which runs the whole model for each patch."""
    from transformer_lens import patching

    kind = {"resid_pre": "resid_pre", "z": "attn_head_out_all_pos"}[at]
    sweep = getattr(patching, f"get_act_patch_{kind}")
    one, other = (torch().from_numpy(ids)[None] for ids in (clean, corrupted))
    with torch().no_grad():
        _, cache = model.run_with_cache(one)
        return from_torch(sweep(model, other, cache, of))


def hooks_sweep(model: Any, *, clean: np.ndarray, corrupted: np.ndarray, at: str) -> np.ndarray:
    """Patch the transformers model with one torch hook for each patch."""
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


def hooks_edges(
    model: Any, *, clean: np.ndarray, corrupted: np.ndarray
) -> dict[tuple[str, str], float]:
    """Score all edges with torch hooks, with one batch for each receiver.

    Each batch starts at the receiver's block, not at the first block of the model.
    """
    blocks, count = model.transformer.h, model.config.n_head

    def kept(ids: np.ndarray) -> dict[str, list[Any]]:
        """Return inputs of blocks and MLPs, and outputs of heads and MLPs, for each layer."""
        found: dict[str, list[Any]] = {"pre": [], "mid": [], "z": [], "mlp": []}
        hooks = []
        for block in blocks:
            for name, part in (("pre", block), ("mid", block.ln_2), ("z", block.attn.c_proj)):
                keep = found[name].append
                hooks.append(part.register_forward_pre_hook(lambda _, x, keep=keep: keep(x[0])))
            keep = found["mlp"].append
            hooks.append(block.mlp.register_forward_hook(lambda _, __, y, keep=keep: keep(y)))
        try:
            model(torch().from_numpy(ids)[None])
        finally:
            for hook in hooks:
                hook.remove()
        return found

    def rest(x: Any, first: int) -> np.ndarray:
        """Run the block with index `first` and all later blocks, and return the metric."""
        for block in blocks[first:]:
            x = block(x)
            x = x[0] if isinstance(x, tuple) else x
        position, token, other = METRIC
        logits = model.lm_head(model.transformer.ln_f(x[:, position]))
        return from_torch(logits[:, token] - logits[:, other])

    found: dict[tuple[str, str], float] = {}
    with torch().no_grad():
        one, two = kept(clean), kept(corrupted)
        base = rest(one["pre"][0], 0)
        senders, changes = ["embed"], [two["pre"][0] - one["pre"][0]]

        def put(receiver: str, values: np.ndarray) -> None:
            found.update({(s, receiver): v for s, v in zip(senders, values - base, strict=True)})

        for layer, block in enumerate(blocks):
            deltas = torch().cat(changes)
            joined = block.attn.c_attn(block.ln_1(one["pre"][layer] + deltas))
            size = joined.shape[-1] // 3 // count
            for number in range(3 * count):
                columns = slice(number * size, (number + 1) * size)

                def put_in(
                    _: Any, __: Any, y: Any, columns: Any = columns, new: Any = joined
                ) -> Any:
                    y[..., columns] = new[..., columns]
                    return y

                hook = block.attn.c_attn.register_forward_hook(put_in)
                values = rest(one["pre"][layer].repeat(len(deltas), 1, 1), layer)
                hook.remove()
                put(f"attn.{layer}.{number % count}.{'qkv'[number // count]}", values)
            weight = block.attn.c_proj.weight.view(count, size, -1)
            z = (two["z"][layer] - one["z"][layer]).unflatten(-1, (count, size))
            changes += list(torch().einsum("bthd,hdm->hbtm", z, weight))
            senders += [f"attn.{layer}.{head}" for head in range(count)]
            mid = one["mid"][layer]
            put(
                f"mlp.{layer}",
                rest(mid + block.mlp(block.ln_2(mid + torch().cat(changes))), layer + 1),
            )
            changes.append(two["mlp"][layer] - one["mlp"][layer])
            senders.append(f"mlp.{layer}")
        last = one["mid"][-1] + one["mlp"][-1]
        put("logits", rest(last + torch().cat(changes), len(blocks)))
    return found


def of(logits: Any) -> Any:
    """Compute `METRIC` from logits (1, T, V): the difference between two tokens' logits."""
    position, token, other = METRIC
    return logits[0, position, token] - logits[0, position, other]

"""Tests of edges, paths and circuits against torch hooks and autograd in transformers."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch

from qkv.circuits import Graph, discover, edges, path

from .hooks import BLOCKS, edited, inner
from .models import Pair, double, made
from .test_circuits import (
    CLEAN,
    CORRUPTED,
    FAMILIES as OTHERS,
    HEADS,
    LAYERS,
    METRIC,
    SIZES,
    metric_of,
)

FAMILIES = {name: OTHERS[name] for name in ("gpt2", "llama", "gpt_neox")}
FAMILIES["gemma2"] = (
    "Gemma2ForCausalLM",
    {
        **{**SIZES, "num_key_value_heads": 2, "head_dim": 6, "sliding_window": 4},
        **{"query_pre_attn_scalar": 6, "attn_logit_softcapping": 2.0},
        "final_logit_softcapping": 3.0,
    },
)
PAIRS = [(name, "float32") for name in ("gpt2", "llama", "gpt_neox")]
PAIRS += [(name, "float64") for name in FAMILIES]
NORMS = {"gpt2": ("ln_1", "ln_2"), "gemma2": ("input_layernorm", "pre_feedforward_layernorm")}
USUAL = ("input_layernorm", "post_attention_layernorm")
LAST = {
    "gpt2": ("transformer.ln_f", "lm_head"),
    "gpt_neox": ("gpt_neox.final_layer_norm", "lm_head"),
}
Live = dict[Any, torch.Tensor]
# Takes a receiver's name and the values that the run has computed so far. Returns the tensor to add
# to the receiver's input, or None.
Add = Callable[[str, Live], torch.Tensor | None]


class Torch:
    """A transformers model; the input of each head and of each MLP can be changed separately.

    Shared key heads are repeated, so that each query head has its own.
    """

    def __init__(self, model: Any) -> None:
        self.family = model.config.model_type
        self.model = model
        if model.config.to_dict().get("num_key_value_heads", HEADS) != HEADS:
            self.model = self.repeated(model)
        self.blocks = inner(self.model, BLOCKS[self.family])
        self.parallel = self.family == "gpt_neox"

    def repeated(self, model: Any) -> Any:
        """Return the same model with as many key heads as query heads."""
        config = type(model.config)(**model.config.to_dict() | {"num_key_value_heads": HEADS})
        config._attn_implementation = "eager"
        found = type(model)(config).to(model.dtype).eval()
        size, state = config.head_dim, model.state_dict()
        for name, array in state.items():
            if ".k_proj." in name or ".v_proj." in name:
                heads = array.unflatten(0, (-1, size))
                state[name] = heads.repeat_interleave(HEADS // len(heads), 0).flatten(0, 1)
        found.load_state_dict(state)
        return found

    def projected(self, block: Any, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the queries, keys and values (1, T, H, d) of a residual stream."""
        x = getattr(block, NORMS.get(self.family, USUAL)[0])(x)
        if self.family == "gpt2":
            parts = block.attn.c_attn.forward(x).chunk(3, -1)
            parts = [part.unflatten(-1, (HEADS, -1)) for part in parts]
        elif self.family == "gpt_neox":
            joined = block.attention.query_key_value.forward(x)
            parts = joined.unflatten(-1, (HEADS, -1)).chunk(3, -1)
        else:
            modules = (getattr(block.self_attn, f"{kind}_proj") for kind in "qkv")
            parts = [module.forward(x).unflatten(-1, (HEADS, -1)) for module in modules]
        return dict(zip("qkv", parts, strict=True))

    def results(self, block: Any, z: torch.Tensor) -> torch.Tensor:
        """Return each head's contribution (1, T, H, D) to the stream, from its z (1, T, H, d)."""
        if self.family == "gpt2":
            weight = block.attn.c_proj.weight
        elif self.family == "gpt_neox":
            weight = block.attention.dense.weight.T
        else:
            weight = block.self_attn.o_proj.weight.T
        each = torch.einsum("bthd,hdm->bthm", z, weight.unflatten(0, (HEADS, -1)))
        if self.family != "gemma2":
            return each
        norm, raw = block.post_attention_layernorm, each.sum(2)
        scale = (raw.square().mean(-1) + norm.eps).rsqrt()
        return each * scale[:, :, None, None] * (1 + norm.weight)

    def fed(self, block: Any, x: torch.Tensor) -> torch.Tensor:
        """Return what an MLP adds to the residual stream, from the stream that it reads."""
        x = block.mlp.forward(getattr(block, NORMS.get(self.family, USUAL)[1])(x))
        # `forward` skips the hook of the norm
        return block.post_feedforward_layernorm.forward(x) if self.family == "gemma2" else x

    def run(
        self, ids: Any, add: Add | None = None, embeds: Any = None, texts: int = 1
    ) -> tuple[Any, Live]:
        """Return the logits (texts, T, V), and each sender's contribution (texts, T, D)."""
        live: Live = {}
        changes: dict[tuple[str, int], Any] = {}

        def more(name: str) -> torch.Tensor | None:
            return None if add is None else add(name, live)

        for layer in range(LAYERS):

            def pre(x: Any, layer: int = layer) -> Any:
                if layer == 0:
                    x = x if embeds is None else embeds
                    live["embed"] = x
                live["pre", layer] = x
                return x

            def heads(x: Any, kind: str, layer: int = layer) -> Any:
                each = list(x.unbind(2))
                for head in range(HEADS):
                    change = more(f"attn.{layer}.{head}.{kind}")
                    if change is not None:
                        read = live["pre", layer] + change
                        each[head] = self.projected(self.blocks[layer], read)[kind][:, :, head]
                return torch.stack(each, 2)

            def gives(z: Any, layer: int = layer) -> Any:
                results = self.results(self.blocks[layer], z)
                live.update({f"attn.{layer}.{head}": results[:, :, head] for head in range(HEADS)})
                return z

            def out(x: Any, layer: int = layer) -> Any:
                live["mid", layer] = live["pre", layer] + x
                return x

            def feeds(x: Any, layer: int = layer) -> Any:
                change = more(f"mlp.{layer}")
                if change is not None:
                    base = live["pre" if self.parallel else "mid", layer]
                    x = self.fed(self.blocks[layer], base + change)
                live[f"mlp.{layer}"] = x
                return x

            changes["resid_pre", layer] = pre
            for kind in "qkv":
                changes[kind, layer] = lambda x, kind=kind, heads=heads: heads(x, kind)
            changes["z", layer], changes["attn_out", layer] = gives, out
            changes["mlp_out", layer] = feeds

        def last(x: Any) -> Any:
            live["last"] = x
            return x

        changes["resid_post", LAYERS - 1] = last
        with edited(self.model, self.family, changes):
            logits = self.model(torch.tensor(ids).repeat(texts, 1)).logits
        change = more("logits")
        if change is not None:
            norm, head = LAST.get(self.family, ("model.norm", "lm_head"))
            logits = inner(self.model, head)(inner(self.model, norm)(live["last"] + change))
            if self.family == "gemma2":
                logits = 3.0 * torch.tanh(logits / 3.0)
        return logits, live

    def metric(self, ids: Any, add: Add | None = None, texts: int = 1) -> Any:
        """Run a batch of `texts` copies of the ids, and return `METRIC` of each copy, (texts,)."""
        with torch.no_grad():
            logits = self.run(ids, add, texts=texts)[0]
        return np.array([float(metric_of(one[None])) for one in logits])


class Both(Pair):
    """One model in both libraries, its graph of edges, and each sender's change between runs."""

    def __init__(self, pair: Pair) -> None:
        super().__init__(pair.ours, pair.theirs, 1e-10 if pair.is_double else 2e-5)
        with double(self.is_double), torch.no_grad():
            self.torch = Torch(self.theirs)
            clean, corrupted = (self.torch.run(ids)[1] for ids in (CLEAN, CORRUPTED))
        self.senders = [name for name in clean if isinstance(name, str) and name != "last"]
        self.corrupted = corrupted
        self.deltas = {name: corrupted[name] - clean[name] for name in self.senders}
        self.graphs: dict[str, Graph] = {}

    def graph(self, method: str) -> Graph:
        """Return all edges, scored once for each method."""
        if method not in self.graphs:
            self.graphs[method] = edges(self.ours, CLEAN, CORRUPTED, metric=METRIC, method=method)
        return self.graphs[method]

    def near(self, found: Any, expected: Any, what: str) -> None:
        super().near(np.asarray(found, np.float64), np.asarray(expected, np.float64), what)


@pytest.fixture(scope="module", params=PAIRS, ids=" ".join)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Both:
    """A random model of a family in both libraries."""
    family, dtype = request.param
    kind, config = FAMILIES[family]
    folder = tmp_path_factory.mktemp(family)
    return Both(made(folder, kind, config, getattr(torch, dtype)))


def expected_edges(parallel: bool) -> list[tuple[str, str]]:
    """Return every pair of sender and receiver that may have an edge."""
    before, found = ["embed"], []
    for layer in range(LAYERS):
        heads = [f"attn.{layer}.{head}" for head in range(HEADS)]
        readers = [f"{head}.{kind}" for head in heads for kind in "qkv"]
        found += [(sender, receiver) for receiver in readers for sender in before]
        found += [(s, f"mlp.{layer}") for s in (before if parallel else [*before, *heads])]
        before += [*heads, f"mlp.{layer}"]
    return [*found, *((sender, "logits") for sender in before)]


def scores_of(graph: Graph, pairs: list[tuple[str, str]]) -> np.ndarray:
    assert {edge[:2] for edge in graph.edges} == set(pairs)
    return np.array([graph.score(*pair) for pair in pairs])


def test_exact_edges_and_paths(both: Both) -> None:
    pairs = expected_edges(both.torch.parallel)
    expected = np.zeros(len(pairs))
    with double(both.is_double):
        for receiver in dict.fromkeys(receiver for _, receiver in pairs):
            mine = [number for number, pair in enumerate(pairs) if pair[1] == receiver]
            each = torch.cat([both.deltas[pairs[number][0]] for number in mine])

            def add(name: str, _: Live, each: Any = each, receiver: str = receiver) -> Any:
                return each if name == receiver else None

            expected[mine] = both.torch.metric(CLEAN, add, len(mine))
        expected -= both.torch.metric(CLEAN)
    both.near(scores_of(both.graph("exact"), pairs), expected, "exact")
    assert np.abs(expected).max() > 1e-2
    by_function = edges(both.ours, CLEAN, CORRUPTED, metric=metric_of)
    both.near(scores_of(by_function, pairs), expected, "by a function")
    for number in range(0, len(pairs), 17):
        sender, receiver = pairs[number]
        about = {"sender": sender, "receivers": receiver, "metric": METRIC}
        one = path(both.ours, CLEAN, CORRUPTED, **about)
        both.near(one, expected[number], f"{sender} to {receiver}")


@pytest.mark.parametrize(("method", "steps"), [("eap", 1), ("eap-ig", 5)])
def test_estimates(both: Both, method: str, steps: int) -> None:
    """The estimate of an edge is the dot product of its sender's change and autograd's gradient.

    The gradient is taken at the receiver's input. The method eap-ig averages the gradients over
    5 steps.
    """
    pairs = expected_edges(both.torch.parallel)
    expected = np.zeros(len(pairs))
    with double(both.is_double):
        clean, corrupted = (both.torch.run(ids)[1]["embed"].detach() for ids in (CLEAN, CORRUPTED))
        for step in range(1, steps + 1):
            embeds = corrupted + step / steps * (clean - corrupted)
            zeros = {r: torch.zeros_like(clean, requires_grad=True) for _, r in pairs}
            add = zeros.__getitem__
            metric_of(
                both.torch.run(CLEAN, lambda name, _, add=add: add(name), embeds)[0]
            ).backward()
            slopes = {name: zero.grad for name, zero in zeros.items()}
            expected += [float((both.deltas[s] * slopes[r]).sum()) / steps for s, r in pairs]
    found = both.graph(method)
    both.near(scores_of(found, pairs), expected, method)
    exact = scores_of(both.graph("exact"), pairs)
    assert found.correlation == pytest.approx(np.corrcoef(exact, expected)[0, 1], abs=0.05)


def test_edges_of_many_pairs_at_positions(both: Both) -> None:
    """The score of an edge at a position is the mean over two pairs, each with its own position."""
    pairs = expected_edges(both.torch.parallel)[::5]
    texts = [CLEAN, CORRUPTED], [CORRUPTED, CLEAN]
    places = {"here": [2, -1], "end": -1}
    graph = edges(both.ours, *texts, metric=METRIC, positions=places)
    for name, indices in (("here", (2, -1)), ("end", (-1, -1))):
        each = []
        for number, (ids, index) in enumerate(zip(texts[0], indices, strict=True)):
            row = np.zeros(len(pairs))
            with double(both.is_double):
                base = both.torch.metric(ids)[0]
                for cell, (sender, receiver) in enumerate(pairs):
                    change = torch.zeros_like(both.deltas[sender])
                    change[:, index] = both.deltas[sender][:, index] * (-1) ** number

                    def add(one: str, _: Live, change: Any = change, to: str = receiver) -> Any:
                        return change if one == to else None

                    row[cell] = both.torch.metric(ids, add)[0] - base
            each.append(row)
        ends = [[f"{one}@{name}" for one in pair] for pair in pairs]
        for number, row in enumerate(each):
            scores = [graph.pairs[number].score(*pair) for pair in ends]
            both.near(scores, row, f"pair {number} at {name}")
        both.near([graph.score(*pair) for pair in ends], np.mean(each, 0), f"mean at {name}")


@pytest.mark.parametrize("kept", [{"edges": 60}, {"threshold": 0.01}], ids=str)
def test_faithfulness_corrupts_the_edges_outside_a_circuit(
    both: Both, kept: Mapping[str, Any]
) -> None:
    """Faithfulness equals that of a run whose edges outside the circuit carry corrupted values."""
    pairs = expected_edges(both.torch.parallel)
    found = discover(both.ours, CLEAN, CORRUPTED, metric=METRIC, method="eap-ig", **kept)
    assert 10 < len(found.edges) < len(pairs) - 10
    assert found.edges == [edge for edge in both.graph("eap-ig").edges if edge in found.edges]
    inside = {edge[:2] for edge in found.edges}
    outside: dict[str, list[str]] = {}
    for sender, receiver in pairs:
        if (sender, receiver) not in inside:
            outside.setdefault(receiver, []).append(sender)

    def add(name: str, live: Live) -> torch.Tensor | None:
        senders = outside.get(name, [])
        changes = [both.corrupted[sender] - live[sender] for sender in senders]
        return torch.stack(changes).sum(0) if changes else None

    with double(both.is_double):
        base, low = (both.torch.metric(ids)[0] for ids in (CLEAN, CORRUPTED))
        expected = (both.torch.metric(CLEAN, add) - low) / (base - low)
    both.near([found.clean, found.corrupted], [base, low], "metric")
    both.near([found.faithfulness], expected, "faithfulness")

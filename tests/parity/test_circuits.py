"""Tests of qkv.circuits against torch hooks on models of transformers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTJConfig,
    GPTJForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
)

from qkv.circuits import attribute_logits, attribution_patch, composition, logit_lens, patch

from .hooks import BLOCKS, edited, inner
from .models import Pair, double, made

V, LAYERS, HEADS = 97, 3, 4
SIZES: dict[str, Any] = {
    **{"vocab_size": V, "hidden_size": 24, "num_hidden_layers": LAYERS},
    **{"num_attention_heads": HEADS, "intermediate_size": 40},
}
FAMILIES: dict[str, tuple[type, Any]] = {
    "gpt2": (
        GPT2LMHeadModel,
        GPT2Config(vocab_size=V, n_embd=24, n_head=HEADS, n_layer=LAYERS, n_inner=40),
    ),
    "llama": (LlamaForCausalLM, LlamaConfig(**SIZES, num_key_value_heads=2, head_dim=6)),
    "bert": (BertForMaskedLM, BertConfig(**SIZES)),
    # both parts of a block read the block's input, through one norm each or a shared norm
    "gpt_neox": (GPTNeoXForCausalLM, GPTNeoXConfig(**SIZES, rotary_pct=0.7)),
    "gptj": (
        GPTJForCausalLM,
        GPTJConfig(vocab_size=V, n_embd=24, n_head=HEADS, n_layer=LAYERS, n_inner=40, rotary_dim=4),
    ),
    "albert": (AlbertForMaskedLM, AlbertConfig(**SIZES, embedding_size=16)),  # layers share weights
    "mixtral": (
        MixtralForCausalLM,
        MixtralConfig(**SIZES, num_key_value_heads=2, head_dim=6, num_local_experts=4),
    ),
}
PARALLEL = ("gpt_neox", "gptj")
PLACES = ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out")
BY_HEAD = ("z", "pattern", "q", "k", "v")
rng = np.random.default_rng(1)
CLEAN = rng.integers(4, V, 7)
CORRUPTED = np.where(np.arange(7) == 1, CLEAN % 60 + 5, CLEAN)
METRIC = (-2, 11, 40)


PAIRS = [(f, "float32") for f in ("gpt2", "llama", "bert")] + [(f, "float64") for f in FAMILIES]


@pytest.fixture(scope="module", params=PAIRS, ids=" ".join)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A random model of a family in both libraries."""
    family, dtype = request.param
    kind, config = FAMILIES[family]
    found = made(tmp_path_factory.mktemp(family), kind, config, getattr(torch, dtype))
    found.bound = 1e-10 if found.is_double else 1e-5
    return found


def family_of(pair: Pair) -> str:
    return str(pair.theirs.config.model_type)


def run(pair: Pair, ids: Any, changes: Any = None) -> torch.Tensor:
    """The logits (1, T, V) of transformers' model with hooks."""
    with double(pair.is_double), edited(pair.theirs, family_of(pair), changes or {}):
        logits: torch.Tensor = pair.theirs(torch.tensor(ids)[None]).logits
    return logits


def metric_of(logits: torch.Tensor) -> torch.Tensor:
    position, token, other = METRIC
    return logits[0, position, token] - logits[0, position, other]


def seen(pair: Pair, ids: Any, *names: str) -> dict[tuple[str, int], torch.Tensor]:
    """Return torch's named activations of every layer, with gradients retained, and its logits."""
    found: dict[tuple[str, int], torch.Tensor] = {}

    def keep(key: tuple[str, int]) -> Callable[[torch.Tensor], torch.Tensor]:
        def kept(x: torch.Tensor) -> torch.Tensor:
            if x.requires_grad:
                x.retain_grad()
            found[key] = x
            return x

        return kept

    keys = [(name, layer) for name in names for layer in range(LAYERS)]
    found["logits", 0] = run(pair, ids, {key: keep(key) for key in keys})
    return found


@pytest.mark.parametrize("at", [*PLACES, *BY_HEAD])
def test_patches(pair: Pair, at: str) -> None:
    if at == "resid_mid" and family_of(pair) in PARALLEL:
        with pytest.raises(ValueError, match=r"`at` is 'resid_mid', but the layers of .* have no"):
            patch(pair.ours, CLEAN, CORRUPTED, at=at, metric=METRIC)
        return
    with torch.no_grad():
        clean = seen(pair, CLEAN, at)
        low, high = (metric_of(run(pair, ids)) for ids in (CORRUPTED, CLEAN))
        axis = 1 if at in (*PLACES, "pattern") else 2
        count = clean[at, 0].shape[axis]
        expected = np.zeros((LAYERS, count))
        for layer in range(LAYERS):
            for number in range(count):

                def put_in(x: Any, layer: int = layer, number: int = number) -> Any:
                    where = (slice(None),) * axis + (number,)
                    x[where] = clean[at, layer][where]
                    return x

                expected[layer, number] = metric_of(run(pair, CORRUPTED, {(at, layer): put_in}))
    found = patch(pair.ours, CLEAN, CORRUPTED, at=at, metric=METRIC)
    pair.near(found, expected, at)
    shares = patch(pair.ours, CLEAN, CORRUPTED, at=at, metric=metric_of_ours, normalize=True)
    wanted = (expected - float(low)) / float(high - low)
    assert np.abs(shares - wanted).max() < pair.bound * 1e2 / float(abs(high - low))


def metric_of_ours(logits: Any) -> Any:
    position, token, other = METRIC
    return logits[0, position, token] - logits[0, position, other]


@pytest.mark.parametrize("at", [*PLACES, *BY_HEAD])
def test_attribution_patches(pair: Pair, at: str) -> None:
    if at == "resid_mid" and family_of(pair) in PARALLEL:
        with pytest.raises(ValueError, match=r"`at` is 'resid_mid', but the layers of .* have no"):
            attribution_patch(pair.ours, CLEAN, CORRUPTED, at=at, metric=METRIC)
        return
    with torch.no_grad():
        clean = seen(pair, CLEAN, at)
    corrupted = seen(pair, CORRUPTED, at)
    low = metric_of(corrupted["logits", 0])
    low.backward()
    axis = 1 if at in (*PLACES, "pattern") else 2
    rows = []
    for layer in range(LAYERS):
        x = corrupted[at, layer]
        if x.grad is None:  # the metric does not depend on it
            x.grad = torch.zeros_like(x)
        slopes = ((clean[at, layer] - x.detach()) * x.grad).movedim(axis, 0)
        rows.append(slopes.flatten(1).sum(1).numpy() + float(low.detach()))
    found = attribution_patch(pair.ours, CLEAN, CORRUPTED, at=at, metric=METRIC)
    pair.near(found, np.array(rows), at)


@torch.no_grad()
def test_the_logit_lens(pair: Pair) -> None:
    given, theirs = seen(pair, CLEAN, "resid_pre"), pair.theirs
    through: Callable[[torch.Tensor], torch.Tensor] = {
        "gpt2": lambda x: theirs.lm_head(theirs.transformer.ln_f(x)),
        "llama": lambda x: theirs.lm_head(theirs.model.norm(x)),
        "bert": lambda x: theirs.cls(x),
        "albert": lambda x: theirs.predictions(x),
        "gpt_neox": lambda x: theirs.lm_head(theirs.gpt_neox.final_layer_norm(x)),
        "gptj": lambda x: theirs.lm_head(theirs.transformer.ln_f(x)),
        "mixtral": lambda x: theirs.lm_head(theirs.model.norm(x)),
    }[family_of(pair)]
    with double(pair.is_double):
        rows = [through(given["resid_pre", layer]) for layer in range(LAYERS)]
    expected = torch.cat([*rows, given["logits", 0]]).numpy()
    pair.near(logit_lens(pair.ours, pair.ours.trace(CLEAN)), expected, "lens")


@torch.no_grad()
def test_shares_of_a_logit(pair: Pair) -> None:
    family, token = family_of(pair), 11
    trace = pair.ours.trace(CLEAN)
    if family in ("bert", "albert"):
        with pytest.raises(ValueError, match="has a layer before its last matrix"):
            attribute_logits(pair.ours, trace, of=(-1, token))
        return
    parts = seen(pair, CLEAN, "resid_pre", "mlp_out", "z", "resid_post")
    theirs, last = pair.theirs, parts["resid_post", LAYERS - 1][0, -1]
    body = getattr(theirs, theirs.base_model_prefix)
    head = theirs.get_output_embeddings()
    norms = {"gpt2": "ln_f", "gptj": "ln_f", "gpt_neox": "final_layer_norm"}
    norm = getattr(body, norms.get(family, "norm"))
    outs = {"gpt2": "attn.c_proj", "gptj": "attn.out_proj", "gpt_neox": "attention.dense"}
    out_projs = [inner(b, outs.get(family, "self_attn.o_proj")) for b in blocks_of(pair)]
    out = [p.weight if family == "gpt2" else p.weight.T for p in out_projs]
    is_centred = isinstance(norm, torch.nn.LayerNorm)
    if is_centred:
        scale = (last.var(unbiased=False) + norm.eps).sqrt()
    else:
        scale = (last.square().mean() + norm.variance_epsilon).sqrt()

    def share(x: torch.Tensor) -> float:
        x = x - x.mean() if is_centred else x
        return float((x / scale * norm.weight) @ head.weight[token])

    heads = [
        [
            share(parts["z", layer][0, -1, head] @ out[layer][head * 6 : head * 6 + 6])
            for head in range(HEADS)
        ]
        for layer in range(LAYERS)
    ]
    bias = float(norm.bias @ head.weight[token]) if is_centred else 0.0
    bias += sum(share(part.bias) for part in out_projs if part.bias is not None)
    bias += 0.0 if head.bias is None else float(head.bias[token])
    expected = {
        "embed": np.array(share(parts["resid_pre", 0][0, -1])),
        "heads": np.array(heads),
        "mlp": np.array([share(parts["mlp_out", layer][0, -1]) for layer in range(LAYERS)]),
        "bias": np.array(bias),
    }
    found = attribute_logits(pair.ours, trace, of=(-1, token))
    for name, shares in expected.items():
        pair.near(np.array(found[name]), shares, name)
    total = found["embed"] + found["heads"].sum() + found["mlp"].sum() + found["bias"]
    pair.near(np.array(total), parts["logits", 0][0, -1, token], "sum")


def blocks_of(pair: Pair) -> list[Any]:
    """Return each layer's block in transformers; if layers share a block, the list repeats it."""
    blocks = inner(pair.theirs, BLOCKS[family_of(pair)])
    return [blocks[layer % len(blocks)] for layer in range(LAYERS)]


def weights_of(pair: Pair, layer: int) -> dict[str, torch.Tensor]:
    """Return a layer's W_Q, W_K and W_V (Hq, D, d) and W_O (Hq, d, D)."""
    theirs, family = pair.theirs, family_of(pair)
    if family == "gpt2":
        attn = theirs.transformer.h[layer].attn
        q, k, v = attn.c_attn.weight.chunk(3, 1)
        o = attn.c_proj.weight
    elif family in ("llama", "mixtral"):
        attn = theirs.model.layers[layer].self_attn
        q, k, v, o = (getattr(attn, f"{x}_proj").weight.T for x in "qkvo")
    elif family == "gptj":
        attn = theirs.transformer.h[layer].attn
        q, k, v, o = (getattr(attn, f"{x}_proj").weight.T for x in ("q", "k", "v", "out"))
    elif family == "gpt_neox":
        attn = theirs.gpt_neox.layers[layer].attention
        fused = attn.query_key_value.weight.T.unflatten(1, (HEADS, 3, 6))
        q, k, v = (fused[:, :, number].flatten(1) for number in range(3))
        o = attn.dense.weight.T
    elif family == "albert":
        attn = blocks_of(pair)[layer].attention
        q, k, v, o = (getattr(attn, x).weight.T for x in ("query", "key", "value", "dense"))
    else:
        attn = theirs.bert.encoder.layer[layer].attention
        q, k, v = (getattr(attn.self, x).weight.T for x in ("query", "key", "value"))
        o = attn.output.dense.weight.T
    found = {}
    for name, weight in (("q", q), ("k", k), ("v", v)):
        each = weight.detach().unflatten(1, (-1, 6)).movedim(1, 0)
        found[name] = each.repeat_interleave(HEADS // len(each), 0)
    return found | {"o": o.detach().unflatten(0, (HEADS, 6))}


@pytest.mark.parametrize("kind", ["q", "k", "v"])
def test_composition_of_heads(pair: Pair, kind: str) -> None:
    expected = np.zeros((LAYERS, HEADS, LAYERS, HEADS))
    for early in range(LAYERS):
        one = weights_of(pair, early)
        writes = one["v"] @ one["o"]
        for later in range(early + 1, LAYERS):
            two = weights_of(pair, later)
            qk = two["q"] @ two["k"].mT
            reads = {"q": qk, "k": qk.mT, "v": two["v"] @ two["o"]}[kind]
            sizes = torch.linalg.matrix_norm(writes[:, None] @ reads)
            both = torch.outer(*map(torch.linalg.matrix_norm, (writes, reads)))
            expected[early, :, later] = sizes / both
    pair.near(composition(pair.ours, kind), expected, kind)

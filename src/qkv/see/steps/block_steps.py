"""From what the heads give to what the block gives: residual connections, norms and the MLP."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.layers import MLP, Block, LayerNorm, RMSNorm
from qkv.models.network.design import under
from qkv.models.network.finishing import activated
from qkv.see.steps.step import FEW, Walk, linear_step, norm_step

Norm = LayerNorm | RMSNorm
# How each activation is written: as a paper does, and its line of NumPy.
_WRITTEN = {
    "gelu": ("{x}/2 · (1 + erf({x}/√2))", "{x} * (1 + erf({x} / np.sqrt(2))) / 2"),
    "gelu_tanh": (
        "{x}/2 · (1 + tanh(√(2/π) · ({x} + 0.044715·{x}³)))",
        "{x} * (1 + np.tanh(np.sqrt(2 / np.pi) * ({x} + 0.044715 * {x}**3))) / 2",
    ),
    "silu": ("{x} / (1 + exp(-{x}))", "{x} / (1 + np.exp(-{x}))"),
    "quick_gelu": ("{x} / (1 + exp(-1.702·{x}))", "{x} / (1 + np.exp(-1.702 * {x}))"),
    "relu": ("max({x}, 0)", "np.maximum({x}, 0)"),
    "tanh": ("tanh({x})", "np.tanh({x})"),
}
_WRITTEN["gelu_bloom"] = _WRITTEN["gelu_tanh"]
_ADDED = "The residual connection: "


def parallel_steps(walk: Walk, block: Block, attended: str) -> str:
    """The steps of an MLP that reads what came in, `X`, as the attention does, and their sum.

    `attended` is what the attention gives; the result is what the sum is called.
    """
    layer, read = f"blocks.{walk.layer}.", "X" if block.norm1 is None else "N"
    if block.norm2 is not None:
        read = normed(walk, "X", "N2", block.norm2, "what the MLP reads, beside the attention")
        walk.compare(f"{layer}ln2.hook_normalized")
    found = _mlp_steps(walk, read, block.mlp) if isinstance(block.mlp, MLP) else _experts_step(walk)
    if block.out_norm2 is not None:
        found = normed(walk, found, "M", block.out_norm2, "what the MLP gives, before it is added")
    walk.compare(f"{layer}hook_mlp_out")
    residual_step(
        walk, ("X", attended, found), "Y", "attention and MLP, both of what came in, are added",
        "neither takes its place",
    )  # fmt: skip
    walk.compare(f"{layer}hook_resid_post")
    return "Y"


def block_steps(walk: Walk, block: Block) -> str:
    """The steps behind the residual connection of the attention, `R`; what the result is called."""
    layer, mlp = f"blocks.{walk.layer}.", block.mlp
    inner = "R"
    if block.post_norm and block.norm1 is not None:
        inner = normed(walk, "R", "N1", block.norm1, "what the MLP reads")
        walk.compare(f"{layer}ln1.hook_normalized")
    if mlp is None:
        return inner
    read = inner
    if block.norm2 is not None and not block.post_norm:
        read = normed(walk, "R", "N2", block.norm2, "what the MLP reads")
        walk.compare(f"{layer}ln2.hook_normalized")
    found = _mlp_steps(walk, read, mlp) if isinstance(mlp, MLP) else _experts_step(walk)
    if block.out_norm2 is not None:
        found = normed(walk, found, "M", block.out_norm2, "what the MLP gives, before it is added")
    walk.compare(f"{layer}hook_mlp_out")
    name = "R2" if block.post_norm else "Y"
    residual_step(
        walk, (inner, found), name,
        "what the MLP read is added" if block.post_norm else "what stood before the norm is added",
    )  # fmt: skip
    walk.compare(f"{layer}hook_resid_post")
    if block.post_norm and block.norm2 is not None:
        name = normed(walk, name, "Y", block.norm2, "what the block gives")
        walk.compare(f"{layer}hook_normalized_resid_post")
    return name


def normed(walk: Walk, of: str, name: str, norm: Norm, note: str, **others: Any) -> str:
    """An array through one of the model's norms; gives its name."""
    row = 0 if others.get("side") == "place" else walk.place
    learned = {"weight": norm.scaled()} | {
        part: array for part, array in norm.parameters.items() if part == "bias"
    }
    norm_step(
        walk, of, name, learned, norm.eps, isinstance(norm, RMSNorm),
        cell=(row, 0), note=note, **others,
    )  # fmt: skip
    return name


def residual_step(walk: Walk, terms: tuple[str, ...], name: str, title: str, note: str = "") -> str:
    """What parts give added to what came to them; gives the name of the sum."""
    line = f"{name} = {' + '.join(terms)}"
    first, *others = (walk.arrays[term] for term in terms)
    walk.write(
        f"{_ADDED}{title}", line, line, name, sum(others, first),
        {"kind": "sum", "terms": [*terms]}, "D", cell=(walk.place, 0), note=note,
    )  # fmt: skip
    return name


def activation_step(walk: Walk, of: str, name: str, activation: str, **others: Any) -> Array:
    """An activation of each number; `others` are those of `Walk.write`."""
    formula, line = (text.format(x=of) for text in _WRITTEN[activation])
    if activation == "gelu":
        walk.given["erf"] = np.vectorize(math.erf, otypes=[np.float64])
    plain = activation.removesuffix("_tanh").removesuffix("_bloom").replace("_", " ")
    words = plain.replace("gelu", "GELU").replace("silu", "SiLU")
    return walk.write(
        f"The activation, {words.replace('relu', 'ReLU')}: each number by itself",
        f"{name} = {formula}", f"{name} = {line}", name, activated(walk.arrays[of], activation),
        {"kind": "activation", "of": of, "name": activation}, **others,
    )  # fmt: skip


def _mlp_steps(walk: Walk, read: str, mlp: MLP) -> str:
    """Up, the activation, down, with or without a gate; the largest hidden units are shown."""
    parts: Mapping[str, Mapping[str, Array]] = {
        name: under(mlp.parameters, f"{name}_proj.") for name in ("gate", "up", "down")
    }
    first = parts["gate" if mlp.gated else "up"]
    few = _largest(walk.arrays[read], first, parts["up"], mlp, walk.place)
    shown = None if few is None else {unit: str(unit) for unit in few}
    cell = walk.place, 0 if few is None else few[0]
    more: dict[str, Any] = {"columns": "F", "cell": cell, "shown": shown}
    which = "" if few is None else (
        f"the {FEW} of F={mlp.hidden} that are largest after the activation at "
        f"{walk.tokens[walk.place]}"
    )  # fmt: skip
    note = "; ".join(filter(None, ["each token goes through the MLP by itself", which]))
    what = "the gate" if mlp.gated else "up to F hidden units"
    letter = "gate" if mlp.gated else "up"
    linear_step(walk, f"The MLP, {what}", read, "pre", letter, first, note=note, **more)
    walk.compare(f"blocks.{walk.layer}.mlp.hook_pre")
    activation_step(walk, "pre", "act" if mlp.gated else "post", mlp.activation, **more)
    if mlp.gated:
        linear_step(
            walk, "The MLP, up to F hidden units", read, "up", "up", parts["up"], **more
        )  # fmt: skip
        walk.compare(f"blocks.{walk.layer}.mlp.hook_pre_linear")
        line = "post = act * up"
        walk.write(
            "The gate lets each through in part", line, line, "post",
            walk.arrays["act"] * walk.arrays["up"],
            {"kind": "times", "left": "act", "right": "up"}, **more,
        )  # fmt: skip
    walk.compare(f"blocks.{walk.layer}.mlp.hook_post")
    linear_step(
        walk, "The MLP, down to D again", "post", "mlp", "down", parts["down"], "D",
        cell=(walk.place, 0), terms=few,
    )  # fmt: skip
    return "mlp"


def _largest(
    x: Array, first: Mapping[str, Array], up: Mapping[str, Array], mlp: MLP, place: int
) -> list[int] | None:
    """The hidden units whose numbers are largest at a place, the largest first; None for all."""
    if mlp.hidden <= FEW:
        return None
    row = activated(x[[place]] @ first["weight"] + first.get("bias", 0), mlp.activation)
    if mlp.gated:
        row = row * (x[[place]] @ up["weight"] + up.get("bias", 0))
    found: list[int] = np.argsort(-np.abs(row[0]), kind="stable")[:FEW].tolist()
    return found


def _experts_step(walk: Walk) -> str:
    """What several experts in the place of one MLP gave, as traced."""
    walk.given["trace"] = walk.trace
    source = f'trace["mlp_out", {walk.layer}][0]'
    walk.write_given(
        "The MLP: of several experts those that a router chooses", "mlp", source,
        walk.trace["mlp_out", walk.layer][0], "D", note="as traced",
    )  # fmt: skip
    return "mlp"

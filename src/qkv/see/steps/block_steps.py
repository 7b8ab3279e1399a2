"""From what the heads give to what the block gives: residual connections, norms and the MLP."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from qkv.layers import MLP, Block, LayerNorm, RMSNorm
from qkv.models.network.design import under
from qkv.see.steps.step import Walk, linear_step, norm_step

Norm = LayerNorm | RMSNorm


def parallel_steps(walk: Walk, block: Block, attended: str) -> str:
    """The steps of an MLP that reads what came in, `X`, as the attention does, and their sum.

    `attended` is what the attention gives; the result is what the sum is called.
    """
    layer, read = f"blocks.{walk.layer}.", "X" if block.norm1 is None else "N"
    if block.norm2 is not None:
        read = normed(walk, "X", "N2", block.norm2)
        walk.compare(f"{layer}ln2.hook_normalized")
    found = _mlp_steps(walk, read, block)
    walk.write("both added", attended=attended, given=found, cell=(walk.place, 0))
    walk.compare(f"{layer}hook_resid_post")
    return "Y"


def block_steps(walk: Walk, block: Block) -> str:
    """The steps behind the residual connection of the attention, `R`; what the result is called."""
    layer, after = f"blocks.{walk.layer}.", block.post_norm
    inner = "R"
    if after and block.norm1 is not None:
        inner = normed(walk, "R", "N1", block.norm1)
        walk.compare(f"{layer}ln1.hook_normalized")
    if block.mlp is None:
        return inner
    read = inner
    if block.norm2 is not None and not after:
        read = normed(walk, "R", "N2", block.norm2)
        walk.compare(f"{layer}ln2.hook_normalized")
    found = _mlp_steps(walk, read, block)
    row = "MLP added before the norm" if after else "MLP added"
    walk.write(row, read=inner, given=found, note="", cell=(walk.place, 0))
    walk.compare(f"{layer}hook_resid_post")
    if after and block.norm2 is not None:
        normed(walk, "R2", "Y", block.norm2)
        walk.compare(f"{layer}hook_normalized_resid_post")
    return walk.steps[-1].name


def normed(walk: Walk, of: str, name: str, norm: Norm, side: str = "queries") -> str:
    """An array through one of the model's norms; gives its name."""
    learned = {"weight": norm.scaled()} | {
        part: array for part, array in norm.parameters.items() if part == "bias"
    }
    cell = (0 if side == "place" else walk.place), 0
    return norm_step(walk, of, name, learned, norm.eps, isinstance(norm, RMSNorm), side, cell)


def activation_step(walk: Walk, x: str, name: str, activation: str, **others: Any) -> None:
    """An activation of each number; `others` are those of `Walk.write`."""
    if activation == "gelu":
        walk.given["erf"] = np.vectorize(math.erf, otypes=[walk.arrays[x].dtype])
    walk.write(activation.replace("_bloom", "_tanh"), x=x, name=name, **others)


def _mlp_steps(walk: Walk, read: str, block: Block) -> str:
    """What the MLP of a block gives, and its norm behind it; what the result is called."""
    if isinstance(block.mlp, MLP):
        _unit_steps(walk, read, block.mlp)
    else:
        walk.write("experts", layer=walk.layer)
    found = "mlp" if block.out_norm2 is None else normed(walk, "mlp", "M", block.out_norm2)
    walk.compare(f"blocks.{walk.layer}.hook_mlp_out")
    return found


def _unit_steps(walk: Walk, read: str, mlp: MLP) -> None:
    """Up, the activation, down, with or without a gate; the largest hidden units are shown."""
    where, first, cell = f"blocks.{walk.layer}.mlp.hook_", len(walk.steps), (walk.place, 0)
    gate, up, down = (under(mlp.parameters, f"{name}_proj.") for name in ("gate", "up", "down"))
    row, learned = ("gate", gate) if mlp.gated else ("up", up)
    linear_step(walk, row, learned, x=read, cell=cell)
    walk.compare(f"{where}pre")
    called = "act" if mlp.gated else "post"
    activation_step(
        walk, "pre", called, mlp.activation, columns="F", side="queries", cell=cell
    )  # fmt: skip
    if mlp.gated:
        linear_step(walk, "up beside the gate", up, x=read, cell=cell)
        walk.compare(f"{where}pre_linear")
        walk.write("gated", cell=cell)
    walk.compare(f"{where}post")
    units = walk.show_units(range(first, len(walk.steps)), "post")
    linear_step(walk, "down", down, units=units, count=mlp.hidden, cell=cell)

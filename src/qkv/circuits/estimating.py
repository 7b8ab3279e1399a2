"""The effects of edges to first order, from one backward pass for all of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.circuits.residual import Stream, mlp_parts
from qkv.circuits.wiring import INPUTS
from qkv.layers.norm import NormSaved
from qkv.layers.parameters import quiet
from qkv.ops.threads import one_blas_thread
from qkv.trace.recorder import GradientRecorder

STEPS = 5  # between the corrupted and the clean embeddings, as in Hanna et al.


@quiet
@one_blas_thread()
def estimated(stream: Stream, of: Any, steps: int | None) -> dict[str, Array]:
    """For each receiver the estimated effects of its edges, (senders,) of float64.

    A sender's difference between the runs times the metric's gradient for what the receiver reads.

    Args:
        stream: of both runs.
        of: the logit, or a difference of two.
        steps: take the mean of so many gradients, on the way of the embeddings from the corrupted
            to the clean run; None for that of the clean run.
    """
    model, layers, last = stream.model, stream.layers, len(stream.layers) - 1
    clean, corrupted = (run["resid_pre", 0] for run in (stream.pair.clean, stream.pair.corrupted))
    shares = np.arange(1, (steps or 1) + 1) / (steps or 1)
    edit = {"full_embed": corrupted + shares[:, None, None] * (clean - corrupted)}
    ids = [stream.pair.clean.ids] * len(shares)
    has_mlp = [layer for layer, block in enumerate(layers) if block.mlp is not None]
    names = [(kind, layer) for layer in range(last + 1) for kind in INPUTS]
    names += [*(("mlp_out", layer) for layer in has_mlp), ("resid_post", last)]
    slopes = model.gradient(ids, of=of, at=names, edit=edit)
    run = model.trace(ids, names=["resid_pre", "attn_out"], edit=edit)
    found = {"logits": _scores(stream, slopes["resid_post", last][:, None])[0]}
    for layer, block in enumerate(layers):
        pre, count = run["resid_pre", layer], stream.wiring.starts[layer]  # (m, T, D)
        for kind in INPUTS:
            slope = np.swapaxes(slopes[kind, layer], 1, 2)  # (m, H, T, d)
            weight = block.attn.parameters[f"{kind}_proj.weight"]
            each = weight.reshape(len(weight), slope.shape[1], -1).transpose(1, 2, 0)
            slope = slope @ each  # (m, H, T, D)
            if block.norm1 is not None:
                saved = block.norm1.run(pre)[1]
                alike = [
                    np.broadcast_to(x[:, None], (*slope.shape[:-1], x.shape[-1])) for x in saved
                ]
                slope = block.norm1.backward(slope, NormSaved(*alike), record=_SILENT).x
            for head, scores in enumerate(_scores(stream, slope, count)):
                found[f"attn.{layer}.{head}.{kind}"] = scores
        if block.mlp is not None:
            read = pre if block.parallel else pre + run["attn_out", layer]
            steps_back = []
            for part in mlp_parts(block):
                read, kept = part.run(read, save=True)
                steps_back.append((part, kept))
            slope = slopes["mlp_out", layer]
            for part, kept in reversed(steps_back):
                slope = part.backward(slope, kept, record=_SILENT).x
            count = stream.wiring.receivers[f"mlp.{layer}"].senders
            found[f"mlp.{layer}"] = _scores(stream, slope[:, None], count)[0]
    return {name: found[name] for name in stream.wiring.receivers}


_SILENT = GradientRecorder(lambda name: False, {}, {})


def _scores(stream: Stream, slopes: Array, count: int | None = None) -> Array:
    """The effects (n, senders) of the first so many senders, by gradients (m, n, T, D)."""
    slope = slopes.mean(0, dtype=np.float64)[:, stream.span]
    deltas = stream.deltas[:count].astype(np.float64)
    found: Array = np.tensordot(slope, deltas, ([1, 2], [1, 2]))
    return found

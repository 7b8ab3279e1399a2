"""What the page of a replay reads."""
# What assets/pages/replay.js reads, "replay" of the payload:
#
#   "run": str, "tokens": [L strings], "special": [0 | 1, ...], "layers": [numbers], "heads": H,
#   "steps": [of all snapshots], "shown": [places in "steps" of those whose weights are here],
#   "weights": shares (shown, layers, H, L, L), "hidden": bits as in payload.py | null,
#   "scores": [{"name", "of": what it is the mean of, "head": what such a head is called,
#               "values": [for each step [layers x H]]}, ...],
#   "score": place in "scores" of the one that the sentence is about,
#   "becomes": weight from which a head is called by what it looks at,
#   "losses": [[step, loss], ...], "logged": [the loss at each of "steps" | null],
#   "knots": [the steps that stand at even distances in charts],
#   "left_out": [sentences]
#
# `start` (see payload.py) says which head is shown first.

from __future__ import annotations

from typing import Any

from qkv.see.analysis.training import BECOMES, MOST_LOSSES, Replay, thinned
from qkv.see.page import packing


def replay_payload(replay: Replay, score: int) -> dict[str, Any]:
    """A replay for the page."""
    left_out = []
    if len(replay.shown) < len(replay.steps):
        left_out.append(
            f"Weights are here for {len(replay.shown)} of the {len(replay.steps)} snapshots; the "
            "scores are those of all."
        )
    return {
        "run": replay.run,
        "tokens": replay.first.tokens,
        "special": [int(flag) for flag in replay.first.special],
        "layers": replay.layers,
        "heads": replay.weights.shape[2],
        "steps": replay.steps,
        "shown": replay.shown,
        "weights": packing.pack_shares(replay.weights),
        "hidden": None if replay.hidden is None else packing.pack_flags(replay.hidden),
        "scores": [
            found._asdict() | {"values": replay.values[..., place].reshape(len(replay.steps), -1)}
            for place, found in enumerate(replay.scores)
        ],
        "score": score,
        "becomes": BECOMES,
        "knots": replay.knots,
        "losses": thinned(replay.losses, MOST_LOSSES),
        "logged": [replay.loss_at(step) for step in replay.steps],
        "left_out": left_out,
    }

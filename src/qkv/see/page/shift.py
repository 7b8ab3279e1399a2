"""What the page of a shift reads."""
# SHIFT = {
#   "sentences": [str], "tokens": [str], "of": [sentence of each token],
#   "before": [[x, y], ...], "explained": [share, share],
#   "stages": [{"name": str, "points": [[x, y], ...], "moved": [length of each arrow],
#               "held": share, "cosine": [number, ...]}, ...],
#   "labelled": [places of the tokens that are named],
#   "pairs": [{"word": str, "a": place, "b": place, "cosine": [before, at each stage]}, ...] }

from __future__ import annotations

from typing import Any

from qkv.see.analysis.shift import Shift


def shift_payload(shift: Shift) -> dict[str, Any]:
    """A shift for the page: every point in the one plane, and the cosines."""
    stages = [vars(stage) | {"moved": shift.moved(stage)} for stage in shift.stages]
    return vars(shift) | {"stages": stages, "pairs": [vars(pair) for pair in shift.pairs]}

"""The curves of a run as a picture: its losses, and the learning rate below them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qkv.arrays import Array
from qkv.extras import need
from qkv.files import replacing
from qkv.learn.run_folder import CURVES, METRICS, read_metrics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
_INK, _FAINT = "#333333", "#dddddd"


def plot_curves(folder: str | os.PathLike[str]) -> Figure:
    """Each loss of a run over its steps, as it is and smoothed, and the learning rate.

    Args:
        folder: of the run.

    Raises:
        ValueError: it has no metrics.
        ImportError: matplotlib is not there.
    """
    rows = read_metrics(folder)
    if not rows:
        raise ValueError(f"plot_curves: {Path(folder) / METRICS} holds no step")
    need("matplotlib", "plot")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.4), dpi=150, layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[4, 1])
    names = list(dict.fromkeys(name for row in rows for name in row["losses"]))
    for name, color in zip(names, _COLORS * len(names), strict=False):
        logged = ((row["step"], row["losses"].get(name)) for row in rows)
        points = [(step, loss) for step, loss in logged if loss is not None]
        steps, losses = np.array(points, np.float64).reshape(-1, 2).T
        smooth = smoothed(losses)
        above.plot(steps, losses, color=color, alpha=0.25, linewidth=0.8)
        end = f"{name}, {smooth[-1]:.3f} at the end" if smooth.size else name
        above.plot(steps, smooth, color=color, linewidth=1.8, label=end)
    skipped = [row["step"] for row in rows if row.get("skipped")]
    if skipped:
        top = above.get_ylim()[1]
        above.plot(skipped, [top] * len(skipped), "x", color=_INK, label=f"skipped: {len(skipped)}")
    below.plot([row["step"] for row in rows], [row["rate"] for row in rows], color=_INK)
    above.set_ylabel("loss (nats)", color=_INK)
    below.set_ylabel("rate", color=_INK)
    below.set_xlabel("step", color=_INK)
    below.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    below.set_ylim(bottom=0)
    above.legend(frameon=False, labelcolor=_INK)
    for axes in (above, below):
        axes.grid(color=_FAINT, linewidth=0.6)
        axes.tick_params(colors=_INK)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(_FAINT)
    return figure


def write_curves(folder: str | os.PathLike[str]) -> Path:
    """Draw the curves of a run into its folder."""
    figure: Any = plot_curves(folder)
    path = Path(folder) / CURVES
    with replacing(path) as file:
        figure.savefig(file, format="png")
    return path


def smoothed(values: Array) -> Array:
    """The mean of each value and those before it, about a thirtieth of all.

    >>> smoothed(np.arange(90.0))[[0, 1, 2, 50]]
    array([ 0. ,  0.5,  1. , 49. ])
    """
    width = max(1, len(values) // 30)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    begins = np.maximum(0, ends - width)
    smooth: Array = (sums[ends] - sums[begins]) / (ends - begins)
    return smooth

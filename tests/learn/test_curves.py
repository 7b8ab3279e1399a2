"""Tests of the figure with the curves of a run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from qkv.learn import plot_curves, write_curves
from qkv.learn.run_folder import running_means


def run_in(folder: Path) -> None:
    rows = []
    for step in range(1, 91):
        losses = {"masked": 8 / step} | ({"senses": 3.0 - step / 90} if step > 30 else {})
        rows.append({"step": step, "rate": 1e-3, "losses": losses, "loss": sum(losses.values())})
    rows[49] |= {"losses": {"masked": None}, "loss": None, "skipped": True}
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "metrics.jsonl").write_text(text, encoding="utf-8")


def test_each_loss_has_its_line(tmp_path: Path) -> None:
    run_in(tmp_path)
    above, below = plot_curves(tmp_path).axes
    labels = [text.get_text() for text in above.get_legend().get_texts()]
    assert labels == ["masked, 0.089 at the end", "senses, 2.000 at the end", "skipped: 1"]
    plain = above.lines[0].get_xydata()
    assert len(plain) == 89
    np.testing.assert_allclose(plain[9], [10, 0.8])
    assert len(below.lines[0].get_xydata()) == 90
    assert write_curves(tmp_path).read_bytes().startswith(b"\x89PNG")


def test_smoothed() -> None:
    values = np.arange(90, dtype=np.float64)
    expected = [values[max(0, k - 2) : k + 1].mean() for k in range(90)]
    np.testing.assert_allclose(running_means(values), expected)


def test_a_run_without_steps(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="contains no steps"):
        plot_curves(tmp_path)

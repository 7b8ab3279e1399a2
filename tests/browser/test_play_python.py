"""Tests of the page's Python code: for each edit, the code computes the page's numbers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qkv
from rows import sample

from .engine import agree, ask, numbers
from .play import address, after, button, in_lab, opened_at, ready
from .support import Visit

TEXT = "She wore a crown on her [MASK]."
OTHER = 'He "wore" a hat [MASK].'  # as many tokens as in TEXT
SIZE = 10
WINDOW = [
    {"op": "mask", "query": query, "key": key}
    for query in range(SIZE)
    for key in range(SIZE)
    if abs(query - key) > 2
]
ROW = {"op": "row", "layer": 1, "head": 0, "query": 7, "weights": [0.25, 0, 0.5, *[0.0] * 6, 0.25]}
EDITS: dict[str, list[dict[str, Any]]] = {
    "none": [],
    "hide": [{"op": "hide", "token": 4}, {"op": "hide", "token": 1}],
    "mask": [
        {"op": "mask", "query": 7, "key": 4},
        {"op": "mask", "query": 7, "key": 3, "layer": 2},
        {"op": "mask", "query": 7, "key": 4, "layer": 3, "head": 2},
        {"op": "mask", "query": 7, "key": 5, "layer": 3, "head": 2},
    ],
    "window": WINDOW,
    "causal": [{"op": "causal"}],
    "ablate": [{"op": "ablate", "layer": 3, "head": 2}, {"op": "ablate", "layer": 0}],
    "scale": [{"op": "scale", "value": 0.1}, {"op": "hide", "token": 4}],
    "row": [ROW, {**ROW, "query": 3}, {**ROW, "head": 1}, {**ROW, "layer": 2}],
    "swap": [
        {"op": "swap", "token": 4, "with": "hat"},
        {"op": "swap", "token": 1, "with": "[MASK]"},
    ],
}
EDITS |= {
    "patch": [
        {"op": "patch", "at": "resid_pre", "layer": 1, "token": 4, "from": OTHER},
        {"op": "patch", "at": "pattern", "layer": 2, "head": 1, "from": OTHER},
    ],
    "add": [
        {"op": "add", "at": "resid_pre", "layer": 2, "vector": [*np.linspace(-1, 1, 192)]},
        {"op": "add", "at": "mlp_out", "layer": 0, "token": 7, "vector": [1e-7, 2.5] * 96},
    ],
    "set": [{"op": "set", "at": "z", "layer": 1, "head": 2, "token": 4, "value": [0.5] * 32}],
}
EDITS["several"] = [*EDITS["swap"], *EDITS["scale"], *EDITS["row"], *EDITS["ablate"], *WINDOW]


@pytest.mark.filterwarnings("error")
def test_the_python_of_each_change_gives_the_numbers_of_the_page(
    visit: Visit, tmp_path: Path
) -> None:
    page = ready(visit(opened_at(in_lab(qkv.play(TEXT)._document()), "")))
    plain = None
    for name, edits in sample(EDITS.items()):
        hash_ = address(text=TEXT, edits=edits, position=7, query=7, layer=3, head=2)
        after(page, lambda to=hash_: page.evaluate("hash => { location.hash = hash; }", to))
        button(page, "Copy as Python").click()
        code = page.get_by_label("The same numbers in Python").input_value()
        had: dict[str, Any] = {}
        exec(code, had)  # code from the page
        found, result = ask(page, TEXT, edits)
        own = numbers(had["model"], had["trace"])
        agree(result, own, weights=2e-6, others=1e-4)
        np.testing.assert_array_equal(had["pattern"], own.pattern[3, 2], name)
        assert had["trace"].ids == found["ids"], name
        plain = result.logits if plain is None else plain
        assert name == "none" or np.abs(result.logits - plain).max() > 1e-3, name
    hostile = 'He said "no\\n" ${x} \\\' """ \U0001f600 # [MASK]'
    after(page, lambda: page.get_by_label("Your sentence").fill(hostile))
    button(page, "Copy as Python").click()
    had = {}
    exec(page.get_by_label("The same numbers in Python").input_value(), had)
    assert had["text"] == hostile

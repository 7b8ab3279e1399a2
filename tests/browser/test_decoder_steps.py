"""Tests of a layer's steps in the page, for models whose design differs from BERT's."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page

import qkv
from qkv.models import Model

from .edited import Edit
from .play import opened_at, ready
from .playing import unfold
from .support import CELLS, Visit, read as read_number
from .test_families import TEXT, small
from .test_steps import with_steps

KINDS = [
    *("gpt2 scaled by layer", "gpt_neo", "gpt_neox", "gpt_neox in turn", "opt", "llama"),
    *("mistral", "qwen3", "gemma2", "modernbert", "roberta", "electra"),
    "opt projected, norms after",
]
# Returns the steps of a layer: their matrices, and the operation that makes each matrix.
STEPS = """async ([text, edits, layer, head]) => {
  const run = await qkv.run(text, edits, { layers: [layer] });
  const state = { layer, head, edits, query: 3, position: 3 };
  const flow = page.flowOf(run, state, await qkv.model, null);
  return flow.steps.map(({ name, op, note, title }) => {
    const array = flow.array(name);
    const [rows, columns] = array.shape;
    const all = (count) => Array.from({ length: count }, (_, i) => i);
    const numbers = all(rows).map((i) => all(columns).map((j) => {
      const x = array.get(i, j);
      return Number.isFinite(x) ? x : String(x);
    }));
    return { name, op, note, title, numbers };
  });
}"""


def read(page: Page, layer: int, head: int, edits: list[Edit]) -> dict[str, dict[str, Any]]:
    found = page.evaluate(STEPS, [TEXT, edits, layer, head])
    for step in found:
        step["numbers"] = np.array(step["numbers"], np.float64)
    return {step["name"]: step for step in found}


def made(steps: dict[str, dict[str, Any]], op: dict[str, Any]) -> np.ndarray | None:
    """Compute a step's matrix from earlier steps.

    Return None if the `match` statement below has no case for the kind of the operation.
    """

    def of(name: str) -> np.ndarray:
        return steps[name]["numbers"]

    match op["kind"]:
        case "product":
            right = of(op["right"])
            return of(op["left"]) @ (right.T if op["flip"] else right)
        case "scaled":
            sign, by = op["by"].split()
            return of(op["of"]) * (1 / np.sqrt(float(by[1:])) if sign == "/" else float(by))
        case "capped":
            return op["cap"] * np.tanh(of(op["of"]) / op["cap"])
        case "softmax":
            powers = np.exp(of(op["of"]) - of(op["of"]).max(1, keepdims=True))
            return powers / powers.sum(1, keepdims=True)
        case "sum":
            return sum(of(name) for name in op["terms"])
    return None


def is_near(
    step: dict[str, Any], expected: np.ndarray, rtol: float = 1e-4, atol: float = 1e-4
) -> None:
    np.testing.assert_allclose(step["numbers"], expected, rtol, atol, err_msg=step["title"])


@pytest.mark.parametrize("kind", KINDS)
def test_each_step_matches_its_operation_and_the_trace(
    visit: Visit, tmp_path: Path, kind: str
) -> None:
    half, exact = small(tmp_path, kind)
    page = with_steps(visit, half)
    trace = exact.trace(TEXT)
    for layer in range(half.num_layers):
        for head in (0, half.num_heads - 1):
            steps = read(page, layer, head, [])
            for step in steps.values():
                own = made(steps, step["op"])
                if own is not None:
                    is_near(step, own, 2e-4, 2e-4)
            scores = steps["masked" if "masked" in steps else "scaled"]
            is_near(scores, trace["attn_scores", layer][0, head])
            is_near(steps["weights"], trace["pattern", layer][0, head], 0, 1e-5)
            is_near(steps["context"], trace["z", layer][0, :, head])
            if layer + 1 < half.num_layers:
                is_near(steps["Y"], trace.hidden_states[layer + 1][0])
            check_names(half, layer, steps)


def check_names(model: Model, layer: int, steps: dict[str, dict[str, Any]]) -> None:
    """Check that a model has the steps of its own design, and no others."""
    design = model.design
    own = design.layers[layer]
    turned = own.rotary is not None or own.qk_norm != "no"
    assert ("Q_rotated" in steps) == ("K_rotated" in steps) == turned
    assert ("capped" in steps) == (own.options.get("softcap") is not None)
    assert ("R" in steps) == (not design.parallel)
    assert ("masked" in steps) == bool(own.options.get("is_causal") or own.options.get("window"))
    if own.options.get("window") and "masked" in steps:
        assert steps["masked"]["note"] == "a token sees only tokens near it"
    elif own.options.get("is_causal"):
        assert steps["masked"]["note"] == "a token sees itself and earlier tokens"


def test_edited_steps_match_the_trace_and_name_the_readers_mask(
    visit: Visit, tmp_path: Path
) -> None:
    half, exact = small(tmp_path, "llama")
    page = with_steps(visit, half)
    edits: list[Edit] = [{"op": "hide", "token": 2}, {"op": "scale", "value": 0.3}]
    steps = read(page, 1, 1, edits)
    trace = exact.trace(TEXT, edit=edits)
    is_near(steps["weights"], trace["pattern", 1][0, 1], 0, 1e-5)
    assert steps["masked"]["note"] == "you hid tokens or links"


@pytest.mark.parametrize("kind", ["llama", "gemma2", "gpt_neox", "modernbert"])
def test_the_unfolded_page_shows_the_steps_without_errors(
    visit: Visit, tmp_path: Path, kind: str
) -> None:
    small(tmp_path, kind)
    view = qkv.play(TEXT, model=str(tmp_path / "half"))
    page = ready(visit(opened_at(view._document(), '#inside=true&layer=1&head=1&tab="steps"')))
    part = page.locator("[data-part=steps]")
    part.get_by_role("tab", include_hidden=True).nth(8).wait_for(state="attached")
    trace = view.model.trace(TEXT)
    detail = page.locator("[data-part=steps] .row-table, [data-part=head] .row-table").first
    unfold(detail)
    cells = detail.locator("tbody tr").evaluate_all(CELLS)
    seen = np.array([mark == "open" for _, _, _, mark, *_ in cells])
    scores = [read_number(scaled) for _, _, scaled, *_ in cells]
    rows = [row for row in trace["attn_scores", 1][0, 1] if (np.isfinite(row) == seen).all()]
    assert any(
        np.allclose(np.extract(seen, scores), row[seen], rtol=0, atol=5.1e-3) for row in rows
    )

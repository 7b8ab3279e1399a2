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
from .support import Visit
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
            return (
                of(op["of"]) / np.sqrt(float(by[1:])) if sign == "/" else of(op["of"]) * float(by)
            )
        case "capped":
            return op["cap"] * np.tanh(of(op["of"]) / op["cap"])
        case "softmax":
            powers = np.exp(of(op["of"]) - of(op["of"]).max(1, keepdims=True))
            return powers / powers.sum(1, keepdims=True)
        case "sum":
            return sum(of(name) for name in op["terms"])
    return None


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
                    np.testing.assert_allclose(
                        step["numbers"], own, rtol=2e-4, atol=2e-4, err_msg=step["title"]
                    )
            scores = steps["masked" if "masked" in steps else "scaled"]["numbers"]
            expected = trace["attn_scores", layer][0, head]
            np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(
                steps["weights"]["numbers"], trace["pattern", layer][0, head], atol=1e-5
            )
            context = trace["z", layer][0, :, head]
            np.testing.assert_allclose(steps["context"]["numbers"], context, rtol=1e-4, atol=1e-4)
            after = trace.hidden_states[layer + 1][0] if layer + 1 < half.num_layers else None
            if after is not None:
                np.testing.assert_allclose(steps["Y"]["numbers"], after, rtol=1e-4, atol=1e-4)
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
    np.testing.assert_allclose(
        steps["weights"]["numbers"], trace["pattern", 1][0, 1], rtol=1e-4, atol=1e-5
    )
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
    query = int(view.opening.position) if view.model.generates else view.opening.position
    cells = detail.locator("tbody tr").evaluate_all(
        "rows => rows.map((row) => [...row.querySelectorAll('td')].slice(0, 4)"
        ".map((td) => td.textContent))"
    )
    chosen = page.evaluate("new URLSearchParams(location.hash.slice(1)).get('query')")
    query = int(chosen) if chosen else query
    scores = trace["attn_scores", 1][0, 1]
    rows = [row for row in scores if np.isfinite(row).sum() == sum(c[2] == "open" for c in cells)]
    assert any(
        all(
            np.isneginf(x) or abs(float(c[1].replace("\N{MINUS SIGN}", "-")) - x) < 0.0051
            for c, x in zip(cells, row, strict=True)
        )
        for row in rows
    )

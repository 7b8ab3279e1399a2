"""Tests of a layer's steps in the live page, against those that Python writes of the same run."""

import json
import re
from typing import Any

import pytest
from playwright.sync_api import Page

from qkv.models import Model
from qkv.see.steps.step import PHRASES, ROWS, fill
from qkv.see.steps.walk import walk_head
from qkv.trace import Trace

from .bundling import script_of
from .edited import Edit
from .engine import page_of
from .playing import HEAD, POSITION, TEXT
from .support import Visit

# Returns the steps of a layer of a run, with parameters and without.
STEPS = """async ([text, edits, layer, head, position]) => {
  const run = await qkv.run(text, edits, { layers: [layer] });
  const state = { layer, head, edits, query: position, position };
  const known = await qkv.parameters(...page.parametersOf(run, layer));
  const told = (parameters) => page.flowOf(run, state, model, parameters).steps;
  const model = await qkv.model;
  return [told(known), told(null)].map((steps) =>
    steps.map(({ title, formula, code, name, shape, op, note }) => (
      { title, formula, code, name, shape, op, note })));
}"""
SAID = ("title", "formula", "code", "name", "shape", "op", "note")
OWN_NOTES = ("E", "masked", "Y")  # size of the table; origin of the mask; next step
HIDDEN: list[Edit] = [{"op": "hide", "token": 4}]
CAUSAL: list[Edit] = [{"op": "causal"}, {"op": "scale", "value": 0.3}]
REMOVED: list[Edit] = [{"op": "ablate", "layer": HEAD[0], "head": HEAD[1]}]


def with_steps(visit: Visit, model: Model) -> Page:
    """Open a page with the engine and the functions of flow.js."""
    page = visit(page_of(model))
    page.evaluate(f"() => {{ {script_of('parts/flow')}\nglobalThis.page = page; }}")
    return page


def said(step: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a step that the tests compare between the page and Python.

    The field `from` is omitted: the page uses this field to draw a diagram, and Python has no such
    field.
    """
    op = {name: value for name, value in step["op"].items() if name != "from"}
    found = {name: step[name] for name in SAID} | {"op": op}
    return found | ({"note": ""} if step["name"] in OWN_NOTES else {})


@pytest.mark.parametrize(
    ("layer", "edits"),
    [(0, []), (HEAD[0], []), (HEAD[0], HIDDEN), (HEAD[0], CAUSAL), (HEAD[0], REMOVED)],
    ids=["first layer", "last layer", "hidden", "causal and scaled", "head removed"],
)
def test_page_and_python_describe_each_step_alike(
    visit: Visit, model: Model, layer: int, edits: list[Edit]
) -> None:
    page = with_steps(visit, model)
    found, bare = page.evaluate(STEPS, [TEXT, edits, layer, HEAD[1], POSITION])
    trace = model.trace(TEXT, edit=edits)
    if edits is CAUSAL:  # as if the model itself were causal and scaled
        arrays = {name: trace[name] for name in trace.names()}
        about = {"tokens": [trace.tokens], "special": [trace.special], "ids": [trace.ids]}
        trace = Trace(arrays, settings={layer: {"is_causal": True, "scale": 0.3}}, **about)
    for steps, by in ((found, model), (bare, None)):
        walk = walk_head(trace, layer, HEAD[1], by)
        assert walk.position == POSITION
        own = {step.name: json.loads(json.dumps(vars(step), default=str)) for step in walk.steps}
        shared = [said(step) for step in steps if step["name"] in own]
        if by is None:
            # Here, Python has no model and reads sums from the trace. The page computes the sums.
            shared = [step for step in shared if step["op"]["kind"] != "sum"]
            assert {step["name"] for step in shared} >= {"X", "Q", "context", "out", "mlp", "Y"}
        else:
            assert [step["name"] for step in steps] == list(own)[: len(steps)]
            assert steps[-1]["name"] == "Y"
        assert shared == [said(own[step["name"]]) for step in shared]


def test_page_and_python_fill_every_row_alike(visit: Visit, model: Model) -> None:
    page, parts = with_steps(visit, model), [ROWS, PHRASES]
    names = re.findall(r"\{(\w+)\}", json.dumps(parts))
    given: dict[str, Any] = {name: f"<{name}> {{x}}" for name in names}
    given |= {"position": 3, "rows": [1, 2], "bias": None, "interleaved": False}
    filled = page.evaluate("([parts, given]) => page.fill(parts, given)", [parts, given])
    assert filled == fill(parts, given)

"""Tests that views of infinite, NaN or huge numbers pass a picture or a clear error."""

import re
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from qkv.models import Model
from qkv.models.vision import patch_names
from qkv.see import View, compare, head_view, image_view, plot_shift, replay, show, walk
from qkv.trace import Trace

from ..support import CAT

pytestmark = pytest.mark.attack

VALUES = [np.inf, -np.inf, np.nan, 3e38, -1.7e308]
VIEWS: dict[str, Callable[[Trace, Trace], View]] = {
    "show": lambda trace, _: show(trace, stretch=True),
    "head_view": lambda trace, _: head_view(trace),
    "compare": lambda trace, other: compare(trace, other, word="sat"),
    "compare runs": lambda trace, other: compare(other, trace),
    "walk": lambda trace, _: walk(trace),
    "plot_shift": lambda trace, other: plot_shift([trace, other]),
    "replay": lambda trace, other: replay({0: trace, 1: other}),
}
ARRAYS = ["embed", "v", "attn_scores", "pattern", "z", "resid_post"]


def with_value(trace: Trace, name: str, value: float, where: Any = np.s_[0, 1]) -> Trace:
    """Copy a trace, and put `value` at `where` in one array, which becomes float64."""
    arrays = {one: trace[one] for one in trace.names()}
    whole = next(one for one in arrays if one.endswith((f"hook_{name}", f".{name}")))
    arrays[whole] = arrays[whole].astype(np.float64)
    arrays[whole][where] = value
    return Trace(arrays, tokens=[trace.tokens], special=[trace.special], model="made")


def refuses_a_plane(name: str, value: float) -> bool:
    """Return whether `plot_shift` must reject this value in this array.

    `plot_shift` draws only the arrays `embed` and `resid_post`. It must reject NaN, infinity and
    numbers beyond 1e150 in these arrays.
    """
    return name in ("embed", "resid_post") and not abs(value) < 1e150


@pytest.mark.filterwarnings("ignore:replay:UserWarning")  # replay leaves the snapshot out
@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_of_any_numbers_is_drawn_or_refused(
    view: str, name: str, value: float, lesson: Model
) -> None:
    other = lesson.trace(CAT)
    given = with_value(other, name, value), other
    if view == "plot_shift" and refuses_a_plane(name, value):
        with pytest.raises(ValueError, match=r"^plot_shift: .* NaN, infinity or a number beyond "):
            VIEWS[view](*given)
        return
    made = VIEWS[view](*given)
    assert str(made)
    assert made.to_dict()
    assert made._document()
    picture = made.svg()
    ElementTree.fromstring(picture)
    assert '="nan"' not in picture
    assert '="inf"' not in picture


@pytest.mark.parametrize("value", [np.inf, -np.inf, 3e38, 1e300, -1.7e308])
@pytest.mark.parametrize("call", [show, head_view, compare])
def test_arrays_with_infinite_or_huge_weights_are_refused(call: Any, value: float) -> None:
    weights = np.full((1, 1, 3, 3), 1 / 3)
    weights[0, 0, 1] = value
    tokens, named = list("abc"), call.__name__
    given = (weights, weights) if call is compare else (weights,)
    with pytest.raises(ValueError, match=re.escape(f"{named}: attention holds {value:.3g}; pass")):
        call(*given, tokens=[tokens] * 2 if call is compare else tokens)


def test_only_an_infinite_weight_becomes_none_in_to_dict(lesson: Model) -> None:
    trace = with_value(lesson.trace(CAT), "pattern", np.inf, np.s_[0, 1, 2, 3])
    found = show(trace, layer=0, head=1).to_dict()["weights"]
    expected = trace.pattern(0, 1).tolist()
    expected[2][3] = None
    assert found == expected


@pytest.mark.parametrize("value", [np.inf, np.nan, 0.0])
def test_a_walk_over_summaries_without_a_link_is_refused(value: float, lesson: Model) -> None:
    kept = lesson.trace(CAT, top_k=2)
    with pytest.raises(ValueError, match="walk: this trace holds only summaries of layer 0"):
        walk(with_value(kept, "top_weights", value, ...))


@pytest.mark.parametrize("value", VALUES)
def test_image_view_refuses_infinite_nan_or_huge_weights(value: float, lesson: Model) -> None:
    trace = lesson.trace("cat sat mat")
    arrays = {name: trace[name].astype(np.float64) for name in trace.names()}
    arrays["blocks.0.attn.hook_pattern"][0, 0, 0] = value
    seen = Trace(arrays, tokens=[patch_names(1, 2)], special=[[True, False, False]])
    with pytest.raises(ValueError, match="image_view: weights of layer 0 are NaN, infinite or"):
        image_view(seen, np.zeros((4, 8, 3), np.uint8))


@pytest.mark.parametrize("value", VALUES)
def test_plot_shift_refuses_vectors_that_are_not_finite(value: float) -> None:
    before = np.eye(3)
    after = before.copy()
    after[1, 1] = value
    if np.isfinite(value):  # every vector is drawn with length 1
        assert plot_shift(before, after, list("abc"))
        return
    with pytest.raises(ValueError, match="plot_shift: contextual has NaN, infinity or a number"):
        plot_shift(before, after, list("abc"))

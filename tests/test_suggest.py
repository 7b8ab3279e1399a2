"""Tests that errors about unknown names suggest only names that are similar."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from click import UsageError

import qkv
from qkv._suggest import nearest, suggestion
from qkv.cli import main
from qkv.ops.activation import activation_named

NONSENSE = "zzzzqqq"


def test_nearest_orders_similar_names_and_leaves_out_others() -> None:
    # the similarity of two names is 2 * equal letters / all letters: 0, 12/14, 12/13 and 2/10
    names = ["q", "patterns", "pattern", "next"]
    assert nearest("patern", names) == ["pattern", "patterns"]
    assert nearest("patern", names, 1) == ["pattern"]
    assert nearest(NONSENSE, ["pattern", "embed"]) == []


def test_a_suggestion_lists_names_that_are_near_or_at_most_ten() -> None:
    assert suggestion(["a", "b", "a"], "xyz") == "the nearest are a, b"
    assert suggestion(["a"], "xyz", "the nearest names are") == "the nearest names are a"
    assert suggestion([], "xyzx") == "choose from x, y, z"
    assert suggestion([], "abcdefghij") == "choose from a, b, c, d, e, f, g, h, i, j"
    assert suggestion([], "abcdefghijkl").endswith("h, i, j and 2 more")


@pytest.mark.parametrize(
    ("call", "error", "way_out"),
    [
        (lambda m: m.trace("the cat")[NONSENSE], KeyError, "choose from embed, "),
        (lambda m: m.trace("the cat")[NONSENSE, 0], KeyError, "choose from embed, "),
        (lambda m: m.trace("the cat", names=NONSENSE), KeyError, "choose from embed, "),
        (lambda m: m.gradient("the cat", of={(NONSENSE, 0): [1]}), KeyError, "choose from "),
        (
            lambda m: m.parameters.__setitem__(NONSENSE, np.ones(1)),
            KeyError,
            r"choose from embed\.weight, blocks\.0\.attn\.q_proj\.weight, ",
        ),
        (lambda m: qkv.load(NONSENSE), ValueError, "choose from books, books-decoder, "),
        (lambda m: qkv.load("random", **{NONSENSE: 1}), TypeError, "choose from name_or_path"),
        (lambda m: setattr(m, NONSENSE, 1), AttributeError, f"attribute '{NONSENSE}'$"),
        (lambda m: activation_named(NONSENSE), ValueError, "choose from gelu"),
        (
            lambda m: main.resolve_command(main.make_context("qkv", ["info"]), [NONSENSE]),
            UsageError,
            "choose from bench, ",
        ),
    ],
)
def test_nonsense_has_no_nearest_name(
    call: Callable[[Any], Any], error: type[Exception], way_out: str
) -> None:
    with pytest.raises(error) as raised:
        call(qkv.load("random"))
    message = str(raised.value.args[0])
    assert NONSENSE in message
    assert "nearest" not in message
    assert "did you mean" not in message
    assert re.search(way_out, message), message

"""Rows 1 to 20 of docs/coming-from.md: runs, activations, logits and weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from .coming_from import Theirs, row


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Theirs:
    return Theirs(tmp_path_factory.mktemp("coming-from"))


@pytest.mark.parametrize("number", [1, 2])
@torch.no_grad()
def test_row(theirs: Theirs, number: int) -> None:
    theirs.hold(number)


@row(1)
def run(theirs: Theirs) -> Any:
    names = ("resid_pre", "resid_post", "attn_out", "mlp_out", "mlp.pre", "mlp.post", *"qkvz")
    found: dict[Any, Any] = {**theirs.seen(theirs.ids(theirs.text), *names, "pattern")}
    return found | {"logits": found.pop(("logits", 0))}


@row(2)
def weights(theirs: Theirs) -> Any:
    return theirs.seen(theirs.ids(theirs.text), "pattern")["pattern", 1][0, 2]

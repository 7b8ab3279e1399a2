"""Tests of the cross-entropy of each token, against logarithms of probabilities in float64."""

from __future__ import annotations

import numpy as np
import pytest

import qkv

TEXT = "the king took off his crown"


def expected(logits: np.ndarray, ids: np.ndarray) -> list[float]:
    rows = np.exp(logits.astype(float))
    return [-np.log(rows[i, ids[i + 1]] / rows[i].sum()) for i in range(len(ids) - 1)]


@pytest.mark.parametrize("ablate", [(), [(1, 2)]])
def test_each_token_given_the_tokens_before_it(ablate: list[tuple[int, int]]) -> None:
    model = qkv.load("books-decoder")
    ids = model.tokenize(TEXT).ids
    losses = model.losses(TEXT, ablate=ablate)
    assert losses.shape == (len(ids) - 1,)
    np.testing.assert_allclose(
        losses, expected(model(ids[None], ablate=ablate).logits[0], ids), atol=2e-5
    )
    for same in (ids, ids[None]):
        np.testing.assert_array_equal(model.losses(same, ablate=ablate), losses)


def test_a_single_token_has_no_losses() -> None:
    assert qkv.load("books-decoder").losses("the").shape == (0,)


def test_losses_refuses_several_texts() -> None:
    with pytest.raises(ValueError, match=r"losses: 2 texts are given; pass one text per call"):
        qkv.load("books-decoder").losses([TEXT, TEXT])

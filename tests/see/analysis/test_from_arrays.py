"""Tests of `heads_from`: the attention arrays that it reads, and the inputs that it rejects."""

from typing import Any

import numpy as np
import pytest

from qkv.see.analysis._view_inputs import heads_from

RNG = np.random.default_rng(0)
WEIGHTS = RNG.dirichlet(np.ones(4), size=(2, 3, 4))  # (layers, heads, L, S)
TOKENS = ["<s>", "a", "b", "."]


class Tensor:
    """Imitate a tensor that requires gradients and is on a GPU."""

    def __init__(self, array: np.ndarray, ready: int = 0) -> None:
        self.array, self.ready, self.shape = array, ready, array.shape

    def detach(self) -> "Tensor":
        return Tensor(self.array, 1)

    def cpu(self) -> "Tensor":
        return Tensor(self.array, self.ready + 1)

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        if self.ready < 2:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad.")
        return self.array


@pytest.mark.parametrize(
    "given",
    [
        WEIGHTS,
        WEIGHTS[:, None],
        WEIGHTS.tolist(),
        list(WEIGHTS),
        tuple(WEIGHTS[:, None]),
        [Tensor(layer[None]) for layer in WEIGHTS],
        Tensor(WEIGHTS),
    ],
)
def test_every_form_of_attention_is_read(given: Any) -> None:
    heads = heads_from(given, TOKENS)
    np.testing.assert_allclose(np.array(heads.weights), WEIGHTS, rtol=1e-6)
    assert (heads.layers, heads.count, heads.cells) == ([0, 1], 3, 96)
    assert heads.queries.special == [True, False, False, False]


@pytest.mark.parametrize(
    ("given", "tokens", "error", "said"),
    [
        (WEIGHTS[0, 0], TOKENS, ValueError, r"has shape \(4, 4\); pass \(layers, heads, L, S\)"),
        (WEIGHTS, TOKENS[:3], ValueError, "has 4 queries, but there are 3 tokens"),
        (WEIGHTS, "abcd", TypeError, "the tokens are one string"),
        (WEIGHTS[..., :3], TOKENS, ValueError, "4 queries and 3 keys: .*head_view"),
        ([WEIGHTS], TOKENS, ValueError, "layer 0 has 2 texts; pass one text"),
        ([WEIGHTS[0], WEIGHTS[1, :2]], TOKENS, ValueError, r"has shape \(2, 4, 4\) in layer 1 and"),
        ([None, None], TOKENS, ValueError, "layer 0 is None: .*eager"),
        ([], TOKENS, ValueError, r"has shape \(0,\)"),
        (WEIGHTS * 40, TOKENS, ValueError, "pass weights from 0 to 1"),
        (WEIGHTS - 0.5, TOKENS, ValueError, "attention of layer|attention holds -0"),
        (WEIGHTS.astype(complex), TOKENS, TypeError, "complex128; pass weights"),
    ],
)
def test_bad_weights_or_tokens_are_refused(given: Any, tokens: Any, error: type, said: str) -> None:
    with pytest.raises(error, match=f"{said}"):
        heads_from(given, tokens)


def test_keys_may_be_other_tokens() -> None:
    heads = heads_from([WEIGHTS[0, :, :, :2]], TOKENS, ["x", "</s>"])
    assert (heads.keys.tokens, heads.keys.special) == (["x", "</s>"], [False, True])
    weights, queries, keys = heads.best_links(0)
    # links from <s>, from the full stop and to </s> do not count
    expected = WEIGHTS[0, :, 1:3, 0]
    np.testing.assert_array_equal(weights, expected.max(axis=1))
    np.testing.assert_array_equal(queries, expected.argmax(axis=1) + 1)
    assert keys.tolist() == [0, 0, 0]

"""Tests of the task `mask`: right and wrong functions in the style of a learner."""

import math

import numpy as np
import pytest

from qkv_marking import check
from qkv_marking.tasks._mask import KNOWN
from qkv_marking.tasks.attention.mistakes import LARGE_MASK as LARGE, OF_TEXTS as TEXTS, WEAK


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def scaled(q, k):
    return q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])


def hide(scores, visible):
    scores = np.where(visible, scores, -np.inf)
    top = scores.max(axis=-1, keepdims=True)
    e = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = e.sum(axis=-1, keepdims=True)
    return e / np.where(total == 0, 1, total)


# -- right answers --------------------------------------------------------------------------------


def of_bools(query, key, value, mask):
    return hide(scaled(query, key), mask) @ value


def of_numbers_to_add(q, k, v, mask=None):
    scores = scaled(q, k)
    return hide(scores if mask is None else scores + mask, True) @ v


def in_loops(q, k, v, mask):
    out = np.zeros((len(q), v.shape[1]))
    for i, qi in enumerate(q):
        seen = [j for j in range(len(k)) if mask[i][j]]
        scores = [sum(a * b for a, b in zip(qi, k[j], strict=True)) for j in seen]
        top = max(scores, default=0)
        e = [math.exp((s - top) / math.sqrt(len(qi))) for s in scores]
        for j, one in zip(seen, e, strict=True):
            out[i] += one / sum(e) * v[j]
    return out


def with_einsum(q, k, v, attn_mask=None, is_causal=False):
    scores = np.einsum("...id,...jd->...ij", q, k) * q.shape[-1] ** -0.5
    visible = np.ones(scores.shape[-2:], dtype=bool)
    if is_causal:
        visible = np.tril(visible)
    if attn_mask is not None:
        visible = visible & attn_mask
    return np.einsum("...ij,...jv->...iv", hide(scores, visible), v)


def renormalised(q, k, v, attention_mask):
    weights = softmax(scaled(q, k)) * attention_mask
    total = weights.sum(axis=-1, keepdims=True)
    return np.divide(weights, total, out=np.zeros_like(weights), where=total > 0) @ v


RIGHT = [of_bools, of_numbers_to_add, in_loops, with_einsum]


@pytest.mark.parametrize("function", RIGHT)
def test_right_masked_attention_has_all_points(function):
    result = check(function, task="mask")
    assert result.passed, str(result)
    assert result.mistakes == result.fragile == result.conventions == result.hint == ()
    assert result.points == 10
    assert result.task == "mask"


def test_message_says_what_was_tried():
    said = " ".join(check(of_bools, task="mask").message.split())
    for tried in ("a mask", "a row masked out", "a mask on scores of 1000", "padding of two texts"):
        assert tried in said
    said = check(of_numbers_to_add, task="mask").message
    assert "to add to the scores, not a mask of True and False" in said


def test_masks_of_a_large_negative_number_are_fragile():
    def attention(q, k, v, mask):
        return softmax(np.where(mask, scaled(q, k), -1e9)) @ v

    result = check(attention, task="mask")
    assert result.passed
    assert result.fragile == ("masked-row-uniform",)
    assert result.points == 9


# -- wrong answers --------------------------------------------------------------------------------


def masked(before=lambda s, m: s, after=lambda w, m: w, read=lambda m: m):
    def attention(q, k, v, mask):
        return after(softmax(before(scaled(q, k), read(mask))), read(mask)) @ v

    return attention


def instead(number):
    return lambda s, m: np.where(m, s, number)


def in_each(mask):
    """Return a function that changes the masks of batches, and keeps other masks.

    The returned function calls `mask` on each mask (B, L, S).
    """
    return lambda m: mask(m) if m.ndim == 3 else m


def hidden_before_softmax_and_after(q, k, v, mask):
    """Swap the arguments of the first np.where, so that visible keys are masked too."""
    weights = softmax(np.where(mask, -1e9, scaled(q, k)))
    return np.where(mask, weights, 0) @ v


def hidden_right(read):
    def attention(q, k, v, mask):
        return hide(scaled(q, k), read(mask)) @ v

    return attention


WRONG = [
    ("mask-inverted", hidden_right(np.logical_not)),
    ("mask-ignored", hidden_right(np.ones_like)),
    ("mask-transposed", hidden_right(lambda m: np.swapaxes(m, -1, -2))),
    ("mask-multiplied", masked(lambda s, m: s * m)),
    ("mask-added", masked(lambda s, m: s + np.where(m == 1, 1, 0))),
    ("mask-added", masked(lambda s, m: s + m)),
    ("mask-added", lambda q, k, v, mask=None: softmax(scaled(q, k) + (mask is None or mask)) @ v),
    ("mask-per-key", hidden_right(lambda m: m if m.ndim == 1 else 1 / 0)),
    ("mask-after-softmax", masked(after=lambda w, m: w * m)),
    ("mask-too-weak", masked(instead(-5))),
    ("mask-too-weak", masked(lambda s, m: s - 10.0 * ~m)),
    ("mask-times-inf", masked(lambda s, m: s + (1 - m) * -np.inf)),
    ("mask-inf-after-softmax", masked(after=lambda w, m: np.where(m, w, -np.inf))),
    ("mask-plus-inf", masked(instead(np.inf))),
    ("mask-plus-inf", masked(lambda s, m: s + (1 - m) * 1e9)),
    ("mask-times-large", masked(lambda s, m: s * np.where(m, 1, -np.inf))),
    ("mask-times-large", masked(lambda s, m: s * np.where(m, 1, -1e9))),
    ("mask-inverted", hidden_before_softmax_and_after),
    ("scale-tokens", lambda q, k, v, mask: hide(q @ k.T / np.sqrt(len(k)), mask) @ v),
    ("mask-of-first-text", hidden_right(in_each(lambda m: m[:1]))),
    ("mask-of-all-texts", hidden_right(in_each(lambda m: m.all(axis=0)))),
    ("mask-of-all-texts", hidden_right(in_each(lambda m: m.any(axis=0)))),
    ("no-scaling", lambda q, k, v, mask: hide(q @ np.swapaxes(k, -1, -2), mask) @ v),
    ("returns-nothing", lambda q, k, v, mask: None),
]


@pytest.mark.parametrize(("key", "function"), WRONG)
def test_mistake_is_named(key, function):
    result = check(function, task="mask")
    assert not result
    assert result.mistakes == (key,), str(result)
    assert len({*result.hint}) == 3


def zeroed_where_nothing_is_seen(number):
    def attention(q, k, v, mask):
        weights = softmax(np.where(mask, scaled(q, k), number))
        return weights * mask.any(axis=-1, keepdims=True) @ v

    return attention


def over_a_little_more(number):
    def attention(q, k, v, mask):
        scores = scaled(q, k)
        e = np.exp(scores - scores.max(axis=-1, keepdims=True)) * mask
        return e / (e.sum(axis=-1, keepdims=True) + number) @ v

    return attention


FRAGILE = [
    ("mask-not-low-enough", zeroed_where_nothing_is_seen(-100)),
    ("mask-not-low-enough", zeroed_where_nothing_is_seen(-1000)),
    ("mask-not-low-enough", masked(instead(-100), lambda w, m: np.where(m, w, 0))),
    ("mask-not-low-enough", masked(lambda s, m: s - 100 * ~m, lambda w, m: np.where(m, w, 0))),
    ("mask-max-of-hidden", renormalised),
    ("mask-max-of-hidden", over_a_little_more(1e-9)),
    ("mask-max-of-hidden", over_a_little_more(1e-12)),
    ("masked-row-nan", masked(instead(-np.inf))),
    ("masked-row-uniform", masked(instead(-1e9))),
]


@pytest.mark.parametrize(("key", "function"), FRAGILE)
def test_what_is_fragile_passes_with_a_point_less(key, function):
    result = check(function, task="mask")
    assert result.passed, str(result)
    assert result.fragile == (key,), str(result)
    assert result.points == 9


def test_masking_every_key_is_shown_with_the_mask_and_has_points():
    result = check(hidden_before_softmax_and_after, task="mask")
    assert result.points <= 8
    assert np.array_equal(result.example["mask"], np.eye(2))
    assert not result.example["yours"].any()


def test_adding_a_large_number_is_shown_with_a_boolean_mask():
    result = check(masked(lambda s, m: s + (1 - m) * 1e9), task="mask")
    assert result.example["mask"].dtype == bool


def test_mistakes_of_some_masks_are_not_reported_by_length():
    def hides_scores_above_zero(s, m):
        return np.where(m | (s <= 0), s, -np.inf)

    assert check(masked(hides_scores_above_zero), task="mask").mistakes == ("unknown",)


def test_an_unrequested_causal_mask_is_named_with_a_mask_hint():
    def causal_too(q, k, v, mask):
        return hide(scaled(q, k), mask & np.tri(q.shape[-2], k.shape[-2], dtype=bool)) @ v

    result = check(causal_too, task="mask")
    assert result.mistakes == ("causal-always",)
    assert "mask" in result.hint[1]


def test_attention_without_a_mask_parameter_is_a_type_error():
    with pytest.raises(TypeError, match="no parameter for a mask"):
        check(lambda q, k, v: v, task="mask")


# -- the causal mask itself -----------------------------------------------------------------------


def lower(length):
    return np.tril(np.ones((length, length), dtype=bool))


def lower_in_loops(n):
    return [[j <= i for j in range(n)] for i in range(n)]


def lower_of_positions(length):
    positions = np.arange(length)
    return positions[None, :] <= positions[:, None]


def to_add(length):
    return np.triu(np.full((length, length), -np.inf), k=1)


@pytest.mark.parametrize("function", [lower, lower_in_loops, lower_of_positions, to_add])
def test_right_causal_mask_has_all_points(function):
    result = check(function, task="mask")
    assert result.passed, str(result)
    assert result.mistakes == result.fragile == result.conventions == ()
    assert result.points == 10


def of_positions(rule):
    return lambda n: rule(np.arange(n)[:, None], np.arange(n)) & np.ones((n, n), dtype=bool)


WRONG_CAUSAL = [
    ("causal-diagonal", of_positions(lambda i, j: j < i)),
    ("causal-ahead", of_positions(lambda i, j: j <= i + 1)),
    ("causal-upper", of_positions(lambda i, j: j >= i)),
    ("causal-upper", lambda n: np.tril(np.full((n, n), -np.inf), k=0)),
    ("causal-everything", of_positions(lambda i, j: j >= 0)),
    ("causal-nothing", of_positions(lambda i, j: j < 0)),
    ("causal-itself", lambda n: np.eye(n, dtype=bool)),
    ("wrong-shape", lambda n: lower(n + 1)),
    ("returns-nothing", lambda n: None),
    ("unknown", lambda n: lower(n) if n > 1 else ~lower(n)),
    ("unknown", lambda n: np.linspace(0, 1, n * n).reshape(n, n)),
]


@pytest.mark.parametrize(("key", "function"), WRONG_CAUSAL)
def test_mistake_of_a_causal_mask_is_named(key, function):
    result = check(function, task="mask")
    assert result.mistakes == (key,), str(result)


def test_causal_masks_of_other_conventions_lose_points():
    result = check(lambda n: ~lower(n), task="mask")
    assert (result.points, result.mistakes) == (8, ("mask-true-hides",))
    result = check(lambda n: np.tril(np.ones((n, n))), task="mask")
    assert (result.points, result.mistakes) == (8, ("mask-of-numbers",))
    result = check(lambda n: np.triu(np.full((n, n), -1e9), k=1), task="mask")
    assert (result.points, result.fragile) == (9, ("mask-finite",))


def test_every_known_mistake_is_made_above():
    made = {key for key, _ in WRONG + FRAGILE + WRONG_CAUSAL}
    assert {one.key for one in (*WEAK, *LARGE, *TEXTS, *KNOWN) if not one.alone} <= made
    for one in (*WEAK, *LARGE, *TEXTS, *KNOWN):
        assert one.nudge
        assert len({*one.hint}) == 3


@pytest.mark.parametrize(
    ("function", "right"),
    [
        (lambda n: ~lower(n), lower(2)),
        (lambda n: lower(n).astype(int), lower(2)),
        (lambda n: np.triu(np.full((n, n), -1e9), k=1), to_add(2)),
    ],
)
def test_a_mask_of_another_kind_is_shown_as_it_came_back(function, right):
    example = check(function, task="mask").example
    assert np.array_equal(example["yours"], function(2))
    assert np.array_equal(example["right"], right)
    assert example["yours"].dtype == function(2).dtype

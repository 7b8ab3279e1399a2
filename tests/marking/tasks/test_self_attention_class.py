"""Tests of the task `self-attention-class`: right and wrong classes."""

import numpy as np
import pytest

from qkv import layers
from qkv_marking import check

from ..formulas import hide, softmax
from ..written import is_flawless

TASK = "self-attention-class"


class SelfAttention:
    """A right layer; wrong layers override one of its methods."""

    def __init__(self, embed_dim, num_heads):
        self.refuse(embed_dim, num_heads)
        self.num_heads, self.size = num_heads, embed_dim // num_heads
        self.draw(np.random.default_rng(3), embed_dim)

    def refuse(self, embed_dim, num_heads):
        if embed_dim % num_heads:
            raise ValueError(f"embed_dim={embed_dim} does not divide by num_heads={num_heads}")

    def draw(self, rng, width):
        self.w_q, self.w_k, self.w_v, self.w_o = rng.normal(size=(4, width, width)) / width**0.5

    def split(self, a):
        return np.moveaxis(a.reshape(*a.shape[:-1], self.num_heads, self.size), -2, -3)

    def join(self, a):
        a = np.moveaxis(a, -3, -2)
        return a.reshape(*a.shape[:-2], -1)

    def scale(self, x):
        return self.size**0.5

    def output(self, context, x):
        return context @ self.w_o

    def score(self, x):
        """Return the scores and the values."""
        q, k, v = (self.split(x @ w) for w in (self.w_q, self.w_k, self.w_v))
        return q @ np.swapaxes(k, -1, -2) / self.scale(x), v

    def __call__(self, x):
        scores, v = self.score(x)
        self.weights = softmax(scores)
        return self.output(self.join(self.weights @ v), x)


def made(base=SelfAttention, **parts):
    """Return a right class with some methods replaced."""
    return type("SelfAttention", (base,), parts)


# -- right answers --------------------------------------------------------------------------------


class OneArrayForEach:
    """A layer with weights (H, D, d) and (H, d, D) that also returns attention weights."""

    def __init__(self, embed_dim, num_heads):
        if embed_dim % num_heads != 0:
            raise ValueError("no")
        rng, size = np.random.default_rng(0), embed_dim // num_heads
        drawn = rng.normal(size=(3, num_heads, embed_dim, size)) / embed_dim**0.5
        self.W_Q, self.W_K, self.W_V = drawn
        self.W_O = rng.normal(size=(num_heads, size, embed_dim))

    def __call__(self, x):
        q, k, v = (np.einsum("td,hde->hte", x, w) for w in (self.W_Q, self.W_K, self.W_V))
        weights = softmax(np.einsum("hqe,hke->hqk", q, k) * q.shape[-1] ** -0.5)
        return np.einsum("hqk,hke,hed->qd", weights, v, self.W_O), weights


class Fused(SelfAttention):
    """A layer with biases, and one matrix (out, in) for query, key and value."""

    def draw(self, rng, width):
        self.qkv_weight = rng.normal(size=(3 * width, width)) / width**0.5
        self.qkv_bias = rng.normal(size=3 * width)
        self.proj_weight, self.proj_bias = rng.normal(size=(width, width)), rng.normal(size=width)

    def __call__(self, x):
        both = x @ self.qkv_weight.T + self.qkv_bias
        q, k, v = (self.split(a) for a in np.split(both, 3, axis=-1))
        weights = softmax(q @ np.swapaxes(k, -1, -2) / self.size**0.5)
        return self.join(weights @ v) @ self.proj_weight.T + self.proj_bias


class OfThisLibrary(layers.SelfAttention):
    def __init__(self, embed_dim, num_heads):
        super().__init__(embed_dim, num_heads, seed=0)


class BatchesOnly(SelfAttention):
    def __call__(self, x):
        assert x.ndim == 3, "batch, tokens, width"
        return super().__call__(x)


class FromASeed(SelfAttention):
    """The layer of the lesson, which draws its weights from a seed."""

    def __init__(self, embed_dim, num_heads, seed=0):
        self.refuse(embed_dim, num_heads)
        self.num_heads, self.size = num_heads, embed_dim // num_heads
        self.draw(np.random.default_rng(seed), embed_dim)


class FromASeedThatMustBeGiven(FromASeed):
    def __init__(self, embed_dim, num_heads, *, seed):
        super().__init__(embed_dim, num_heads, seed)


class WithQueriesKept(SelfAttention):
    """A layer that keeps its queries, keys and values as attributes."""

    def __call__(self, x):
        self.q, self.k, self.v = x @ self.w_q, x @ self.w_k, x @ self.w_v
        return super().__call__(x)


RIGHT = [
    *(SelfAttention, OneArrayForEach, Fused, BatchesOnly),
    *(FromASeed, FromASeedThatMustBeGiven, WithQueriesKept),
]


@pytest.mark.parametrize("right", RIGHT)
def test_a_right_class_gets_all_points(right):
    result = check(right, task=TASK)
    assert is_flawless(result), str(result)
    assert "one head and several" in result.message


def test_a_class_of_this_library_is_right_but_nobodys_own():
    result = check(OfThisLibrary, task=TASK)
    assert (result.mistakes, result.points) == (("answered-by-library",), 0)


def attended(layer, x, visible):
    """Return a right layer's output with a mask; fully masked words get zeros."""
    scores, v = layer.score(x)
    return layer.join(hide(scores, visible) @ v) @ layer.w_o


def lower(x):
    return np.tri(x.shape[-2], dtype=bool)


class WithMask(SelfAttention):
    def __call__(self, x, mask=None):
        return attended(self, x, True if mask is None else mask)


class WithMaskRequired(SelfAttention):
    def __call__(self, x, attention_mask):
        return attended(self, x, attention_mask)


class WithMaskToAdd(SelfAttention):
    def __call__(self, x, mask=0.0):
        return attended(self, x, np.broadcast_to(mask > -1, (len(x), len(x))))


class WithBoth(SelfAttention):
    def forward(self, x, attn_mask=None, is_causal=False):
        visible = np.ones((x.shape[-2],) * 2, dtype=bool) if attn_mask is None else attn_mask
        return attended(self, x, visible & lower(x) if is_causal else visible)

    __call__ = forward


class CausalWhenBuilt(SelfAttention):
    def __init__(self, embed_dim, num_heads, causal=True):
        super().__init__(embed_dim, num_heads)
        self.causal = causal

    def __call__(self, x):
        return attended(self, x, lower(x) if self.causal else True)


class RefusesAMask(SelfAttention):
    def __call__(self, x, mask=None):
        if mask is not None:
            raise NotImplementedError("masks come later")
        return super().__call__(x)


@pytest.mark.parametrize(
    ("right", "tried", "untried"),
    [
        (SelfAttention, [], "mask, is_causal, seed"),
        (WithMask, ["a mask", "a row masked out"], "is_causal, seed"),
        (WithMaskRequired, ["a mask", "a row masked out"], "is_causal, seed"),
        (WithMaskToAdd, ["a mask"], "is_causal, seed"),
        (WithBoth, ["a mask", "a causal mask"], "seed"),
        (CausalWhenBuilt, ["a causal mask"], "mask, seed"),
        (RefusesAMask, [], "is_causal, seed"),
        (FromASeed, ["seeds"], "mask, is_causal"),
    ],
)
def test_masks_are_tried_where_the_layer_takes_them(right, tried, untried):
    result = check(right, task=TASK)
    said = " ".join(result.message.split())
    assert is_flawless(result), said
    for what in tried:
        assert f", {what}" in said
    assert said.endswith(f"Not tried, because the function has no such parameter: {untried}.")
    assert ("0 and -inf to add" in said) == (right is WithMaskToAdd)
    assert ("The function refuses a mask: NotImplementedError" in said) == (right is RefusesAMask)


def masked(visible):
    def call(self, x, mask=None, is_causal=False):
        mask = np.ones((x.shape[-2],) * 2, dtype=bool) if mask is None else mask
        return attended(self, x, visible(mask, lower(x) if is_causal else mask | True))

    return made(__call__=call)


def after_softmax(self, x, mask=None):
    scores, v = self.score(x)
    return self.join(softmax(scores) * (1 if mask is None else mask) @ v) @ self.w_o


@pytest.mark.parametrize(
    ("wrong", "key"),
    [
        (masked(lambda mask, causal: causal & (mask.all() | ~mask)), "mask-inverted"),
        (masked(lambda mask, causal: causal), "mask-ignored"),
        (masked(lambda mask, causal: mask.T & causal), "mask-transposed"),
        (made(__call__=after_softmax), "mask-after-softmax"),
        (masked(lambda mask, causal: mask), "causal-ignored"),
        (masked(lambda mask, causal: mask & causal.T), "causal-upper"),
        (made(CausalWhenBuilt, __call__=lambda self, x: attended(self, x, True)), "causal-ignored"),
        (made(CausalWhenBuilt, __call__=lambda *it: attended(*it, lower(it[1]))), "causal-always"),
    ],
)
def test_a_mistake_of_masks_is_told_by_its_name(wrong, key):
    result = check(wrong, task=TASK)
    assert result.mistakes == (key,), str(result)
    assert result.points <= 8


def test_nan_in_a_fully_masked_row_is_fragile():
    class Nan(SelfAttention):
        def __call__(self, x, mask=None):
            scores, v = self.score(x)
            scores = scores if mask is None else np.where(mask, scores, -np.inf)
            return self.join(softmax(scores) @ v) @ self.w_o

    result = check(Nan, task=TASK)
    assert (result.points, result.fragile) == (9, ("masked-row-nan",)), str(result)


def test_a_layer_with_extra_required_parameters_is_a_type_error():
    wrong = made(__call__=lambda self, query, key, value: query)
    with pytest.raises(
        TypeError, match=r"check: \w+\(x\) is called, but the signature is .*query, key, value"
    ):
        check(wrong, task=TASK)


def drawn_as(draw):
    """Return the right class, with weights from `draw(rng, shape, width)`."""

    def all_four(self, rng, width):
        self.w_q, self.w_k, self.w_v, self.w_o = draw(rng, (4, width, width), width)

    return made(draw=all_four)


@pytest.mark.parametrize(
    "draw",
    [
        lambda rng, shape, width: rng.uniform(-1, 1, shape) * width**-0.5,
        lambda rng, shape, width: rng.uniform(-1, 1, shape) * (3 / width) ** 0.5,
        lambda rng, shape, width: rng.normal(size=shape) * (2 / width) ** 0.5,
    ],
)
def test_other_initial_weights_may_keep_the_scale_of_the_input(draw):
    assert check(drawn_as(draw), task=TASK).points == 10


@pytest.mark.parametrize(
    ("names", "size", "said"),
    [
        # signs of size 1: the products are sqrt(64) times as large
        ("w_q w_k w_v w_o", lambda width: 1 if width == 64 else width**-0.5,
         "with embed_dim=64, the product with w_q is 8 times as large"),
        ("w_k", lambda width: 1, "embed_dim=64, the product with w_k is"),
        ("w_v", lambda width: 1 / 32, "w_v is 0.25 times as large"),  # sqrt(64) / 32
    ],
)  # fmt: skip
def test_unscaled_weights_are_reported_with_their_effect(names, size, said):
    def draw(self, rng, width):
        SelfAttention.draw(self, rng, width)
        for name in names.split():
            setattr(self, name, rng.choice([-1.0, 1.0], (width, width)) * size(width))

    assert said in check(made(draw=draw), task=TASK).message


def test_a_class_for_small_widths_skips_the_weight_scale_check():
    def refuse(self, embed_dim, num_heads):
        if embed_dim > 8 or embed_dim % num_heads:
            raise ValueError("too large")

    result = check(made(refuse=refuse), task=TASK)
    assert result.points == 10


# -- wrong answers --------------------------------------------------------------------------------


class OneWeight(SelfAttention):
    """A layer with the matrices of a single head, which all heads share."""

    def draw(self, rng, width):
        self.w_q, self.w_k, self.w_v = rng.normal(size=(3, width, self.size))
        self.w_o = rng.normal(size=(width, width))

    def __call__(self, x):
        head = softmax(x @ self.w_q @ (x @ self.w_k).T / np.sqrt(self.size)) @ x @ self.w_v
        return np.concatenate([head] * self.num_heads, axis=-1) @ self.w_o


class Slices(SelfAttention):
    """A layer that splits x into heads before it projects each slice with a matrix (d, d)."""

    def draw(self, rng, width):
        self.w_q, self.w_k, self.w_v = rng.normal(size=(3, self.size, self.size))
        self.w_o = rng.normal(size=(width, width))

    def __call__(self, x):
        x = self.split(x)
        weights = softmax(x @ self.w_q @ np.swapaxes(x @ self.w_k, -1, -2) / np.sqrt(self.size))
        return self.join(weights @ (x @ self.w_v)) @ self.w_o


class SlicesOfTheirOwn(Slices):
    def draw(self, rng, width):
        self.w_q, self.w_k, self.w_v = rng.normal(size=(3, self.num_heads, self.size, self.size))
        self.w_o = rng.normal(size=(width, width))


class ForwardAlone:
    """A layer with a method `forward` and no `__call__`."""

    def __init__(self, embed_dim, num_heads):
        self.inner = SelfAttention(embed_dim, num_heads)

    def forward(self, x):
        return self.inner(x)


@pytest.mark.parametrize(
    ("wrong", "keys"),
    [
        (OneWeight, ("class-one-weight",)),
        (SlicesOfTheirOwn, ("class-slices",)),
        (Slices, ("class-slices", "class-one-weight")),
        (ForwardAlone, ("class-not-called",)),
    ],
)
def test_a_mistake_of_the_weights_is_told_by_its_name(wrong, keys):
    result = check(wrong, task=TASK)
    assert (result.mistakes, result.points < 9) == (keys, True), str(result)


class Closed(SelfAttention):
    """A layer that hides its weights in a closure."""

    def __init__(self, embed_dim, num_heads):
        super().__init__(embed_dim, num_heads)
        inner = SelfAttention(embed_dim, num_heads)
        del self.w_q, self.w_k, self.w_v, self.w_o
        self.run = lambda x: self.treat(inner, x)

    def treat(self, inner, x):
        return inner(x)

    def __call__(self, x):
        return self.run(x)


def test_weights_under_other_names_leave_the_numbers_unchecked():
    result = check(Closed, task=TASK)
    assert (result.mistakes, result.points < 9) == (("class-weights-hidden",), True), str(result)
    assert "could not check the numbers" in " ".join(str(result).split())


@pytest.mark.parametrize(
    ("treat", "key"),
    [
        (lambda self, inner, x: inner(x) + np.arange(len(x))[:, None], "class-order-matters"),
        (lambda self, inner, x: x @ inner.w_v @ inner.w_o, "class-no-mixing"),
        (lambda self, inner, x: inner(x)[:1], "wrong-shape"),
    ],
)
def test_symmetries_reveal_mistakes_without_weights(treat, key):
    assert check(made(Closed, treat=treat), task=TASK).mistakes == (key,)


def test_a_mistake_of_many_heads_is_shown_on_two():
    example = check(made(scale=lambda self, x: x.shape[-1] ** 0.5), task=TASK).example
    assert example["layer"] == "SelfAttention(4, 2)"
    layer = layers.SelfAttention.from_weights(
        *(example[name] for name in ("w_q", "w_k", "w_v", "w_o")), num_heads=2
    )
    assert np.allclose(layer(example["x"][None])[0], example["right"], rtol=1e-6)


def test_a_class_with_nothing_to_call_is_told_so():
    class Empty:
        def __init__(self, embed_dim, num_heads): ...

        def attend(self, x): ...

    result = check(Empty, task=TASK)
    assert (result.mistakes, result.points) == (("class-not-called",), 0)


def test_an_unrelated_error_is_no_known_mistake():
    def call(self, x):
        if self.num_heads > 1:
            raise ValueError("not yet")
        return SelfAttention.__call__(self, x)

    assert check(made(__call__=call), task=TASK).mistakes == ("raises",)

"""Tests of the tasks with two texts: right and wrong functions in the style of a learner."""

import math

import numpy as np
import pytest

import qkv
from qkv_marking import check

from ..parts import gelu, gelu_tanh, layer_norm, rms_norm


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def attend(q, k, v, visible=True):
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    return softmax(np.where(visible, scores, -np.inf)) @ v


def keys(mask):
    return mask[..., None, :]


# -- cross-attention ------------------------------------------------------------------------------


def crossed(q="x", k="context", v="context", visible=keys, attend=attend):
    """Return cross-attention that computes q, k and v from the texts with these names."""

    def cross_attention(x, context, w_q, w_k, w_v, mask):
        texts = {"x": x, "context": context}
        return attend(texts[q] @ w_q, texts[k] @ w_k, texts[v] @ w_v, visible(mask))

    return cross_attention


def with_loops(x, context, w_q, w_k, w_v, mask):
    """Compute cross-attention in loops over texts, words and numbers; skip masked words."""
    if x.ndim == 3:
        return [
            with_loops(*text, w_q, w_k, w_v, there)
            for *text, there in zip(x, context, mask, strict=True)
        ]
    seen = [word for word, there in zip(context, mask, strict=True) if there]
    out = []
    for query in (word @ w_q for word in x):
        scores = [float(query @ (word @ w_k)) / math.sqrt(len(query)) for word in seen]
        powers = [math.exp(score - max(scores)) for score in scores]
        row = np.zeros(w_v.shape[1])
        for power, word in zip(powers, seen, strict=True):
            row += power / sum(powers) * (word @ w_v)
        out.append(row)
    return out


def with_einsum(x, context, w_q, w_k, w_v, mask):
    scores = np.einsum("...ld,de,fe,...sf->...ls", x, w_q, w_k, context) * w_q.shape[1] ** -0.5
    powers = np.exp(scores - scores.max(-1, keepdims=True)) * mask[..., np.newaxis, :]
    weights = powers / np.einsum("...ls->...l", powers)[..., None]
    return np.einsum("...ls,...sd,de->...le", weights, context, w_v)


def added(x, context, w_q, w_k, w_v, mask):
    """Compute transposed scores in float32, and add a mask of 0 and -1e30."""
    x, context, w_q, w_k, w_v = (a.astype(np.float32) for a in (x, context, w_q, w_k, w_v))
    bias = np.where(np.expand_dims(mask, -1), 0, -1e30)  # (..., S, 1)
    scores = (context @ w_k) @ np.swapaxes(x @ w_q, -1, -2) / np.sqrt(w_q.shape[1])  # (..., S, L)
    return np.swapaxes(softmax(scores + bias, axis=-2), -1, -2) @ (context @ w_v)


@pytest.mark.parametrize("function", [crossed(), with_loops, with_einsum, added])
def test_right_cross_attention_gets_all_points(function):
    for seed in (0, 7):
        result = check(function, task="cross-attention", seed=seed)
        assert (result.passed, result.points) == (True, 10), str(result)
        assert (result.fragile, result.conventions) == ((), ())
    assert "batches" in check(function, task="cross-attention").message


def test_the_right_output_equals_qkv_attention():
    """The right output of the example equals qkv.attention with keys and values of the context."""
    a = check(crossed(k="x"), task="cross-attention").example
    x, context = a["x"] @ a["w_q"], a["context"] @ a["w_k"]
    visible = np.broadcast_to(a["mask"], (len(x), len(context)))
    right = qkv.attention(x, context, a["context"] @ a["w_v"], visible)
    assert np.allclose(right, a["right"], rtol=1e-12)


def causal(q, k, v, visible):
    return attend(q, k, v, visible & np.tri(q.shape[-2], k.shape[-2], dtype=bool))


def causal_from_the_end(q, k, v, visible):
    ahead = k.shape[-2] - q.shape[-2]
    return attend(q, k, v, visible & np.tri(q.shape[-2], k.shape[-2], ahead, dtype=bool))


def unscaled(q, k, v, visible):
    return softmax(np.where(visible, q @ np.swapaxes(k, -1, -2), -np.inf)) @ v


def over_queries(q, k, v, visible):
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    return softmax(np.where(visible, scores, -np.inf), axis=-2) @ v


def zeros_for_hidden(q, k, v, visible):
    return softmax(q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1]) * visible) @ v


def after_softmax(q, k, v, visible):
    return (softmax(q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])) * visible) @ v


def low(q, k, v, visible):
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    return softmax(np.where(visible, scores, -1e9)) @ v


def turned_round(q, k, v, visible):
    return softmax(np.where(visible, q @ k.T / np.sqrt(q.shape[-1]), -np.inf)) @ v


def whole_texts(q, k, v, visible):
    whole = (-2, -1)
    scores = np.where(visible, q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1]), -np.inf)
    return softmax(scores, axis=whole) @ v


@pytest.mark.parametrize(
    ("function", "key"),
    [
        (crossed(k="x"), "cross-keys-from-x"),
        (crossed(v="x"), "cross-values-from-x"),
        (crossed(k="x", v="x"), "cross-self"),
        (crossed(q="context"), "cross-queries-from-context"),
        (crossed("context", "x", "x"), "cross-texts-exchanged"),
        (lambda x, y, w_q, w_k, *rest: crossed()(x, y, w_k, w_q, *rest), "query-key-swapped"),
        (crossed(attend=causal), "cross-causal"),
        (crossed(visible=lambda mask: True), "mask-ignored"),
        (crossed(visible=lambda mask: ~keys(mask)), "mask-inverted"),
        (crossed(visible=lambda mask: ~keys(mask), attend=low), "mask-inverted"),
        (crossed(visible=lambda mask: mask[..., :, None]), "cross-mask-on-queries"),
        (crossed(visible=lambda mask: mask), "cross-mask-on-batch"),
        (crossed(visible=lambda mask: mask[:1, None] if mask.ndim > 1 else mask), "mask-of-first-"),
        (crossed(attend=unscaled), "no-scaling"),
        (crossed(attend=over_queries), "softmax-columns"),
        (crossed(attend=whole_texts), "softmax-whole-matrix"),
        (crossed(attend=zeros_for_hidden), "mask-multiplied"),
        (crossed(attend=after_softmax), "mask-after-softmax"),
        (crossed(attend=turned_round), "batch-transpose"),
    ],
)
def test_a_mistake_in_cross_attention_is_told_by_its_name(function, key):
    result = check(function, task="cross-attention")
    assert len(result.mistakes) == 1, str(result)
    assert result.mistakes[0].startswith(key), str(result)
    assert result.points <= 8
    assert_hints(result)


def test_a_causal_mask_aligned_to_the_end_is_named():
    result = check(crossed(attend=causal_from_the_end), task="cross-attention")
    assert "cross-causal" in result.mistakes, str(result)


def test_two_mistakes_in_cross_attention_are_told_apart():
    result = check(crossed(k="x", attend=unscaled), task="cross-attention")
    assert {*result.mistakes} == {"cross-keys-from-x", "no-scaling"}, str(result)


def test_a_function_without_batches_is_named():
    def one(x, context, w_q, w_k, w_v, mask):
        (rows, _), (words, _) = x.shape, context.shape
        scores = (x @ w_q) @ (context @ w_k).T / np.sqrt(w_q.shape[1])
        return softmax(np.where(mask, scores.reshape(rows, words), -np.inf)) @ (context @ w_v)

    assert check(one, task="cross-attention").mistakes == ("one-text-only",)


def test_softmax_without_the_maximum_is_fragile():
    def bare(q, k, v, visible):
        e = np.exp(q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])) * visible
        return e / e.sum(axis=-1, keepdims=True) @ v

    result = check(crossed(attend=bare), task="cross-attention")
    assert (result.fragile, result.points) == (("softmax-no-max",), 9), str(result)


def assert_hints(result):
    """Assert that a result has three different hints, and that text(2) omits the third hint."""
    assert len({*result.hint}) == 3
    assert all(result.hint)
    assert result.hint[2] not in result.text(2)


# -- decoder blocks -------------------------------------------------------------------------------


def triangle(x):
    return np.tri(x.shape[-2], dtype=bool)


def built(wire, norm=layer_norm, activation=gelu):
    """Return a block; wire(x, own, cross, mlp, norms, context, mask) connects its parts."""

    def decoder_block(x, context, parameters, mask):
        p = parameters

        def attention(name, x, source, visible):
            w_q, w_k, w_v = (p[f"{name}_{role}"] for role in "qkv")
            return attend(x @ w_q, source @ w_k, source @ w_v, visible) @ p[f"{name}_o"]

        def own(x, source=None, visible=None, name="self"):
            visible = triangle(x) if visible is None else visible
            return attention(name, x, x if source is None else source, visible)

        def cross(x, source=context, visible=None, name="cross"):
            return attention(name, x, source, keys(mask) if visible is None else visible)

        def mlp(x):
            return activation(x @ p["w_in"] + p["b_in"]) @ p["w_out"] + p["b_out"]

        norms = [
            lambda x, n=n: norm(x, p[f"norm{n}_scale"], p[f"norm{n}_shift"]) for n in (1, 2, 3)
        ]
        return wire(x, own, cross, mlp, norms, context, mask)

    return decoder_block


def simple(rule):
    """Return a block; rule(x, own, cross, mlp, norm1, norm2, norm3) connects its parts."""
    return built(lambda x, own, cross, mlp, norms, *_: rule(x, own, cross, mlp, *norms))


def in_order(x, own, cross, mlp, norms, *_):
    x = x + own(norms[0](x))
    x = x + cross(norms[1](x))
    return x + mlp(norms[2](x))


def block_with_loops(x, context, parameters, mask):
    """Compute a block in loops over texts and words, with a growing list of earlier words."""
    if x.ndim == 3:
        return np.array(
            [
                block_with_loops(one, source, parameters, there)
                for one, source, there in zip(x, context, mask, strict=True)
            ]
        )
    p = parameters

    def norm(row, n):
        row = row - sum(row) / len(row)
        size = math.sqrt(sum(row * row) / len(row) + 1e-12)
        return row / size * p[f"norm{n}_scale"] + p[f"norm{n}_shift"]

    def look(query, pairs):
        scores = np.array([query @ key for key, _ in pairs]) / math.sqrt(len(query))
        powers = np.exp(scores - max(scores))
        return sum(w * value for w, (_, value) in zip(powers / sum(powers), pairs, strict=True))

    seen = [w for w, there in zip(context, mask, strict=True) if there]
    source = [(w @ p["cross_k"], w @ p["cross_v"]) for w in seen]
    said, out = [], []
    for row in x:
        h = norm(row, 1)
        said.append((h @ p["self_k"], h @ p["self_v"]))
        row = row + look(h @ p["self_q"], said) @ p["self_o"]
        row = row + look(norm(row, 2) @ p["cross_q"], source) @ p["cross_o"]
        wide = norm(row, 3) @ p["w_in"] + p["b_in"]
        wide = np.array([n * (1 + math.erf(n / math.sqrt(2))) / 2 for n in wide])
        out.append(row + wide @ p["w_out"] + p["b_out"])
    return np.array(out)


@pytest.mark.parametrize(
    ("block", "said"),
    [
        (built(in_order), []),
        (block_with_loops, []),
        (built(in_order, rms_norm), ["Its norm is RMSNorm."]),
        (built(in_order, activation=gelu_tanh), ["Its GELU is the approximation by tanh."]),
        (built(lambda *given: in_order(*given).astype(np.float32)), []),
    ],
)
def test_a_right_block_gets_all_points(block, said):
    for seed in (0, 7):
        result = check(block, task="decoder-block", seed=seed)
        assert (result.passed, result.points) == (True, 10), str(result)
        assert (result.fragile, result.conventions) == ((), ())
        assert all(style in result.message for style in said)


def cross_before_self(x, own, cross, mlp, n1, n2, n3):
    x = x + cross(n1(x))
    x = x + own(n2(x))
    return x + mlp(n3(x))


def mlp_before_cross(x, own, cross, mlp, n1, n2, n3):
    x = x + own(n1(x))
    x = x + mlp(n3(x))
    return x + cross(n2(x))


def no_residual_around_cross(x, own, cross, mlp, n1, n2, n3):
    x = cross(n2(x + own(n1(x))))
    return x + mlp(n3(x))


def no_norm_before_cross(x, own, cross, mlp, n1, n2, n3):
    x = x + own(n1(x))
    x = x + cross(x)
    return x + mlp(n3(x))


def post_norm(x, own, cross, mlp, n1, n2, n3):
    x = n1(x + own(x))
    x = n2(x + cross(x))
    return n3(x + mlp(x))


def norm_of_parts(x, own, cross, mlp, n1, n2, n3):
    x = x + n1(own(x))
    x = x + n2(cross(x))
    return x + n3(mlp(x))


def stream_normed(x, own, cross, mlp, n1, n2, n3):
    x = x + own(n1(x))
    x = n2(x)
    x = x + cross(x)
    return x + mlp(n3(x))


def side_by_side(x, own, cross, mlp, n1, n2, n3):
    x = x + own(n1(x)) + cross(n2(x))
    return x + mlp(n3(x))


def norm_twice(x, own, cross, mlp, n1, n2, n3):
    x = x + own(n1(x))
    x = x + cross(n1(x))
    return x + mlp(n3(x))


def without(part):
    def rule(x, own, cross, mlp, n1, n2, n3):
        for name, one in (("own", lambda x: own(n1(x))), ("cross", lambda x: cross(n2(x)))):
            x = x if name == part else x + one(x)
        return x if part == "mlp" else x + mlp(n3(x))

    return rule


def wired(own_options=None, cross_options=None):
    """Return a block that calls its parts in the right order.

    `own_options` and `cross_options` can change the inputs of self-attention and cross-attention.
    They return keyword arguments: another source text, another mask or other parameters.
    """

    def rule(x, own, cross, mlp, norms, context, mask):
        h = norms[0](x)
        x = x + own(h, **(own_options(h, context, mask) if own_options else {}))
        h = norms[1](x)
        x = x + cross(h, **(cross_options(h, context, mask) if cross_options else {}))
        return x + mlp(norms[2](x))

    return built(rule)


@pytest.mark.parametrize(
    ("block", "key"),
    [
        (simple(cross_before_self), "decoder-block-order"),
        (simple(mlp_before_cross), "decoder-block-order"),
        (simple(no_residual_around_cross), "decoder-block-no-residual"),
        (simple(no_norm_before_cross), "decoder-block-no-norm"),
        (simple(post_norm), "decoder-block-post-norm"),
        (simple(norm_of_parts), "decoder-block-norm-of-part"),
        (simple(stream_normed), "decoder-block-normed-stream"),
        (simple(side_by_side), "decoder-block-parallel"),
        (simple(norm_twice), "decoder-block-norm-shared"),
        (simple(without("own")), "decoder-block-no-self"),
        (simple(without("cross")), "decoder-block-no-cross"),
        (simple(without("mlp")), "decoder-block-no-mlp"),
        (wired(lambda h, context, mask: {"visible": True}), "self-not-causal"),
        (
            wired(lambda h, context, mask: {"visible": keys(mask) & triangle(h)}),
            "self-masked-as-context",
        ),
        (
            wired(lambda h, context, mask: {"source": context, "visible": keys(mask)}),
            "self-reads-context",
        ),
        (wired(lambda h, context, mask: {"name": "cross"}), "decoder-block-projections"),
        (wired(None, lambda h, context, mask: {"visible": True}), "cross-padding-seen"),
        (wired(None, lambda h, context, mask: {"visible": mask}), "cross-mask-on-batch"),
        (wired(None, lambda h, context, mask: {"visible": ~keys(mask)}), "mask-inverted"),
        (
            wired(
                None,
                lambda h, context, mask: {
                    "visible": keys(mask) & np.tri(h.shape[-2], context.shape[-2], dtype=bool)
                },
            ),
            "cross-causal",
        ),
        (
            wired(None, lambda h, context, mask: {"source": h, "visible": triangle(h)}),
            "cross-self",
        ),
        (built(in_order, activation=lambda x: np.maximum(x, 0)), "mlp-other-activation"),
        (
            built(in_order, norm=lambda x, scale, shift: (x - x.mean()) / x.std() * scale + shift),
            "norm-whole",
        ),
    ],
)
def test_a_mistake_in_a_block_is_told_by_its_name(block, key):
    result = check(block, task="decoder-block")
    assert result.mistakes == (key,), str(result)
    assert result.points <= 8
    assert_hints(result)


def test_a_norm_of_the_context_is_told():
    def rule(x, own, cross, mlp, norms, context, mask):
        x = x + own(norms[0](x))
        x = x + cross(norms[1](x), source=norms[1](context))
        return x + mlp(norms[2](x))

    assert check(built(rule), task="decoder-block").mistakes == ("decoder-block-context-normed",)


def test_zeros_locate_the_part_with_an_unknown_mistake():
    block = built(lambda x, own, cross, *rest: in_order(x, own, lambda h: cross(h) ** 3, *rest))
    result = check(block, task="decoder-block")
    assert result.mistakes == ("unknown",)
    assert "the output is right if cross_o are all zeros: look into cross-attention" in " ".join(
        result.message.split()
    )


# -- writing steps --------------------------------------------------------------------------------


def last(n, s):
    """Return the causal mask (n, s) for n new words at the end of s words."""
    return np.tri(n, s, s - n, dtype=bool)


def joined(kept, *new):
    return new if kept is None else tuple(map(np.concatenate, zip(kept, new, strict=True)))


def stepping(source=None, own=None, rule=None, sees=None):
    """Return a function that runs one decoder step; each argument replaces one operation."""

    def decoder_step(x, context, cache, parameters):
        p = parameters
        kept, there = (None, None) if cache is None else cache
        new = x @ p["self_k"], x @ p["self_v"]
        kept = joined(kept, *new) if own is None else own(kept, new)
        found = attend(x @ p["self_q"], *kept, last(len(x), len(kept[0])))
        made = context @ p["cross_k"], context @ p["cross_v"]
        if source is not None:
            there = source(there, made, (x @ p["cross_k"], x @ p["cross_v"]))
        elif there is None:
            there = made
        visible = True if sees is None else sees(len(x), len(context), len(kept[0]))

        def cross(h):
            return attend(h @ p["cross_q"], *there, visible)

        out = x + found + cross(x + found) if rule is None else rule(x, found, cross, cache)
        return out, (kept, there)

    return decoder_step


def with_dictionaries(x, context, cache, parameters):
    """Write to a cache that is a dictionary with lists of rows."""
    p = parameters
    if cache is None:
        cache = {"k": [], "v": [], "context": None}
    if cache["context"] is None:
        cache["context"] = [(row @ p["cross_k"], row @ p["cross_v"]) for row in context]
    out = []
    for row in x:
        cache["k"].append(row @ p["self_k"])
        cache["v"].append(row @ p["self_v"])
        for name, rows in (
            ("self", [*zip(cache["k"], cache["v"], strict=True)]),
            ("cross", cache["context"]),
        ):
            query = row @ p[f"{name}_q"]
            e = [math.exp(query @ key / math.sqrt(len(query)) - 9) for key, _ in rows]
            row = row + sum(a / sum(e) * value for a, (_, value) in zip(e, rows, strict=True))
        out.append(row)
    return np.array(out), cache


class Buffers:
    """Hold keys and values in arrays of a fixed size, and count the used rows."""

    def __init__(self, width):
        self.rows, self.count, self.source = np.zeros((2, 50, width)), 0, None


def with_buffers(x, context, cache, parameters):
    p, width = parameters, x.shape[1]
    cache = cache or Buffers(width)
    if cache.source is None:
        cache.source = np.stack([context @ p["cross_k"], context @ p["cross_v"]])
    end = cache.count + len(x)
    cache.rows[0, cache.count : end], cache.rows[1, cache.count : end] = (
        x @ p["self_k"],
        x @ p["self_v"],
    )
    visible = np.arange(end) <= np.arange(cache.count, end)[:, None]
    cache.count = end
    x = x + attend(x @ p["self_q"], *cache.rows[:, :end], visible)
    return [x + attend(x @ p["cross_q"], *cache.source), cache]


@pytest.mark.parametrize("step", [stepping(), with_dictionaries, with_buffers])
def test_a_right_step_gets_all_points(step):
    for seed in (0, 7):
        result = check(step, task="writing-step", seed=seed)
        assert (result.passed, result.points) == (True, 10), str(result)
    assert "keys and values of earlier calls" in result.message


def test_steps_give_what_one_call_gives():
    """The right output of the example equals one call of qkv.attention for the whole text."""
    a = check(stepping(rule=lambda x, found, cross, _: x + found), task="writing-step").example
    p = {name.split('"')[1]: array for name, array in a.items() if name.startswith("parameters")}
    x = a["x"]
    x = x + qkv.attention(x @ p["self_q"], x @ p["self_k"], x @ p["self_v"], is_causal=True)
    context = a["context"]
    right = x + qkv.attention(x @ p["cross_q"], context @ p["cross_k"], context @ p["cross_v"])
    assert np.allclose(right, a["right"], rtol=1e-12)


def words_kept(x, context, cache, parameters):
    """Cache the words, and project all words again in every call."""
    p, n = parameters, len(x)
    words = x if cache is None else np.concatenate([cache[0], x])
    there = (context @ p["cross_k"], context @ p["cross_v"]) if cache is None else cache[1]
    x = x + attend(x @ p["self_q"], words @ p["self_k"], words @ p["self_v"], last(n, len(words)))
    return x + attend(x @ p["cross_q"], *there), (words, there)


def no_cache(x, context, cache, parameters):
    return stepping()(x, context, cache, parameters)[0]


@pytest.mark.parametrize(
    ("step", "key"),
    [
        (stepping(source=lambda kept, made, own: made), "cross-recomputed"),
        (stepping(source=lambda kept, made, own: joined(kept, *made)), "cross-appended"),
        (
            stepping(source=lambda kept, made, own: joined(kept, *own) if kept else made),
            "cross-cache-grows",
        ),
        (stepping(source=lambda kept, made, own: own), "cross-self"),
        (stepping(source=lambda kept, made, own: (own[0], made[1])), "cross-keys-from-x"),
        (stepping(source=lambda kept, made, own: (made[0], own[1])), "cross-values-from-x"),
        (
            stepping(source=lambda kept, made, own: made if kept is None else kept[::-1]),
            "cross-cache-exchanged",
        ),
        (stepping(own=lambda kept, new: new), "cache-unused"),
        (words_kept, "cache-recomputed"),
        (stepping(sees=lambda n, s, total: np.tri(n, s, total - n, dtype=bool)), "cross-causal"),
        (stepping(rule=lambda x, found, cross, _: x + found), "writing-self-alone"),
        (
            stepping(
                rule=lambda x, found, cross, cache: (
                    x + found + (cross(x + found) if cache is None else 0)
                )
            ),
            "writing-context-at-first",
        ),
        (stepping(rule=lambda x, found, cross, _: x + found + cross(x)), "writing-order"),
        (stepping(rule=lambda x, found, cross, _: cross(x + found)), "writing-no-residual"),
        (no_cache, "cache-not-returned"),
    ],
)
def test_a_mistake_in_a_step_is_told_by_its_name(step, key):
    result = check(step, task="writing-step")
    assert (result.mistakes, result.points < 9) == ((key,), True), str(result)
    assert_hints(result)


def test_changed_weights_reveal_recomputed_projections():
    result = check(stepping(source=lambda kept, made, own: made), task="writing-step")
    assert 'parameters["cross_k"] from the second call on' in result.example
    assert "100,000 keys" in result.message


def test_recomputing_both_caches_is_two_mistakes():
    def all_again(x, context, cache, parameters):
        words = x if cache is None else np.concatenate([cache, x])
        return stepping()(words, context, None, parameters)[0][-len(x) :], words

    found = {*check(all_again, task="writing-step").mistakes}
    assert found == {"cache-recomputed", "cross-recomputed"}


def test_there_are_at_least_25_mistakes_of_two_texts():
    from qkv_marking.tasks import _cross_attention, _decoder_block, _writing_step

    own = (
        *_cross_attention.TABLE.group("texts", "cross-causal"),
        *_decoder_block.WIRING,
        *_decoder_block.TABLE.group("texts", "decoder-block-projections"),
        *_writing_step.SOURCE,
        *_writing_step.RECOMPUTED,
    )
    assert len({one.key for one in own}) >= 25

"""Tests that the marker does not confuse a known mistake with another mistake.

Each function runs the marker's own steps, with one variant of one mistake. The other files test
functions in the style of a learner.
"""

from collections import Counter

import numpy as np
import pytest

from qkv_marking.tasks import (
    TASKS,
    _block,
    _cross_attention,
    _decoder_block,
    _kv_cache,
    _multi_head,
    _positions,
    _softmax,
    _writing_step,
)
from qkv_marking.tasks._kv_cache import Calls
from qkv_marking.tasks.attention import mistakes, steps, steps as attending
from qkv_marking.tasks.decoder import _decoder_task as decoders, _steps as decoder

pytestmark = pytest.mark.attack

X = "x,w_q,w_k,w_v"


def of_softmax(made):
    return lambda x, axis=-1: _softmax.compute(_softmax.Scores(x, axis), {**_softmax.RIGHT, **made})


def of_positions(made):
    steps = {**_positions.RIGHT, **made}
    return lambda length, dim: _positions.compute(_positions.PositionsCall(length, dim), steps)


def of_attention(made):
    def mine(q, k, v, mask=None, is_causal=False, q_offset=0):
        arrays = {"query": q, "key": k, "value": v}
        if mask is not None and mask.dtype != bool and "added" not in made:
            mask = np.isfinite(mask)
        case = steps.Trial(arrays, mask, is_causal, q_offset)
        return attending.compute(case, {**mistakes.FORMULA.lines, **made})

    return mine


def of_words(made):
    def mine(x, w_q, w_k, w_v, num_heads=1):
        arrays = {"x": x, "w_q": w_q, "w_k": w_k, "w_v": w_v}
        return attending.compute(
            steps.Trial(arrays, heads=num_heads), {**mistakes.FORMULA.lines, **made}
        )

    return mine


def of_masks(made):
    """Return masked attention that uses the wrong steps in `made` instead of the correct steps.

    If "mask" is the only step in `made`, the attention treats a 2-D mask correctly. It uses the
    wrong step for masks of shape (B, L, S). Such an array has one mask for each text of a batch.
    """

    def mine(q, k, v, mask):
        if mask.ndim == 2 and {*made} == {"mask"}:
            return of_attention({})(q, k, v, mask)
        mask = mask if mask.dtype == bool else np.isfinite(mask)
        case = steps.Trial({"query": q, "key": k, "value": v}, mask)
        return attending.compute(case, {**mistakes.FORMULA.lines, **made})

    return mine


def of_heads(made):
    def mine(x, w_q, w_k, w_v, num_heads, w_o=None):
        arrays = {"x": x, "w_q": w_q, "w_k": w_k, "w_v": w_v}
        case = steps.Trial(arrays, heads=num_heads, output=w_o)
        return attending.compute(case, {**mistakes.FORMULA.lines, **made})

    return mine


def of_blocks(made):
    def mine(x, parameters, num_heads=1):
        case = _block.BlockCall(x, parameters, num_heads)
        return _block.compute(case, {**_block.RIGHT, **made})

    return mine


def of_steps(made):
    """Return a step that caches all words, and computes the outputs of all words at each call.

    The cache also holds the weight matrices of the first call.
    """

    def mine(x, cache, w_q, w_k, w_v, positions=None):
        now = {"w_q": w_q, "w_k": w_k, "w_v": w_v}
        before, first = cache or ([], now)
        pieces = [*before, x]
        arrays = {"x": np.concatenate(pieces), **first}
        run = Calls(arrays, tuple(map(len, pieces)), positions, later=now)
        rows = _kv_cache.compute(run, {**_kv_cache.RIGHT, **made})
        arrays = {**arrays, "x": arrays["x"][: -len(x)]}
        earlier = Calls(arrays, run.parts[:-1], positions, later=now)
        kept = _kv_cache.compute(earlier, {**_kv_cache.RIGHT, **made}) if before else []
        return rows[len(kept) :], (pieces, first)

    return mine


def of_decoders(made):
    def mine(ids, weights, config):
        assert ids.ndim == 1, "one text, not a batch"
        text = decoder.Text(ids, tied=config["tie_word_embeddings"])
        return decoder.compute(text, {**decoder.RIGHT, **made})

    return mine


def of_two_texts(made):
    def mine(x, context, w_q, w_k, w_v, mask):
        weights = {"w_q": w_q, "w_k": w_k, "w_v": w_v}
        return _cross_attention.compute(
            _cross_attention.TwoTexts(x, context, weights, mask), {**_cross_attention.RIGHT, **made}
        )

    return mine


def of_layers(made):
    def mine(x, context, parameters, mask):
        return _decoder_block.compute(
            _decoder_block.BlockOfTwoTexts(x, context, parameters, mask),
            {**_decoder_block.RIGHT, **made},
        )

    return mine


def of_writing(made):
    """Return a step that caches all words, and computes the outputs of all words at each call.

    The cache also holds the parameters of the first call.
    """

    def mine(x, context, cache, parameters):
        before, first = cache or ([], parameters)
        pieces = [*before, x]

        def rows(some):
            if not some:
                return []
            arrays = {"x": np.concatenate(some), "context": context, **first}
            run = _writing_step.Writing(arrays, tuple(map(len, some)), later=parameters)
            return _writing_step.compute(run, {**_writing_step.RIGHT, **made})

        return rows(pieces)[len(rows(before)) :], (pieces, first)

    return mine


KNOWN = {
    ("softmax", of_softmax, "qkv"): (
        *_softmax.CORE,
        *_softmax.BATCHES,
        *_softmax.LARGE,
        *_softmax.AXIS,
    ),
    ("positions", of_positions, "qkv"): _positions.MISTAKES,
    ("attention", of_attention, "qkv"): (
        *mistakes.core("qkv"),
        *mistakes.SHAPES,
        *mistakes.LARGE,
        *mistakes.MASK,
        *mistakes.HIDING,
        *mistakes.EMPTY,
        *mistakes.CAUSAL,
        *mistakes.BOTH,
        *mistakes.OFFSET,
    ),
    ("batched-attention", of_attention, "qkv"): mistakes.BATCHES,
    ("tiles", of_attention, "qkv"): mistakes.TILES,
    ("attention", of_words, X): (*mistakes.core(X), *mistakes.HEADS, mistakes.IN_TURN),
    ("mask", of_masks, "qkv"): (*mistakes.WEAK, *mistakes.OF_TEXTS),
    ("heads", of_heads, "qkv"): (*mistakes.HEADS, *_multi_head.JOINING, *_multi_head.PROJECTED),
    ("block", of_blocks, "qkv"): (*_block.KNOWN, *mistakes.HEADS),
    ("kv-cache", of_steps, "qkv"): (
        *_kv_cache.CACHING,
        *_kv_cache.MASKING,
        *_kv_cache.PLACING,
        _kv_cache.RECOMPUTED,
        *mistakes.core(X),
        *mistakes.OF_CAUSAL,
        _kv_cache.EXCHANGED,
    ),
    ("decoder", of_decoders, "qkv"): (*decoders.KNOWN, *decoders.UNTIED, decoders.LAST_POSITION),
    ("cross-attention", of_two_texts, "qkv"): (*_cross_attention.KNOWN, *_cross_attention.BATCHES),
    ("decoder-block", of_layers, "qkv"): (
        *_decoder_block.KNOWN,
        *_decoder_block.TABLE.group("cross-mask-on-batch"),
    ),
    ("writing-step", of_writing, "qkv"): (*_writing_step.KNOWN, *_writing_step.RECOMPUTED),
}


def each():
    """Yield the variants of each mistake of each task as test cases.

    The id of a variant has the task, the mistake's key, and a number that counts from 0 for each
    task and key.

    A mistake with `alone=True` can occur in many tasks. When such a mistake occurs for the first
    time, the function yields all variants of the mistake. At each later occurrence, the function
    yields only the first variant.
    """
    seen, slips = Counter(), set()
    for (task, of, way), known in KNOWN.items():
        for one in known:
            for variant in one.variants[: 1 if (one.key, one.says) in slips else None]:
                name = f"{task}{'-of-words' if way == X else ''}-{one.key}"
                yield pytest.param(
                    f"{name}-{seen[name]}",
                    task,
                    of,
                    way,
                    one.key,
                    variant,
                    id=f"{name}-{seen[name]}",
                )
                seen[name] += 1
            if one.alone:
                slips.add((one.key, one.says))


EACH = [*each()]
# Variants for which the marker names another mistake or no mistake. Most of these variants give the
# same results as the mistake that the marker names, or as correct code.
OTHERWISE = {
    "softmax-softmax-first-axis-0": {"softmax-columns"},  # for one row, the results are equal
    # adding 0 (visible) or -1 (masked) to scores gives the same weights as adding 1 or 0
    "mask-mask-too-weak-5": {"mask-added"},
    "block-scale-model-width-0": {"heads-scale"},  # x is as wide as all heads together
    "block-heads-size-1": set(),  # right, because D // num_heads is the size of a head
    "kv-cache-causal-always-0": set(),  # right, because a step is always causal
    "decoder-block-scale-model-width-0": set(),  # queries are as wide as x
    "writing-step-scale-model-width-0": set(),  # queries are as wide as x
    # all outputs are nan, or each row has a single weight of 1
    "decoder-integer-table-1": {"decoder-mask-diagonal"},
    "decoder-sum-overwritten-0": {"no-exp"},
    "decoder-return-in-loop-0": {"whole-weights"},
    "decoder-softmax-other-function-0": {"decoder-mask-diagonal"},
    "decoder-softmax-other-function-1": {"no-exp"},
    "decoder-softmax-other-function-2": {"no-exp"},
    "attention-mask-inverted-1": set(),  # right for masks of bools
}


@pytest.mark.parametrize(("name", "task", "of", "way", "key", "variant"), EACH)
def test_no_mistake_is_taken_for_another(name, task, of, way, key, variant):
    result = TASKS[task].mark(of(variant), way)
    found = {*result.mistakes, *result.fragile, *result.conventions}
    assert found == OTHERWISE.get(name, {key}), str(result)


def test_the_right_steps_are_right_in_every_task():
    for task, of, way in KNOWN:
        result = TASKS[task].mark(of({}), way)
        assert (result.passed, result.points) == (True, 10), str(result)


def test_every_exception_names_an_existing_case():
    assert {*OTHERWISE} <= {one.id for one in EACH}
    assert len({one.id for one in EACH}) == len(EACH)


def test_there_are_at_least_150_mistakes():
    assert len({one.key for known in KNOWN.values() for one in known}) >= 150


def test_each_mistake_has_three_different_hints():
    for known in KNOWN.values():
        for one in known:
            assert one.nudge, one.key
            assert one.where, one.key
            assert len({*one.hint}) == 3, one.key
            assert not one.remedy or one.remedy not in one.nudge, one.key

"""Findings about wrong attention functions whose results match no known mistake."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from qkv.arrays import Array
from qkv_marking import _findings
from qkv_marking._errors import in_words
from qkv_marking._findings import Symptom, describe, of_mistake
from qkv_marking._outcome import TOLERANCE, Outcome, close, differ, first_wrong
from qkv_marking.tasks._table import Table
from qkv_marking.tasks.attention.mistakes import EMPTY, LARGE
from qkv_marking.tasks.attention.steps import Learner, Trial, answer

RETURN = "return weights @ v"
_TEXTS = Table(__package__, "symptoms")


def odd_shape(runs: list[Outcome]) -> Symptom | None:
    """Describe a function that fails only if L and S differ, or only if d and dv differ."""
    wrong = first_wrong(runs)
    lengths = _sides(runs, lambda case: [a.shape[-2] for a in [*case.arrays.values()][:2]])
    if "query" in wrong.case.arrays and _whole_sides(lengths):
        return _TEXTS.finding("square-only", wrong, error=describe(wrong))
    if "query" in wrong.case.arrays and any(not run.is_right for side in lengths for run in side):
        return some_lengths(wrong, [run for run in runs if run.is_right])
    sizes = _sides(runs, lambda case: [a.shape[-1] for a in [*case.arrays.values()][-2:]])
    if not _whole_sides(sizes) or all(wrong is not run for side in sizes for run in side):
        return None
    return _TEXTS.finding("value-size", wrong, error=describe(wrong))


def _sides(runs: list[Outcome], sizes: Callable[[Trial], Sequence[int]]) -> list[list[Outcome]]:
    """Return `[below, above]`: runs with `first < second`, and runs with `first > second`."""
    below: list[Outcome] = []
    above: list[Outcome] = []
    for run in runs:
        first, second = sizes(run.case)
        if first != second:
            (below if first < second else above).append(run)
    return [below, above]


def _whole_sides(sides: Sequence[list[Outcome]]) -> bool:
    """Return whether some list in `sides` has wrong runs and no right runs.

    If any list has both right and wrong runs, the result is False.
    """
    wrong = [{not run.is_right for run in side} for side in sides]
    return {True} in wrong and {True, False} not in wrong


def _lengths(run: Outcome) -> str:
    query, key, _ = run.case.arrays.values()
    return f"{query.shape[-2]} x {key.shape[-2]}"


def _by_length(call: Learner, runs: list[Outcome]) -> Symptom | None:
    """Describe a function that is right for some lengths and always wrong for other lengths."""
    right, wrong = ([run for run in runs if run.is_right is good] for good in (True, False))
    if "query" not in runs[0].case.arrays or {*map(_lengths, right)} & {*map(_lengths, wrong)}:
        return None
    if any(run.case.mask is not None for run in runs):
        return None  # a mask may also cause the error
    if not right or wrong[0].error is not None:
        return None
    for run in right:  # repeat with negated queries, which change the sign of every score
        arrays = {**run.case.arrays, "query": -run.case.arrays["query"]}
        if not call(replace(run.case, arrays=arrays)).is_right:
            return None
    return some_lengths(wrong[0], right)


def some_lengths(wrong: Outcome, right: list[Outcome]) -> Symptom:
    """Describe a function that is right only for some lengths, such as multiples of 16."""
    good = ", ".join(dict.fromkeys(map(_lengths, right)))
    failed = "" if wrong.error is None else f" ({in_words(wrong.error)})"
    return _TEXTS.finding("some-lengths", wrong, right=good, wrong=_lengths(wrong), failed=failed)


def large_scores(wrong: Outcome) -> Symptom:
    """Describe a function that is right for small scores and wrong for large scores.

    For large scores, exp overflows: `math.exp` raises an error, and `np.exp` leads to nan.
    """
    no_max, global_max = LARGE
    if isinstance(wrong.error, OverflowError | ZeroDivisionError):
        return of_mistake(no_max if isinstance(wrong.error, OverflowError) else global_max, wrong)
    shows = in_words(wrong.error) if wrong.error else "the output is wrong, or contains nan"
    return _TEXTS.finding("large-scores", wrong, output=shows)


def large_ones(wrong: Outcome) -> Symptom:
    """Describe a wrong result for two queries, whose large scores have opposite signs."""
    nan = [False, False] if wrong.out is None else np.isnan(wrong.out).any(axis=-1).tolist()
    if nan == [True, False]:
        return _TEXTS.finding("maximum-forgotten", wrong)
    if nan == [False, True]:
        return _TEXTS.finding("maximum-from-zero", wrong)
    return large_scores(wrong)


def empty_row(wrong: Outcome) -> Symptom | None:
    """Describe a function that is wrong only in fully masked rows."""
    row_nan, row_uniform = EMPTY
    if wrong.error is not None:
        return _TEXTS.finding("masked-row-raises", wrong, error=in_words(wrong.error))
    right, visible = wrong.right, wrong.case.visible
    if wrong.out is None or wrong.out.shape != right.shape or visible is None:
        return None
    sees = visible.any(axis=-1)
    if not close(wrong.out[sees], right[sees]):
        return None
    return of_mistake(row_uniform if np.isfinite(wrong.out).all() else row_nan, wrong)


def wrong_batch(wrong: Outcome) -> Symptom | None:
    """Describe a function that is right for one text and wrong for a batch."""
    return _TEXTS.finding("batch-wrong", wrong, error=describe(wrong))


def second_output(runs: list[Outcome]) -> Symptom | None:
    """Describe a function that returns a correct output but wrong weights."""
    for run in runs:
        visible = run.case.visible
        if run.second is None or not run.is_right:
            continue
        if visible is not None and not visible.any(axis=-1).all():
            continue  # the weights of fully masked rows are not checked
        formula = answer(run.case)
        right, lse = formula.pattern, formula.lse
        mean = right.mean(axis=-3) if run.case.heads > 1 else right  # as in torch
        if any(_same_numbers(run.second, a) for a in (right, mean, lse, lse[..., None])):
            continue
        shows = "the returned weights are not the weights that give this output"
        if _same_numbers(run.second, formula.scores_scaled):
            shows = "the returned weights are the scores before softmax"
        if _same_numbers(run.second, np.swapaxes(right, -1, -2)):
            shows = "the returned weights are transposed: a row should hold one query's weights"
        finding = _TEXTS.finding("weights-wrong", run, difference=shows)
        return replace(finding, more={"your weights": run.second, "right weights": right})
    return None


def _same_numbers(a: Array, b: Array) -> bool:
    """Return whether two arrays hold the same numbers, ignoring leading dimensions of size 1."""
    return a.size == b.size and a.shape[-2:] == b.shape[-2:] and close(a.reshape(b.shape), b)


def report_odd(call: Learner, runs: list[Outcome], what: str) -> Symptom:
    """Describe a wrong result: its input, its error, and hints about the cause."""
    wrong = first_wrong(runs)
    numbers = wrong.out is not None and wrong.out.shape == wrong.right.shape
    named = (_wrong_scale(runs) or _by_length(call, runs)) if numbers else None
    return named or _findings.report_odd(runs, what, RETURN, _hints(call, wrong) if numbers else [])


def _hints(call: Learner, wrong: Outcome) -> list[str]:
    """Return hints: whether the weights are wrong, and whether the order of keys has an effect."""
    hints = []
    weights = _weights_behind(wrong)
    if weights is not None:
        sums = weights.sum(axis=-1)
        if not close(sums, np.ones_like(sums)):
            numbers = ", ".join(f"{x:.4g}" for x in sums.ravel()[:4])
            hints.append(f"the weights of a row do not sum to 1 but to {numbers}")
        if (weights < -TOLERANCE).any():
            hints.append("some weights are below zero")
    if wrong.case.mask is None and not wrong.case.causal:
        expected = wrong.out
        if expected is not None and "x" in wrong.case.arrays:
            expected = expected[..., ::-1, :]
        if differ(call(wrong.case.reverse_order()).out, expected):
            hints.append(
                "the output depends on the order of the keys, but should not: look for positions,"
                " for a mask, and for keys that are left out"
            )
    return hints


def _weights_behind(run: Outcome) -> Array | None:
    """Compute the weights that give an output; return None if they are not unique."""
    case = run.case
    if run.out is None or run.out.shape != run.right.shape:
        return None
    parts = list(case.arrays.values())
    v = parts[0] @ parts[3] if "x" in case.arrays else parts[2]
    tokens, dv = v.shape[-2:]
    if case.heads > 1 or tokens > dv or np.linalg.matrix_rank(v).min() < tokens:
        return None
    weights: Array = run.out @ np.linalg.pinv(v)
    return weights


def _wrong_scale(runs: list[Outcome]) -> Symptom | None:
    """Describe a function that divides its scores by a wrong number."""
    factors: dict[int, float] = {}
    sign, off = 1.0, False
    for run in runs:
        if run.case.mask is not None or run.case.causal:
            return None
        weights = _weights_behind(run)
        if weights is None:
            continue
        if not (weights > 0).all() or not close(weights.sum(axis=-1), np.ones(weights.shape[:-1])):
            return None
        scores = answer(run.case).scores_scaled
        scores = scores - scores.mean(axis=-1, keepdims=True)
        logs = np.log(weights)
        logs = logs - logs.mean(axis=-1, keepdims=True)
        times = float((logs * scores).sum() / (scores * scores).sum())
        if np.abs(logs - times * scores).max() > 1e-3:
            return None
        # the size of a key, or the number of columns of w_q
        d = list(run.case.arrays.values())[1].shape[-1]
        times = round(times, 12) + 0.0
        factors[d] = times * d**-0.5
        sign, off = min(sign, np.sign(times)), off or abs(times - 1) > 1e-3
    if not off:
        return None
    shows = "everything else is right: only the sharpness of the softmax is wrong"
    if sign < 0:
        shows = "the order of the weights is reversed: the lowest score gets the largest weight"
    if sign == 0:
        shows = "all keys get the same weight, regardless of their scores"
    numbers = (f"{by:.4g} instead of {d**-0.5:.4g} (d = {d})" for d, by in factors.items())
    says = f"the scores are multiplied by a number other than 1/sqrt(d): {', '.join(numbers)}"
    least, most = min(factors.values()), max(factors.values())
    if len(factors) > 1 and least > 0 and most - least < 1e-3 * most:
        says = f"the scores are divided by {1 / most:.4g} for every size d of the queries"
    return _TEXTS.finding("scale-wrong", first_wrong(runs), factors=says, effect=shows)

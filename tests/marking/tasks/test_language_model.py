"""Tests of the tasks of lesson 13: right and wrong losses, learning rates and ways to sample."""

import numpy as np
import pytest

from qkv_marking import check
from qkv_marking.tasks import _language_model
from qkv_marking.tasks._task import Exercise

from .test_exercises import function

LOSS = """
def next_token_loss(logits, ids, padding):
    losses = []
    for rows, text in zip(logits, ids):
        for i in range(len(text) - 1):
            target = text[i + 1]
            if target == padding:
                continue
            x = rows[i] - rows[i].max()
            total = np.exp(x).sum()
            losses.append(np.log(total) - x[target])
    return sum(losses) / len(losses)
"""
PROBABILITIES = """
def next_token_loss(logits, ids, padding):
    e = np.exp(logits[:, :-1] - logits[:, :-1].max(axis=-1, keepdims=True))
    p = e / e.sum(axis=-1, keepdims=True)
    p = np.take_along_axis(p, ids[:, 1:, None], axis=-1)[..., 0]
    losses = -np.log(p)
    seen = ids[:, 1:] != padding
    return losses[seen].mean()
"""
RATE = """
def learning_rate(step, steps, warmup, highest):
    if step < warmup:
        return highest * (step + 1) / warmup
    return highest * (steps - step) / (steps - warmup)
"""
TOP_K = """
def top_k(logits, k, temperature):
    scaled = logits / temperature
    order = np.argsort(scaled)[::-1]
    out = np.zeros(len(logits))
    e = np.exp(scaled[order[:k]] - scaled.max())
    out[order[:k]] = e / e.sum()
    return out
"""
CUT = """
def top_k(logits, k, temperature):
    smallest = np.sort(logits)[-k]
    x = np.where(logits >= smallest, logits / temperature, -np.inf)
    e = np.exp(x - x.max())
    return e / e.sum()
"""
TOP_P = """
def top_p(probabilities, p):
    order = np.argsort(-probabilities)
    kept = np.zeros(len(probabilities))
    total = 0.0
    for token in order:
        kept[token] = probabilities[token]
        total += probabilities[token]
        if total >= p:
            break
    return kept / kept.sum()
"""
SORTED = """
def top_p(probabilities, p):
    order = np.argsort(probabilities)[::-1]
    sums = probabilities[order].cumsum()
    last = np.searchsorted(sums, p)
    out = np.zeros_like(probabilities)
    out[order[: last + 1]] = probabilities[order[: last + 1]]
    return out / out.sum()
"""

RIGHT = [
    ("next-token-loss", LOSS),
    (
        "next-token-loss",
        "def next_token_loss(logits, ids, padding):\n"
        "    B, T, V = logits.shape\n"
        "    x, y = logits[:, :-1].reshape(-1, V), ids[:, 1:].reshape(-1)\n"
        "    x, y = x[y != padding], y[y != padding]\n"
        "    return np.mean(np.logaddexp.reduce(x, axis=1) - x[np.arange(len(y)), y])",
    ),
    ("learning-rate", RATE),
    (
        "learning-rate",
        "def learning_rate(step, steps, warmup, highest):\n"
        "    rates = np.concatenate([np.arange(1, warmup + 1) / warmup,\n"
        "                            np.linspace(1, 0, steps - warmup, endpoint=False)])\n"
        "    return highest * rates[step]",
    ),
    ("top-k", TOP_K),
    ("top-k", TOP_K.replace("np.argsort(scaled)[::-1]", "np.argsort(-scaled)")),
    (
        "top-k",
        "def top_k(logits, k, temperature):\n"
        "    x = (logits - logits.max()) / temperature\n"
        "    p = np.exp(x) / np.exp(x).sum()\n"
        "    p[np.argpartition(p, len(p) - k)[:len(p) - k]] = 0\n"
        "    return p / p.sum()",
    ),
    ("top-p", TOP_P),
    ("top-p", SORTED),
]  # fmt: skip

# task, right solution, the replaced text, the new text, and the mistake that the marker names
WRONG = [
    ("next-token-loss", LOSS, "text[i + 1]", "text[i]", "loss-not-shifted"),
    ("next-token-loss", LOSS, "range(len(text) - 1):\n            target = text[i + 1]",
     "range(len(text)):\n            target = text[i]", "loss-not-shifted"),
    ("next-token-loss", LOSS, "range(len(text) - 1):\n            target = text[i + 1]",
     "range(1, len(text)):\n            target = text[i]", "loss-not-shifted"),
    ("next-token-loss", LOSS, "range(len(text) - 1):\n            target = text[i + 1]",
     "range(1, len(text)):\n            target = text[i - 1]", "loss-shifted-back"),
    ("next-token-loss", LOSS, "            if target == padding:\n                continue\n", "",
     "loss-padding"),
    ("next-token-loss", LOSS, "/ len(losses)", "/ ids.size", "loss-padding-divided"),
    ("next-token-loss", LOSS, "/ len(losses)", "/ ids[:, 1:].size", "loss-padding-divided"),
    ("next-token-loss", LOSS, " / len(losses)", "", "loss-sum"),
    ("next-token-loss", LOSS, "np.log(total)", "total", "*"),
    ("next-token-loss", LOSS, "np.log(total) - x[target]", "x[target] - np.log(total)",
     "loss-sign"),
    ("next-token-loss", LOSS, "np.log(total) - x[target]", "-rows[i, target]", "loss-no-softmax"),
    ("next-token-loss", LOSS, "return sum(losses) / len(losses)",
     "return np.exp(sum(losses) / len(losses))", "loss-perplexity"),
    ("next-token-loss", LOSS, "np.log(total) - x[target]", "-np.log(np.exp(x[target]) / total)",
     "loss-log-of-zero"),
    ("next-token-loss", LOSS, " - rows[i].max()", "", "loss-no-max"),
    ("next-token-loss", PROBABILITIES, "losses = -np.log(p)", "losses = -np.log2(p)",
     "loss-other-logarithm*"),
    ("next-token-loss", PROBABILITIES, "losses = -np.log(p)", "losses = -np.log2(p + 1e-300)",
     "loss-other-logarithm*"),
    ("next-token-loss", PROBABILITIES, "e.sum(axis=-1", "e.sum(axis=1", "*"),
    ("next-token-loss", PROBABILITIES, "max(axis=-1, keepdims=True))\n    p = e / e.sum(axis=-1",
     "max())\n    p = e / e.sum(axis=1", "loss-wrong-axis*"),
    ("next-token-loss", PROBABILITIES, "losses = -np.log(p)", "losses = -np.log(p + 1e-5)",
     "loss-number-added*"),
    ("next-token-loss", PROBABILITIES, "losses = -np.log(p)", "losses = -p", "loss-no-logarithm"),
    ("next-token-loss", PROBABILITIES, "losses = -np.log(p)", "losses = -np.log(p + 1e-9)",
     "loss-floor"),
    ("next-token-loss", PROBABILITIES, "losses = -np.log(p)",
     "losses = -np.log(np.clip(p, 1e-12, None))", "loss-floor"),
    ("next-token-loss", PROBABILITIES, "return losses[seen].mean()",
     "return -np.log(p[seen].mean())", "loss-log-of-mean"),
    ("next-token-loss", PROBABILITIES, "losses[seen].mean()",
     "np.mean([one[keep].mean() for one, keep in zip(losses, seen)])", "loss-mean-of-texts*"),
    ("next-token-loss", PROBABILITIES, "    return losses[seen].mean()", "", "returns-nothing"),
    ("learning-rate", RATE, "(step + 1) / warmup", "step / warmup", "rate-first-zero"),
    ("learning-rate", RATE, "highest * (step + 1) / warmup", "highest * ((step + 1) // warmup)",
     "rate-whole-numbers"),
    ("learning-rate", RATE, "(step + 1) / warmup", "(step + 1) / steps", "rate-of-all-steps"),
    ("learning-rate", RATE, "highest * (step + 1) / warmup", "highest", "rate-no-warmup"),
    ("learning-rate", RATE, "highest * (steps - step) / (steps - warmup)", "highest",
     "rate-no-fall"),
    ("learning-rate", RATE, "    if step < warmup:\n        return highest * (step + 1) / warmup\n"
     "    return highest * (steps - step) / (steps - warmup)",
     "    return highest * min((step + 1) / warmup, 1 - step / steps)",
     "rate-falls-from-the-start"),
    ("learning-rate", RATE, "highest * (steps - step) / (steps - warmup)",
     "highest * (step + 1) / warmup", "rate-rises-on"),
    ("learning-rate", RATE, "/ (steps - warmup)", "/ steps", "rate-falls-from-the-start"),
    ("learning-rate", RATE, "(steps - step) / (steps - warmup)",
     "(steps - 1 - step) / (steps - 1 - warmup)", "rate-last-zero"),
    ("learning-rate", RATE, "highest * ", "", "rate-not-scaled"),
    ("learning-rate", RATE, "        return highest * (step + 1) / warmup\n    ",
     "        rate = 0.0\n        return rate * (step + 1) / warmup\n    ", "*"),
    ("top-k", TOP_K, "logits / temperature", "logits * temperature", "temperature-multiplied"),
    ("top-k", TOP_K, "logits / temperature", "logits", "temperature-ignored"),
    ("top-k", TOP_K, "logits / temperature",
     "np.exp(logits) / np.exp(logits).sum() / temperature", "temperature-after-softmax"),
    ("top-k", TOP_K, "[::-1]", "", "top-k-smallest"),
    ("top-k", TOP_K, "order[:k]", "order[:k + 1]", "top-k-other-count"),
    ("top-k", TOP_K, "order[:k]", "order[1:k]", "*"),
    ("top-k", TOP_K, "order[:k]", "order", "top-k-ignored"),
    ("top-k", TOP_K, "out[order[:k]] = e / e.sum()", "out[:k] = e / e.sum()", "*"),
    ("top-k", TOP_K, "    return out", "    return out[order]", "top-k-in-order"),
    ("top-k", TOP_K, "    return out", "    return e / e.sum()", "top-k-in-order"),
    ("top-k", TOP_K, "e / e.sum()", "e / np.exp(scaled - scaled.max()).sum()",
     "top-k-not-renormalised"),
    ("top-k", TOP_K, "e / e.sum()", "1 / k", "top-k-uniform"),
    ("top-k", TOP_K, " - scaled.max()", "", "top-k-no-max"),
    ("top-k", CUT, "    return", "    return", "top-k-ties"),
    ("top-k", CUT, ">=", ">", "top-k-ties-dropped"),
    ("top-k", CUT, "-np.inf", "0", "*"),
    ("top-p", TOP_P, "        if total >= p", "        if total <= p", "*"),
    ("top-p", TOP_P, "        kept[token] = probabilities[token]\n"
     "        total += probabilities[token]\n        if total >= p:\n            break\n",
     "        total += probabilities[token]\n        if total > p:\n            break\n"
     "        kept[token] = probabilities[token]\n", "top-p-before-crossing"),
    ("top-p", TOP_P, "        if total >= p:\n            break\n", "", "returns-input"),
    ("top-p", TOP_P, "np.argsort(-probabilities)", "np.argsort(probabilities)", "top-p-smallest"),
    ("top-p", TOP_P, "np.argsort(-probabilities)", "range(len(probabilities))",
     "top-p-not-sorted"),
    ("top-p", TOP_P, "kept / kept.sum()", "kept", "top-p-not-renormalised"),
    ("top-p", TOP_P, "kept / kept.sum()", "np.exp(kept) / np.exp(kept).sum()",
     "top-p-softmax-again"),
    ("top-p", TOP_P, "kept / kept.sum()", "(kept / kept.sum())[order]", "top-p-in-order"),
    ("top-p", SORTED, ": last + 1", ": last + 2", "top-p-one-more"),
    ("top-p", SORTED, ": last + 1", ": last", "top-p-before-crossing"),
    ("top-p", SORTED, "    out[order[: last + 1]] = probabilities[order[: last + 1]]",
     "    out[: last + 1] = probabilities[: last + 1]", "top-p-not-put-back"),
    ("top-p", SORTED, "    out[order[: last + 1]] = probabilities[order[: last + 1]]",
     "    out = np.where(probabilities >= 1 - p, probabilities, 0)", "top-p-threshold"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(RIGHT)))
def test_a_right_solution_has_all_points_with_any_seed(number):
    task, source = RIGHT[number]
    for seed in (0, 1, 2, 99):
        result = check(function(source, task), task=task, seed=seed)
        assert (result.points, result.passed) == (10, True), str(result)
        assert not result.fragile


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_a_mistake_is_named_with_any_seed(number):
    task, source, old, new, key = WRONG[number]
    assert old in source
    for seed in (0, 1, 2, 99):
        result = check(function(source.replace(old, new), task), task=task, seed=seed)
        found = result.mistakes + result.fragile
        assert len(result.hint) == 3
        assert result.hint[2] not in result.text(0)
        if key == "*":  # no mistake of the table
            assert not result.passed
        elif key.endswith("*"):  # the mistake of the table, with a second one
            assert key[:-1] in found, str(result)
        else:
            assert found == (key,), str(result)


EXERCISES = [one for one in vars(_language_model).values() if isinstance(one, Exercise)]
WAYS = [
    pytest.param(exercise, one.key, way, id=f"{one.key}-{number}")
    for exercise in EXERCISES
    for one in exercise.table.group()
    for number, way in enumerate(one.variants)
]


@pytest.mark.parametrize(("exercise", "key", "way"), WAYS)
def test_the_lines_of_a_way_are_named_and_printed(exercise, key, way):
    result = exercise.task().mark(lambda *arguments: exercise.solve(*arguments, lines=way), "")
    assert result.mistakes + result.fragile == (key,), str(result)
    assert [*result.diffs[key]] == [
        (exercise.table.formula.lines[name], line) for name, line in way.items()
    ]


def test_the_loss_is_that_of_a_hand_calculation():
    logits = np.log([[[1.0, 1, 2], [3.0, 1, 0.5], [1.0, 1, 1]]])
    assert np.isclose(_language_model.LOSS.solve(logits, np.array([[0, 2, 1]]), -1),
                      -(np.log(2 / 4) + np.log(1 / 4.5)) / 2)  # fmt: skip
    assert np.isclose(_language_model.LOSS.solve(logits, np.array([[0, 2, 1]]), 1), np.log(2))


def test_the_rate_rises_and_falls_evenly():
    rates = [_language_model.LEARNING_RATE.solve(step, 7, 3, 6.0) for step in range(7)]
    assert np.allclose(rates, [2, 4, 6, 6, 4.5, 3, 1.5])


def test_sampling_is_that_of_a_hand_calculation():
    kept = _language_model.TOP_K.solve(np.log([1.0, 4, 9, 2]), 2, 2.0)  # roots: 1, 2, 3, 1.4
    assert np.allclose(kept, [0, 2 / 5, 3 / 5, 0])
    kept = _language_model.TOP_P.solve(np.array([0.125, 0.5, 0.25, 0.125]), 0.6)
    assert np.allclose(kept, [0, 2 / 3, 1 / 3, 0])

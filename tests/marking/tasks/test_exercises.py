"""Tests of the short tasks of lessons 1, 2, 4, 7 and 9: right and wrong solutions."""

import numpy as np
import pytest

import qkv
from qkv_marking import TASKS, check
from qkv_marking.tasks import _exercises

LOOP = """
def recurrence_table(length, keep):
    table = np.zeros((length, length))
    for i in range(length):
        for j in range(i, length):
            table[i, j] = (1 - keep) * keep ** (j - i)
    return table
"""
TURN = """
def rotation(dim, steps):
    matrix = np.zeros((dim, dim))
    for i in range(0, dim, 2):
        angle = steps * 10000.0 ** (-i / dim)
        sin, cos = np.sin(angle), np.cos(angle)
        matrix[i : i + 2, i : i + 2] = [[cos, -sin], [sin, cos]]
    return matrix
"""
SCORE = """
def neighbour_score(weights, step):
    found = []
    for i in range(len(weights)):
        if 0 <= i + step < len(weights):
            found.append(weights[i, i + step])
    return sum(found) / len(found)
"""
BACK = """
def softmax_back(weights, d_weights):
    mean = (weights * d_weights).sum(axis=-1, keepdims=True)
    return weights * (d_weights - mean)
"""
HEAD = """
def softmax(s):
    e = np.exp(s - s.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)
def gradients(x, w_q, w_k, w_v, d_context):
    q, k, v = x @ w_q, x @ w_k, x @ w_v
    a = softmax(q @ k.T / np.sqrt(q.shape[-1]))
    d_a = d_context @ v.T
    d_v = a.T @ d_context
    d_s = a * (d_a - (a * d_a).sum(axis=-1, keepdims=True)) / np.sqrt(q.shape[-1])
    d_q = d_s @ k
    d_k = d_s.T @ q
    return x.T @ d_q, x.T @ d_k, x.T @ d_v
"""
IDS = """
def to_ids(sentence, vocabulary):
    ids = []
    for word in sentence.split():
        if word in vocabulary:
            ids.append(vocabulary[word])
        else:
            ids.append(vocabulary["[UNK]"])
    return ids
"""
NEEDED = "def score_needed(weight, others):\n    return np.log(others * weight / (1 - weight))"

RIGHT = [
    ("recurrence-table", LOOP),
    (
        "recurrence-table",
        "def recurrence_table(length, keep):\n"
        "    state, rows = np.zeros(length), []\n"
        "    for word in np.eye(length)[::-1]:\n"
        "        state = keep * state + (1 - keep) * word\n"
        "        rows.append(state)\n"
        "    return np.array(rows[::-1])",
    ),
    (
        "recurrence-table",
        "def recurrence_table(length, keep):\n"
        "    steps = np.subtract.outer(np.arange(length), np.arange(length))\n"
        "    return np.triu((1 - keep) * keep ** -np.minimum(steps, 0).astype(float))",
    ),
    ("score-needed", NEEDED),
    (
        "score-needed",
        "import math\ndef score_needed(weight, others):\n"
        "    return math.log(others) + math.log(weight) - math.log1p(-weight)",
    ),
    ("ids", IDS),
    (
        "ids",
        "def to_ids(sentence, vocabulary):\n"
        "    unknown = vocabulary['[UNK]']\n"
        "    return np.array([vocabulary.get(w, unknown) for w in sentence.split(' ')])",
    ),
    ("ids", "def to_ids(s, v):\n    return tuple(v.get(w, v['[UNK]']) for w in s.split())"),
    ("rotation", TURN),
    (
        "rotation",
        "def rotation(dim, steps):\n"
        "    angle = np.repeat(steps / 10000 ** (np.arange(0, dim, 2) / dim), 2)\n"
        "    matrix = np.diag(np.cos(angle))\n"
        "    for i in range(0, dim, 2):\n"
        "        matrix[i, i + 1], matrix[i + 1, i] = -np.sin(angle[i]), np.sin(angle[i])\n"
        "    return matrix",
    ),
    (
        "rotation",
        "def rotation(dim, steps):\n"
        "    z = np.exp(1j * steps * 10000 ** (-np.arange(0, dim, 2) / dim))\n"
        "    return np.kron(np.diag(z.real), np.eye(2)) + np.kron(np.diag(z.imag), "
        "[[0, -1], [1, 0]])",
    ),
    ("neighbour-score", SCORE),
    ("neighbour-score", "def neighbour_score(w, step):\n    return np.diagonal(w, step).mean()"),
    (
        "neighbour-score",
        "def neighbour_score(w, step):\n"
        "    i = np.arange(max(0, -step), len(w) - max(0, step))\n"
        "    return np.average(w[i, i + step])",
    ),
    ("softmax-back", BACK),
    (
        "softmax-back",
        "def softmax_back(a, g):\n"
        "    return np.stack([(np.diag(row) - np.outer(row, row)) @ up for row, up in zip(a, g)])",
    ),
    (
        "softmax-back",
        "def softmax_back(a, g):\n    return a * g - a * np.einsum('ij,ij->i', a, g)[:, None]",
    ),
    ("gradients", HEAD),
    ("gradients", HEAD.replace("return x.T @ d_q, x.T @ d_k, x.T @ d_v",
                               "return [x.T @ d_q, x.T @ d_k, x.T @ d_v]")),
]  # fmt: skip

# task, right solution, the replaced text, the new text, and the mistake that the marker names
WRONG = [
    ("recurrence-table", LOOP, "range(i, length)", "range(i + 1)", "table-other-way*"),
    ("recurrence-table", LOOP, "table[i, j] =", "table[j, i] =", "table-other-way"),
    ("recurrence-table", LOOP, "(1 - keep) * keep", "keep", "table-not-scaled"),
    ("recurrence-table", LOOP, "(1 - keep) * keep **", "keep * (1 - keep) **",
     "table-keep-for-take"),
    ("recurrence-table", LOOP, "(j - i)", "(j - i + 1)", "table-off-by-one"),
    ("recurrence-table", LOOP, "return table", "return table / table.sum(axis=1, keepdims=True)",
     "table-rows-of-one"),
    ("recurrence-table", LOOP, "range(i, length)", "range(length)", "*"),
    ("recurrence-table", LOOP, "(1 - keep) * keep ** (j - i)",
     "(1 - keep) * keep ** abs(j - i); table[j, i] = table[i, j]", "table-both-ways"),
    ("recurrence-table", LOOP, "    return table", "", "returns-nothing"),
    ("score-needed", NEEDED, "others * weight", "weight", "score-without-others"),
    ("score-needed", NEEDED, "others * weight / (1 - weight)", "others * (1 - weight) / weight",
     "score-upside-down"),
    ("score-needed", NEEDED, "np.log(", "np.log10(", "score-other-logarithm"),
    ("score-needed", NEEDED, "np.log(", "np.log2(", "score-other-logarithm"),
    ("score-needed", NEEDED, "np.log", "", "score-without-logarithm"),
    ("score-needed", NEEDED, " / (1 - weight)", "", "score-without-rest"),
    ("ids", IDS, 'ids.append(vocabulary["[UNK]"])', "pass", "ids-unknown-left-out"),
    ("ids", IDS, 'vocabulary["[UNK]"]', "-1", "ids-unknown-number"),
    ("ids", IDS, 'vocabulary["[UNK]"]', "len(vocabulary)", "ids-unknown-number"),
    ("ids", IDS, 'vocabulary["[UNK]"]', "8", "ids-unknown-number"),
    ("ids", IDS, "if word in vocabulary", "if True", "ids-unknown-raises"),
    ("ids", IDS, "sentence.split()", "sentence", "ids-of-letters"),
    ("ids", IDS, "sentence.split()", "dict.fromkeys(sentence.split())", "ids-once"),
    ("ids", IDS, "return ids", "return sorted(ids)", "ids-sorted"),
    ("ids", IDS, "return ids", "print(ids)", "returns-nothing"),
    ("rotation", TURN, "[[cos, -sin], [sin, cos]]", "[[cos, sin], [-sin, cos]]",
     "rotation-other-way"),
    ("rotation", TURN, "return matrix", "return matrix.T", "rotation-other-way"),
    ("rotation", TURN, "angle = steps *", "angle =", "rotation-one-step"),
    ("rotation", TURN, " * 10000.0 ** (-i / dim)", "", "rotation-one-speed"),
    ("rotation", TURN, "(-i / dim)", "(-2 * i / dim)", "rotation-exponent"),
    ("rotation", TURN, "(-i / dim)", "(i / dim)", "rotation-exponent"),
    ("rotation", TURN, "[sin, cos]]", "[sin, -cos]]", "rotation-reflection"),
    ("rotation", TURN, "[[cos, -sin]", "[[cos, sin]", "rotation-reflection"),
    ("rotation", TURN, "matrix[i : i + 2, i : i + 2] = [[cos, -sin], [sin, cos]]",
     "a, b = i // 2, i // 2 + dim // 2; "
     "matrix[a, a] = matrix[b, b] = cos; matrix[a, b], matrix[b, a] = -sin, sin",
     "rotation-halves"),
    ("neighbour-score", SCORE, "weights[i, i + step]", "weights[i + step, i]",
     "neighbour-other-side"),
    ("neighbour-score", SCORE, "/ len(found)", "/ len(weights)", "neighbour-all-tokens"),
    ("neighbour-score", SCORE, "/ len(found)", "/ (len(weights) - 1)", "neighbour-all-tokens"),
    ("neighbour-score", SCORE, "0 <= ", "", "neighbour-wraps"),
    ("neighbour-score", SCORE, "/ len(found)", "", "neighbour-sum"),
    ("neighbour-score", SCORE, "weights[i, i + step]", "weights[i, i]", "*"),
    ("neighbour-score", SCORE, "        if 0 <= i + step < len(weights):\n            found.append("
     "weights[i, i + step])", "        found.append(weights[i, (i + step) % len(weights)])",
     "neighbour-wraps"),
    ("neighbour-score", SCORE, "        if 0 <= i + step < len(weights):\n            found.append("
     "weights[i, i + step])", "        found.append(weights[i, i])", "neighbour-itself"),
    ("neighbour-score", SCORE, "        if 0 <= i + step < len(weights):\n            found.append("
     "weights[i, i + step])", "        found.append(weights[i].mean())", "neighbour-whole-rows"),
    ("neighbour-score", SCORE, "i + step", "i + 1", "neighbour-one-step"),
    ("softmax-back", BACK, "(d_weights - mean)", "d_weights", "back-without-mean"),
    ("softmax-back", BACK, "(weights * d_weights).sum(", "d_weights.mean(", "back-plain-mean"),
    ("softmax-back", BACK, "(weights * d_weights).sum(", "(weights * d_weights).mean(",
     "back-plain-mean"),
    ("softmax-back", BACK, "axis=-1", "axis=0", "back-columns"),
    ("softmax-back", BACK, "axis=-1, keepdims=True", "", "back-whole-matrix"),
    ("softmax-back", BACK, ", keepdims=True", "", "back-keepdims"),
    ("softmax-back", BACK, "return weights * (", "return (", "back-without-weights"),
    ("softmax-back", BACK, "(d_weights - mean)", "(mean - d_weights)", "back-sign"),
    ("softmax-back", BACK, "(d_weights - mean)", "(1 - weights) * d_weights", "back-squared"),
    ("gradients", HEAD, "keepdims=True)) / np.sqrt(q.shape[-1])", "keepdims=True))",
     "gradients-no-root"),
    ("gradients", HEAD, "keepdims=True)) / np", "keepdims=True)) * np", "gradients-times-root"),
    ("gradients", HEAD, "keepdims=True)) / np.sqrt(q.shape[-1])",
     "keepdims=True)) / q.shape[-1]", "gradients-root-twice"),
    ("gradients", HEAD, "d_s.T @ q", "d_s @ q", "gradients-keys-not-transposed"),
    ("gradients", HEAD, "a.T @ d_context", "a @ d_context", "gradients-values-not-transposed"),
    ("gradients", HEAD, "a * (d_a - (a * d_a).sum(axis=-1, keepdims=True))", "d_a",
     "gradients-softmax-left-out"),
    ("gradients", HEAD, "(d_a - (a * d_a).sum(axis=-1, keepdims=True))", "d_a",
     "gradients-softmax-without-mean"),
    ("gradients", HEAD, "return x.T @ d_q, x.T @ d_k,", "return x.T @ d_k, x.T @ d_q,",
     "gradients-changed-places"),
    ("gradients", HEAD, "return x.T @ d_q, x.T @ d_k, x.T @ d_v", "return x.T @ d_q, x.T @ d_k",
     "wrong-parts"),
    ("gradients", HEAD, "return x.T @ d_q, x.T @ d_k, x.T @ d_v",
     "return (x.T @ d_q)[0], x.T @ d_k, x.T @ d_v", "wrong-parts"),
]  # fmt: skip


def function(source, task):
    found = {"np": np}
    exec(source, found)
    (name,) = TASKS[task].looks_for
    return found[name]


@pytest.mark.parametrize("number", range(len(RIGHT)))
def test_a_right_solution_has_all_points_with_any_seed(number):
    task, source = RIGHT[number]
    for seed in (0, 1, 99):
        result = check(function(source, task), task=task, seed=seed)
        assert (result.points, result.passed) == (10, True), str(result)


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_a_wrong_solution_fails_with_any_seed(number):
    task, source, old, new, key = WRONG[number]
    assert old in source
    for seed in (0, 1, 99):
        result = check(function(source.replace(old, new), task), task=task, seed=seed)
        assert not result.passed
        assert len(result.hint) == 3
        if not key.endswith("*"):  # a key with * has no known mistake
            assert result.mistakes == (key,), str(result)


def test_two_mistakes_in_different_lines_are_both_named():
    source = HEAD.replace("keepdims=True)) / np.sqrt(q.shape[-1])", "keepdims=True))")
    result = check(function(source.replace("d_s.T @ q", "d_s @ q"), "gradients"), task="gradients")
    assert result.mistakes == ("gradients-no-root", "gradients-keys-not-transposed")
    source = IDS.replace('vocabulary["[UNK]"]', "0").replace("return ids", "return sorted(ids)")
    result = check(function(source, "ids"), task="ids")
    assert result.mistakes == ("ids-unknown-number", "ids-sorted")


def test_the_third_hint_is_not_the_message_again():
    for task, source, old, new, _ in WRONG:
        result = check(function(source.replace(old, new), task), task=task)
        assert result.hint[2] not in result.text(0), task


EXERCISES = [one for one in vars(_exercises).values() if isinstance(one, _exercises.Exercise)]
WAYS = [
    pytest.param(exercise, one.key, way, id=f"{one.key}-{number}")
    for exercise in EXERCISES
    for one in exercise.table.group()
    for number, way in enumerate(one.variants)
]


@pytest.mark.parametrize(("exercise", "key", "way"), WAYS)
def test_the_lines_of_a_way_are_named_and_printed(exercise, key, way):
    def function(*arguments):
        return exercise.solve(*arguments, lines=way)

    result = exercise.task().mark(function, "")
    if key == "closeness-heads-ignored":  # this function returns the same number for every input
        assert result.mistakes == ("constant",)
        return
    assert result.mistakes == (key,), str(result)
    assert [*result.diffs[key]] == [
        (exercise.table.formula.lines[name], line) for name, line in way.items()
    ]
    assert result.hint[2] not in result.text(0)


MODEL = qkv.load()
TEXTS = ("the bank of the brook", "the bank held the money")


def _bank(text, heads):
    return MODEL.trace(text, ablate=heads).hidden_states[-1][0, 2]


def _cosine(a, b):
    return a @ b / np.sqrt((a @ a) * (b @ b))


CLOSENESS = [
    (lambda heads: _cosine(*(_bank(text, heads) for text in TEXTS)), None),
    (lambda heads: _cosine(*(_bank(text, []) for text in TEXTS)), "constant"),
    (lambda heads: _cosine(_bank(TEXTS[0], heads), _bank(TEXTS[1], [])), "closeness-one-text"),
    (lambda heads: _cosine(_bank(TEXTS[0], []), _bank(TEXTS[1], heads)), "closeness-one-text"),
    (
        lambda heads: _cosine(*(_bank(text, [(h, n) for n, h in heads]) for text in TEXTS)),
        "closeness-exchanged",
    ),
    (lambda heads: _bank(TEXTS[0], heads) @ _bank(TEXTS[1], heads), "closeness-product"),
    (lambda heads: 1 - _cosine(*(_bank(text, heads) for text in TEXTS)), "closeness-distance"),
    (lambda heads: _cosine(*(_bank(text, heads) for text in TEXTS))[None], "wrong-shape"),
]


@pytest.mark.parametrize("number", range(len(CLOSENESS)))
def test_closeness_is_judged_by_what_the_model_gives(number):
    closeness, key = CLOSENESS[number]
    result = check(closeness, task="closeness")
    assert result.mistake == key, str(result)


# -- values ---------------------------------------------------------------------------------------

ASK, OFFER = np.zeros((4, 2)), np.eye(4)[:, :2]
ASK[2] = 8
CALM = np.array([[8.0, -8], [-8, 8], [8, 8], [0, 0]])


@pytest.mark.parametrize(
    ("given", "keys"),
    [
        ((ASK, OFFER, OFFER), ()),
        ((ASK.tolist(), OFFER, OFFER), ()),
        ((ASK, OFFER, 2 * OFFER), ()),
        ((ASK, OFFER, 0.4 * OFFER), ("projections-value",)),
        ((ASK * 0, ASK * 0, ASK * 0), ("not-filled-in",)),
        ((ASK / 8, OFFER, OFFER), ("projections-quiet",)),
        ((ASK * 0, OFFER, OFFER), ("projections-not-found",)),
        ((-ASK, OFFER, OFFER), ("projections-not-found",)),
        ((ASK, ASK, OFFER), ("projections-not-found",)),
        ((ASK, OFFER, OFFER[:, ::-1]), ("projections-value",)),
        ((ASK, OFFER, ASK), ("projections-value",)),
        ((ASK, OFFER[:, :1], OFFER), ("projections-shape",)),
        ((ASK, OFFER, None), ("projections-shape",)),
    ],
)
def test_projections_are_judged_by_what_bank_takes(given, keys):
    result = check(given, task="projections")
    assert result.mistakes == keys, str(result)
    unfilled = keys in (("not-filled-in",), ("projections-shape",))
    assert result.points <= (0 if unfilled else 10 - 4 * len(keys))
    assert unfilled or result.points >= 10 - 4 * len(keys) - 2


@pytest.mark.parametrize(
    ("w_q", "keys"),
    [
        (CALM, ()),
        (2 * CALM, ()),
        (CALM * 0, ("not-filled-in",)),
        (ASK, ("calm-river",)),
        (CALM * [[1], [1], [0], [0]], ("calm-others",)),
        (CALM[:2], ("projections-shape",)),
    ],
)
def test_calm_queries_are_judged_by_what_river_takes(w_q, keys):
    assert check((w_q, OFFER), task="calm-query").mistakes == keys


SENTENCES = {
    "the bank of the river": 0,
    "the bank gave a loan": 1,
    "the river has a bank": 0,
    "a friend of the bank has a loan": 1,
    "the rich dear cheap bank of the river": 0,
    "the wet cold deep bank gave a loan": 1,
    "a rich dear cheap friend at the bank of the river": 0,
    "the bank gave a wet cold deep friend a loan": 1,
}


@pytest.mark.parametrize(
    ("more", "keys"),
    [
        ({"the cold bank": 0, "the dear bank": 1}, ()),
        ({...: 0}, ("not-filled-in",)),
        ({}, ("not-filled-in",)),
        ({"the wet bank": 0, "a cheap bank": 1}, ("more-asked",)),
        ({"the cold river": 0, "the dear bank": 1}, ("more-no-bank",)),
        ({"the cold bank": 2}, ("more-no-bank",)),
        ({"the bank of a river": 0}, ("more-unknown",)),
        ({"the cold bank": 1, "the dear bank": 0}, ("more-unknown",)),
    ],
)
def test_sentences_are_judged_by_what_is_learned_of_them(more, keys):
    result = check({**SENTENCES, **more}, task="adjectives")
    assert result.mistakes[: len(keys)] == keys, str(result)
    assert result.passed == (not keys)


def test_too_few_values_are_an_error():
    with pytest.raises(
        TypeError, match=r"marks 3 values, but 2 were given: call check\(\(w_q, w_k"
    ):
        check((ASK, OFFER), task="projections")


# -- batches, in lessons that ask for batches -----------------------------------------------------


def _soft(s):
    e = np.exp(s - s.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def _of_texts(q, k, v):
    return _soft(q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])) @ v


def _of_one_text(q, k, v):
    rows = [_soft(k @ row / np.sqrt(len(row))) @ v for row in q]
    return np.array(rows)


def _einsum(q, k, v):
    s = np.einsum("...id,...jd->...ij", q, k) / q.shape[-1] ** 0.5
    return np.einsum("...ij,...jv->...iv", _soft(s), v)


def _transposed(q, k, v):
    return _soft(q @ k.T / np.sqrt(q.shape[-1])) @ v


def _masked(q, k, v, mask):
    s = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    s = np.where(mask, s, -np.inf)
    top = s.max(axis=-1, keepdims=True)
    e = np.exp(s - np.where(np.isfinite(top), top, 0))
    total = e.sum(axis=-1, keepdims=True)
    return e / np.where(total == 0, 1, total) @ v


def _masked_one_text(q, k, v, mask):
    if q.ndim > 2:
        raise ValueError("one text at a time")
    return _masked(q, k, v, mask)


@pytest.mark.parametrize(
    ("mine", "task", "key"),
    [
        (_of_texts, "batched-attention", None),
        (_einsum, "batched-attention", None),
        (_of_one_text, "batched-attention", "one-text-only"),
        (_transposed, "batched-attention", "batch-transpose"),
        (_of_one_text, "attention", None),
        (_of_one_text, "tiles", "one-text-only"),
        (_masked, "batched-mask", None),
        (_masked_one_text, "batched-mask", "one-text-only"),
        (_masked_one_text, "mask", None),
    ],
)
def test_batches_are_required_only_where_the_task_says_so(mine, task, key):
    result = check(mine, task=task)
    assert result.mistake == key, str(result)
    assert result.points == 10 if key is None else 4 <= result.points <= 8


# -- functions that are not filled in yet ---------------------------------------------------------


def softmax(scores):
    """Stub with only a docstring."""
    ...


class SelfAttention:
    def __init__(self, embed_dim, num_heads, seed=0): ...

    def __call__(self, x): ...


@pytest.mark.parametrize(
    ("mine", "task"), [(softmax, "softmax"), (SelfAttention, "self-attention-class")]
)
def test_an_empty_cell_has_a_verdict_of_one_line(mine, task):
    result = check(mine, task=task)
    assert (result.points, result.mistakes) == (0, ("returns-nothing",))
    assert str(result) == f"{mine.__name__}: nothing is filled in yet. 0 of 10 points."


def test_an_answer_that_forgets_to_return_is_told_so():
    def softmax(scores):
        scores.sum()

    assert "it returns None" in str(check(softmax, task="softmax"))

"""Mark a step function: called part by part, does it give what the whole run gives?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.marking.draws import generator, per_seed
from qkv.marking.engine import Group, Marking
from qkv.marking.findings import Finding, nothing_returned, of_mistake, overwritten
from qkv.marking.mistake import Mistake
from qkv.marking.outcome import (
    Outcome,
    differ,
    first_wrong,
    kind_of,
    name_of,
    numbers,
    outcome,
)
from qkv.marking.parameters import options_of
from qkv.marking.result import CheckResult
from qkv.marking.tasks.attention.mistakes import LARGE, OF_CAUSAL, core
from qkv.marking.tasks.kv_cache.mistakes import (
    CACHING,
    EXCHANGED,
    MASKING,
    NOT_FILLED,
    PLACING,
    RECOMPUTED,
)
from qkv.marking.tasks.kv_cache.steps import RIGHT, Run, compute
from qkv.marking.tasks.task import Task


def _drawn(seed: int, parts: tuple[int, ...], sizes: tuple[int, int, int]) -> Run:
    """Multiples of 1/2 between -2 and 2, for word vectors and projections of sizes D, d, dv."""
    width, d, dv = sizes
    rng = generator(seed)
    shapes = {"x": (sum(parts), width), "w_q": (width, d), "w_k": (width, d), "w_v": (width, dv)}
    return Run({name: rng.integers(-4, 5, shape) / 2 for name, shape in shapes.items()}, parts)


def _cases(seed: int, *parts: tuple[int, ...]) -> list[Run]:
    """These ways to hand a text over, each in two sizes."""
    return [
        _drawn(seed + 2 * n + bool(sizes[0] > 2), one, sizes)
        for n, one in enumerate(parts)
        for sizes in ((2, 2, 2), (4, 5, 5))
    ]


# scores of 0 and 1000: word by word, then both words at once
_LARGE = {"x": [[1, 0], [1, 1]], "w_q": [[1000], [0]], "w_k": [[0], [1]], "w_v": [[1], [1]]}
_LARGE_ARRAYS = {name: np.array(rows, dtype=float) for name, rows in _LARGE.items()}

LARGE_SCORES = Group(
    "scores of 1000", [Run(_LARGE_ARRAYS, (1, 1)), Run(_LARGE_ARRAYS, (2,))], LARGE
)

KNOWN = (*CACHING, *MASKING, *core("x,w_q,w_k,w_v"), *OF_CAUSAL, EXCHANGED)


@per_seed
def word_by_word() -> list[Run]:
    """One word in each call, smallest first."""
    return _cases(10, (1, 1), (1, 1, 1))


@per_seed
def several() -> list[Run]:
    """Several words in a call."""
    return [
        *_cases(110, (2,)),
        *_cases(20, (2, 1), (3, 1, 1)),
        *_cases(30, (1, 2), (2, 2), (1, 3, 2)),
    ]


def _groups(known: Sequence[Mistake], together: bool) -> tuple[Group, ...]:
    """The tests of a step, those of single words and of several apart or together."""
    one, more = "one word at a time", "several in one call"
    if together:
        cases = (*word_by_word(), *several())
        return (Group(f"{one}, and {more}", cases, known), LARGE_SCORES)
    return Group(one, word_by_word(), known), Group(more, several(), known), LARGE_SCORES


def _told_together(m: Marking, known: Sequence[Mistake]) -> bool:
    """Do all calls together tell what goes wrong better than those of single words first?"""
    single, more = m.run(word_by_word()), m.run(several())
    if all(run.error is not None for run in single):
        return True  # many a mistake raises the same
    together, first = m.explain([*single, *more], known), m.explain(single, known)
    if together is None:
        return False
    # of two mistakes the one that single words show is told first, in calls that show it
    return len(together[1]) < 2 or first is None or any(one not in together[1] for one in first[1])


def _with_positions(case: Run) -> Run:
    """The same text with a table of positions: some more rows than words, the last one zeros."""
    words, width = case.arrays["x"].shape
    table = np.arange(1.0, 1 + (words + 3) * width).reshape(-1, width) % 5 / 2
    table[-1] = 0
    return replace(case, positions=table)


@per_seed
def _positions() -> Group:
    cases = _cases(40, (1, 1), (2, 1), (1, 2, 1))
    return Group("positions", [_with_positions(case) for case in cases], PLACING)


class _Stepping:
    """Somebody's step function, called part by part.

    Args:
        step: the function.
        first: makes the cache of the first call.
    """

    def __init__(self, step: Callable[..., Any], first: Callable[[], Any]) -> None:
        self.step, self.first, self.cache_first = step, first, False
        self.given_back: list[tuple[Array, Array]] = []  # copies, and the arrays of which they are

    def __call__(self, case: Run) -> Any:
        """The outputs of all calls below each other, or what is no output."""
        outs, cache = [], self.first()
        for x in case.pieces():
            out, cache = self.one(case, x, cache)
            if (rows := numbers(out)) is None:
                return out
            self.given_back.append((rows.copy(), rows))
            outs.append(np.atleast_2d(self.given_back[-1][0]))
            if case.later is not None:
                case = replace(case, arrays=case.arrays | case.later)
        return np.concatenate(outs)

    def alone(self, case: Run) -> Any:
        """What one call returns for all the words, as a function without a cache gives them."""
        weights = (case.arrays[name] for name in ("w_q", "w_k", "w_v"))
        returned = self.step(case.arrays["x"], self.first(), *weights)
        return returned[0] if isinstance(returned, tuple) and returned else returned

    def one(self, case: Run, x: Array, cache: Any) -> tuple[Any, Any]:
        """One call: the output and the cache for the next."""
        given = {} if case.positions is None else {"positions": case.positions}
        weights = (case.arrays[name] for name in ("w_q", "w_k", "w_v"))
        returned = self.step(x, cache, *weights, **given)
        if not isinstance(returned, tuple | list) or len(returned) != 2:
            raise NoCacheError(returned)
        out, cache = returned[::-1] if self.cache_first else returned
        return out, cache


class NoCacheError(TypeError):
    """A step that does not return an output and a cache.

    Args:
        returned: what it returned.
    """

    def __init__(self, returned: Any) -> None:
        self.returned = returned
        what = "None" if returned is None else kind_of(returned)
        number = f" of {len(returned)}" if isinstance(returned, tuple | list) else ""
        super().__init__(f"it returns {what}{number}, not (out, cache)")


def _no_cache(run: Outcome, error: NoCacheError) -> Finding:
    line = "return out, (k, v)  # all keys and values so far"
    yours = {"yours": str(error).removeprefix("it returns ")}
    if error.returned is None:
        return replace(nothing_returned(run, str(error), line), more=yours)
    shows, nudge = (
        "the next call cannot know what came before",
        "What does the next call need to know?",
    )
    if isinstance(error.returned, tuple | list) and len(error.returned) > 2:
        shows = "the cache is one thing: the second of two, and the next call is handed it"
        nudge = "How many things come back, and which one of them is the next call handed?"
    return Finding(
        "cache-not-returned",
        str(error),
        shows,
        line,
        nudge=nudge,
        where="the return statement",
        run=run,
        more=yours,
    )


def _cache_first(run: Outcome) -> Finding:
    return Finding(
        "cache-first",
        "the cache comes back first and the output second",
        "the next call is handed the output as its cache",
        "return out, (k, v)  # all keys and values so far",
        nudge="Print both things that come back: which of them has a row for each new word alone?",
        where="the return statement",
        run=run,
    )


def _remembers(run: Outcome, again: Outcome) -> Finding:
    return Finding(
        "cache-shared",
        "a second text sees the words of the first: the cache lives outside the function",
        "with cache=None a text begins anew; what an earlier call kept is still there",
        "if cache is None: cache = (np.zeros((0, d)), np.zeros((0, dv)))  # inside the function",
        nudge="Run the same text twice, each time from cache=None.",
        where="the place where the first cache is made: a global list, or a default argument",
        run=again,
        more={"yours the first time": run.out},
    )


def _mark(function: Callable[..., Any], way: str) -> CheckResult:
    """Mark a step function with a cache."""
    names = ("x", "cache", "w_q", "w_k", "w_v")
    options, _ = options_of(function, names, {"positions": ("positions",)})
    smallest = word_by_word()[0]
    call = _Stepping(function, lambda: None)

    def run(case: Run) -> Outcome:
        return outcome(case, call, compute(case, RIGHT))

    m = Marking("kv-cache", name_of(function), run, compute, RIGHT, returns="return out, (k, v)")
    first = run(smallest)
    if first.error is not None and not isinstance(first.error, NoCacheError):
        for make in (dict, list):
            call.first = make
            if (other := run(smallest)).error is None:
                m.limits.append(f"It wants the first cache as {make()}, not as None.")
                first = other
                break
        else:
            call.first = lambda: None
    again = run(smallest)
    if isinstance(first.error, NoCacheError):
        m.find(_no_cache(first, first.error))
        if not outcome(replace(smallest, parts=(2,)), call.alone, first.right).is_right:
            m.steps = None  # what it gives is no output either
    elif not first.is_right and _right_in_other_order(call):
        m.find(_cache_first(first))
    elif first.is_right and differ(first.out, again.out):
        m.find(_remembers(first, again))
    else:
        m.first_call(smallest)
    if m.wrong:
        return m.result()
    known = (NOT_FILLED, *KNOWN) if _gives_none(call) else KNOWN
    for group in _groups(known, _told_together(m, known)):
        m.test(group)
    if "positions" in options:
        m.test(_positions())
    else:
        m.untried.append("positions")
    if not m.wrong:
        m.tried.append("keys and values of earlier calls")
        m.find(_recomputed(m))
        m.find(overwritten([replace(m.runs[0], given_back=tuple(call.given_back))]))
    if not m.wrong and _writes_to_cache(call):
        m.limits.append(
            "It writes to the cache it is given: to go on from one in two ways needs a copy."
        )
    return m.result()


def _recomputed(m: Marking) -> Finding | None:
    """Are earlier words projected again? Then they are so by the projections of the later call."""
    runs = m.run([_with_other_projections(case) for case in (word_by_word()[0], several()[-1])])
    explained = m.explain(runs, [RECOMPUTED])
    return of_mistake(RECOMPUTED, first_wrong(runs)) if explained and explained[1] else None


def _with_other_projections(case: Run) -> Run:
    """The same text, with keys and values that are projected otherwise from the second call on."""
    w = {name: case.arrays[name] for name in ("w_q", "w_k", "w_v")}
    return replace(case, later=w | {"w_k": w["w_k"] + 1, "w_v": w["w_v"] - 2})


def _gives_none(call: _Stepping) -> bool:
    """Is None what the first call gives back as the cache?"""
    case = word_by_word()[0]

    def first_cache(given: Run) -> Array:
        return np.array(call.one(given, given.pieces()[0], call.first())[1] is None)

    return outcome(case, first_cache, np.array(True)).is_right


def _right_in_other_order(call: _Stepping) -> bool:
    """Is it right if the first thing that comes back is the cache, and the second the output?"""
    case = word_by_word()[0]
    call.cache_first = True
    run = outcome(case, call, compute(case, RIGHT))
    call.cache_first = False
    return run.is_right


def _writes_to_cache(call: _Stepping) -> bool:
    """Does a text that goes on twice from the same cache differ the second time, or fail?"""
    case = word_by_word()[0]

    def second_time(given: Run) -> Any:
        first, last = given.pieces()
        _, cache = call.one(given, first, call.first())
        call.one(given, last, cache)
        return call.one(given, last, cache)[0]

    run = outcome(case, second_time, compute(case, RIGHT)[-1:])
    return not run.is_right


KV_CACHE = Task(
    name="kv-cache",
    looks_for=("step", "attention_step", "kv_cache_step"),
    signature="step(x, cache, w_q, w_k, w_v) -> (out, cache)",
    asks="causal attention of the n new words x (n, D), given what earlier calls kept (None at"
    " first); out (n, dv); optional: positions (N, D), of which a row is added to each word",
    mark=_mark,
    everyday=("step",),
)

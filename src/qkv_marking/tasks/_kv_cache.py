"""The task `kv-cache`: a step function that caches keys and values of earlier words.

`StepMarking` marks any step function that passes a cache from one call to the next.

Source: Shazeer 2019, Fast Transformer Decoding (incremental attention).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qkv.arrays import Array, Arrays
from qkv_marking._engine import Group, Marking, generator, per_seed
from qkv_marking._findings import Symptom, nothing_returned, of_mistake, overwritten
from qkv_marking._formula import Lines
from qkv_marking._mistake import Function, Mistake
from qkv_marking._outcome import Outcome, differ, first_wrong, kind_of, numbers, options_of, outcome
from qkv_marking.tasks._table import Table
from qkv_marking.tasks._task import Computation, StepwiseMarking, make_task
from qkv_marking.tasks.attention import mistakes
from qkv_marking.tasks.attention.mistakes import LARGE, OF_CAUSAL, core

_TABLE = Table(__package__, "kv_cache", base=mistakes.FORMULA)
FORMULA = _TABLE.formula
RIGHT = FORMULA.lines
# the lines that compute scores and those that compute the output; the mask comes between them
SCORE, WEIGH = ("score", "scale"), ("hide", "shift", "exp", "normalise", "weigh")
SELF_ATTEND = ("project", "append", "keep", "count", *SCORE, "visible", "causal", *WEIGH)
_STEP = FORMULA.part("positions", *SELF_ATTEND)


@dataclass(frozen=True)
class Calls:
    """One text in several calls: word vectors (T, D), and the number of words in each call."""

    arrays: dict[str, Array]
    parts: tuple[int, ...]
    positions: Array | None = None
    later: dict[str, Array] | None = None  # other projections for the calls after the first call

    def pieces(self) -> list[Array]:
        """Return the word vectors of each call."""
        return np.split(self.arrays["x"], np.cumsum(self.parts)[:-1])

    def split_arrays(self) -> Iterator[Arrays]:
        """Yield the arrays of each call; "x" holds only the words of this call."""
        for n, x in enumerate(self.pieces()):
            yield {**self.arrays, **(self.later or {} if n else {}), "x": x}

    def list_arguments(self) -> dict[str, Any]:
        """Return the arguments that a learner needs to repeat these calls."""
        ends = np.cumsum(self.parts).tolist()
        calls = [f"x[{end - part}:{end}]" for part, end in zip(self.parts, ends, strict=True)]
        table = {} if self.positions is None else {"positions": self.positions}
        later = {f"{name} from the second call on": a for name, a in (self.later or {}).items()}
        return self.arrays | later | table | {"the calls, in order": ", ".join(calls)}


class Stepping:
    """A learner's step function, called for one part of a text at a time.

    Args:
        step: the function.
        call: a function `call(step, case, words, cache)` that calls `step` with these words.
    """

    def __init__(self, step: Function, call: Function) -> None:
        self.step, self.call = step, call
        self.first: Callable[[], Any] = lambda: None  # the cache for the first call
        self.cache_first = False
        self.given_back: list[tuple[Array, Array]] = []  # (copy of an output, output)

    def __call__(self, case: Calls) -> Any:
        """Concatenate the outputs of all calls; if an output is not numeric, return this output."""
        outs, cache = [], self.first()
        for x in case.pieces():
            out, cache = self.make_call(case, x, cache)
            if (rows := numbers(out)) is None:
                return out
            self.given_back.append((rows.copy(), rows))
            outs.append(np.atleast_2d(self.given_back[-1][0]))
            if case.later is not None:
                case = replace(case, arrays=case.arrays | case.later)
        return np.concatenate(outs)

    def alone(self, case: Calls) -> Any:
        """Return the output of one call with all words, as if the function had no cache."""
        returned = self.call(self.step, case, case.arrays["x"], self.first())
        return returned[0] if isinstance(returned, tuple) and returned else returned

    def make_call(self, case: Calls, x: Array, cache: Any) -> tuple[Any, Any]:
        """Make one call, and return the output and the cache for the next call."""
        returned = self.call(self.step, case, x, cache)
        if not isinstance(returned, tuple | list) or len(returned) != 2:
            raise NoCacheError(returned)
        out, cache = returned[::-1] if self.cache_first else returned
        return out, cache


class NoCacheError(TypeError):
    """The error for a step that does not return an output and a cache.

    Args:
        returned: the returned object.
    """

    def __init__(self, returned: Any) -> None:
        self.returned = returned
        kind = "None" if returned is None else kind_of(returned)
        number = f" of {len(returned)}" if isinstance(returned, tuple | list) else ""
        super().__init__(f"it returns {kind}{number}, not (out, cache)")


class StepMarking(StepwiseMarking):
    """The tests of one step function.

    Args:
        right: the right computation.
        step: a learner's step function.
        call: a function `call(step, case, words, cache)` that calls `step` with these words.
        smallest: a case with two calls of one word each.
    """

    def __init__(self, right: Computation, step: Function, call: Function, smallest: Calls) -> None:
        self.stepping, self.smallest = Stepping(step, call), smallest
        super().__init__(right, step, self.stepping)

    def first_calls(self) -> None:
        """Check that a call returns an output and a cache, and that runs are reproducible."""
        first = self.call(self.smallest)
        if first.error is not None and not isinstance(first.error, NoCacheError):
            first = self._with_another_first_cache() or first
        again = self.call(self.smallest)
        if isinstance(first.error, NoCacheError):
            self.find(self._no_cache(first, first.error))
            whole = replace(self.smallest, parts=(sum(self.smallest.parts),))
            self.by_mistakes = outcome(whole, self.stepping.alone, first.right).is_right
            if not self.by_mistakes:
                self.steps = None  # one call with all words is wrong too
        elif not first.is_right and self._right_in_other_order():
            self.by_mistakes = True
            self.find(_TABLE.finding("cache-first", first, remedy=self.returns))
        elif first.is_right and differ(first.out, again.out):
            shared = _TABLE.finding("cache-shared", again)
            self.find(replace(shared, more={"yours the first time": first.out}))
        else:
            self.first_call(self.smallest)

    def _with_another_first_cache(self) -> Outcome | None:
        """Try {} and [] as the first cache instead of None, and return the first run that works."""
        for make in (dict, list):
            self.stepping.first = make
            if (other := self.call(self.smallest)).error is None:
                self.limits.append(f"The cache of its first call has to be {make()}, not None.")
                return other
        self.stepping.first = lambda: None
        return None

    def test_in_parts(
        self, single: list[Calls], more: list[Calls], known: Sequence[Mistake]
    ) -> None:
        """Test single-word calls, and calls with several words.

        Args:
            single: cases with one word in each call.
            more: cases with several words in at least one call.
            known: possible mistakes.
        """
        alone, several = "one word in each call", "several words in one call"
        if self._together(self.run(single), self.run(more), known):
            self.test(Group(f"{alone}, and {several}", (*single, *more), known))
        else:
            self.test(Group(alone, single, known))
            self.test(Group(several, more, known))

    def _together(
        self, single: list[Outcome], more: list[Outcome], known: Sequence[Mistake]
    ) -> bool:
        """Return whether to test single-word calls and longer calls in the same group."""
        if all(run.error is not None for run in single):
            return True  # many mistakes give this error: more calls are needed to tell them apart
        together, first = self.explain([*single, *more], known), self.explain(single, known)
        if together is None:
            return False
        # Suppose that all calls together show two mistakes, and the single-word calls show only one
        # of them. Then return False: the single-word calls are tested separately, and their test
        # reports only this one mistake.
        mistakes = together[1]
        return len(mistakes) < 2 or first is None or any(m not in mistakes for m in first[1])

    def last_calls(self, others: Sequence[Calls], recomputed: Sequence[Mistake]) -> None:
        """Check that the step function uses its cache and does not modify it.

        This method does nothing if an earlier test has found a mistake.

        Args:
            others: runs that use other projections in the later calls than in the first call.
            recomputed: mistakes in which a step recomputes keys or values of earlier words.
        """
        if self.wrong:
            return
        self.tried.append("keys and values of earlier calls")
        runs = self.run(others)
        if (explained := self.explain(runs, recomputed)) is not None:
            self.steps, found = explained
            for mistake in found:
                self.find(of_mistake(mistake, first_wrong(runs), diff=self._diff(mistake)))
        given_back = tuple(self.stepping.given_back)
        self.find(overwritten([replace(self.runs[0], given_back=given_back)]))
        if not self.wrong and self._writes_to_cache():
            self.limits.append(
                "It writes to its cache: copy the cache before you use the cache in two calls."
            )

    @property
    def gives_none(self) -> bool:
        """Whether the first call returns None as the cache."""
        call = self.stepping

        return outcome(
            self.smallest,
            lambda run: np.array(call.make_call(run, run.pieces()[0], call.first())[1] is None),
            np.array(True),
        ).is_right

    def _right_in_other_order(self) -> bool:
        """Return whether the only mistake is to return (cache, out) instead of (out, cache)."""
        self.stepping.cache_first = True
        run = self.call(self.smallest)
        self.stepping.cache_first = False
        return run.is_right

    def _writes_to_cache(self) -> bool:
        """Return whether a second call with the same cache gives a different output or an error."""
        call = self.stepping

        def second_time(run: Calls) -> Any:
            first, last = run.pieces()
            _, cache = call.make_call(run, first, call.first())
            call.make_call(run, last, cache)
            return call.make_call(run, last, cache)[0]

        right = self.call(self.smallest).right[-1:]
        return not outcome(self.smallest, second_time, right).is_right

    def _no_cache(self, run: Outcome, error: NoCacheError) -> Symptom:
        yours = {"yours": str(error).removeprefix("it returns ")}
        if error.returned is None:
            return replace(nothing_returned(run, str(error), self.returns), more=yours)
        long = isinstance(error.returned, tuple | list) and len(error.returned) > 2
        name = "cache-not-one-object" if long else "cache-not-returned"
        finding = _TABLE.finding(name, run, error=error, remedy=self.returns)
        return replace(finding, more=yours)


_WEIGHTS = ("w_q", "w_k", "w_v")


def compute(case: Calls, steps: Lines) -> Array:
    """Return the outputs (T, dv) of all calls, concatenated."""
    words = case.arrays["x"][:0]  # the words of the earlier calls
    cache = words @ case.arrays["w_k"], words @ case.arrays["w_v"]
    outs = []
    for calls, arrays in enumerate(case.split_arrays()):
        earlier = {"calls": calls, "words": words, "before": len(words), "cache": cache}
        names = _STEP.run({**arrays, **earlier, "positions": case.positions}, steps)
        outs.append(np.atleast_2d(names["out"]))
        cache, words = names["new_cache"], np.concatenate([words, names["x"]])
    return np.concatenate(outs)


CACHING, MASKING, PLACING = (_TABLE.group(name) for name in ("rows", "masks", "positions"))
# the cache stays empty; the marker tries this mistake if the first call returns None as the cache
NOT_FILLED = _TABLE.mistake("cache-not-filled")
# The test changes the projections after the first call. A correct step function continues to use
# the rows that it cached before the change. A step function with this mistake computes these rows
# again, and gets other numbers.
RECOMPUTED = _TABLE.mistake("cache-recomputed")
EXCHANGED = _TABLE.mistake("cache-exchanged")
KNOWN = (*CACHING, *MASKING, *core("x,w_q,w_k,w_v"), *OF_CAUSAL, EXCHANGED)

# the test inputs, and the function that marks an answer


def _draw(seed: int, parts: tuple[int, ...], sizes: tuple[int, int, int]) -> Calls:
    """Draw word vectors and projections of sizes D, d, dv in multiples of 1/2."""
    width, d, dv = sizes
    rng = generator(seed)
    shapes = {"x": (sum(parts), width), "w_q": (width, d), "w_k": (width, d), "w_v": (width, dv)}
    return Calls({name: rng.integers(-4, 5, shape) / 2 for name, shape in shapes.items()}, parts)


def _cases(seed: int, *parts: tuple[int, ...]) -> list[Calls]:
    """Draw a small text and a large text for each item of `parts`.

    An item lists the number of words in each call: (2, 1) means a call with two words, then a call
    with one word.
    """
    return [
        _draw(seed + 2 * n + bool(sizes[0] > 2), one, sizes)
        for n, one in enumerate(parts)
        for sizes in ((2, 2, 2), (4, 5, 5))
    ]


# a text of two words with scores of 0 and 1000; the tests read it in two calls or in one call
_LARGE = {"x": [[1, 0], [1, 1]], "w_q": [[1000], [0]], "w_k": [[0], [1]], "w_v": [[1], [1]]}
_LARGE_ARRAYS = {name: np.array(rows, dtype=float) for name, rows in _LARGE.items()}

LARGE_SCORES = Group(
    "scores of 1000", [Calls(_LARGE_ARRAYS, (1, 1)), Calls(_LARGE_ARRAYS, (2,))], LARGE
)


@per_seed
def word_by_word() -> list[Calls]:
    """Return texts that are read one word per call; smaller texts come first."""
    return _cases(10, (1, 1), (1, 1, 1))


@per_seed
def several() -> list[Calls]:
    """Return texts that are read in one or more calls; at least one call reads several words."""
    return [
        *_cases(110, (2,)),
        *_cases(20, (2, 1), (3, 1, 1)),
        *_cases(30, (1, 2), (2, 2), (1, 3, 2)),
    ]


def _with_positions(case: Calls) -> Calls:
    """Add a table of T + 3 position vectors to a case of T words; the last vector is all zeros."""
    words, width = case.arrays["x"].shape
    table = np.arange(1.0, 1 + (words + 3) * width).reshape(-1, width) % 5 / 2
    table[-1] = 0
    return replace(case, positions=table)


@per_seed
def _positions() -> Group:
    cases = _cases(40, (1, 1), (2, 1), (1, 2, 1))
    return Group("positions", [_with_positions(case) for case in cases], PLACING)


def _call(step: Function, case: Calls, x: Array, cache: Any) -> Any:
    """Call a step function with these words and this cache."""
    positions = {} if case.positions is None else {"positions": case.positions}
    return step(x, cache, *(case.arrays[name] for name in _WEIGHTS), **positions)


def _mark(function: Function) -> Marking:
    """Test a step function with a cache."""
    names = ("x", "cache", "w_q", "w_k", "w_v")
    options, _ = options_of(function, names, {"positions": ("positions",)})
    returns = "return out, (k, v)  # all keys and values so far"
    smallest = word_by_word()[0]
    m = StepMarking(Computation("kv-cache", compute, RIGHT, returns), function, _call, smallest)
    m.first_calls()
    if m.wrong:
        return m
    m.test_in_parts(word_by_word(), several(), (NOT_FILLED, *KNOWN) if m.gives_none else KNOWN)
    m.test(LARGE_SCORES)
    if "positions" in options:
        m.test(_positions())
    else:
        m.untried.append("positions")
    others = [_with_other_projections(case) for case in (smallest, several()[-1])]
    m.last_calls(others, [RECOMPUTED])
    return m


def _with_other_projections(case: Calls) -> Calls:
    """Change the key and value projections of a case after the first call."""
    w = {name: case.arrays[name] for name in _WEIGHTS}
    return replace(case, later=w | {"w_k": w["w_k"] + 1, "w_v": w["w_v"] - 2})


KV_CACHE = make_task("kv-cache", _mark)

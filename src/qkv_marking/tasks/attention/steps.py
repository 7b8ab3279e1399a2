"""Attention tasks: test inputs, right answers, and calls of a learner's function."""

import inspect
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from qkv.arrays import Array, Shape
from qkv.attend.formula import Steps as Formula, formula
from qkv_marking._engine import by_seed, generator
from qkv_marking._errors import WrongParameters
from qkv_marking._formula import Lines
from qkv_marking._mistake import Function
from qkv_marking._outcome import Outcome, is_number, name_of, outcome
from qkv_marking.tasks.attention.mistakes import FORMULA

NAMES = {"qkv": ("query", "key", "value"), "x,w_q,w_k,w_v": ("x", "w_q", "w_k", "w_v")}
SIZES = {"qkv": "other lengths and sizes", "x,w_q,w_k,w_v": "values of another size"}
CORE = "scores, scaling, softmax, values"  # name of the test with L == S and d == dv


@dataclass(frozen=True)
class Trial:
    """The arguments of one call: arrays keyed by name, and options."""

    arrays: dict[str, Array]
    mask: Array | None = None
    causal: bool = False
    q_offset: int | None = None
    heads: int = 1
    output: Array | None = None  # w_o, (heads * dv, D)

    @property
    def visible(self) -> Array | None:
        """The mask as booleans; in a mask of numbers, finite numbers become True."""
        if self.mask is None or self.mask.dtype == bool:
            return self.mask
        return np.isfinite(self.mask)

    def with_added_mask(self) -> "Trial":
        """Turn a boolean mask into a mask to add: 0 for visible keys, -inf for masked keys."""
        if self.mask is None or self.mask.dtype != bool:
            return self
        return replace(self, mask=np.where(self.mask, 0.0, -np.inf))

    def list_arguments(self) -> dict[str, Any]:
        """Return the arguments that a learner needs to repeat this call."""
        options = {
            "mask": self.mask,
            "is_causal": self.causal or None,
            "q_offset": self.q_offset,
            "w_o": self.output,
            "num_heads": self.heads if self.heads > 1 else None,
        }
        return self.arrays | {name: a for name, a in options.items() if a is not None}

    def at_rank(self, rank: int) -> "Trial":
        """Add leading axes of size 1 to all arrays except weights, up to `rank` dimensions."""
        arrays = {
            name: a if name.startswith("w_") else _lift(a, rank) for name, a in self.arrays.items()
        }
        mask = self.mask
        if mask is not None:
            # for arrays of 3 dimensions, a mask (S,) becomes (1, S)
            mask = _lift(mask, rank - (mask.ndim == 1))
        return replace(self, arrays=arrays, mask=mask)

    def reverse_order(self) -> "Trial":
        """Reverse the order of keys and values, or of the tokens of x."""
        ordered = ("key", "value", "x")
        arrays = {n: a[..., ::-1, :].copy() if n in ordered else a for n, a in self.arrays.items()}
        return replace(self, arrays=arrays)


def _lift(a: Array, rank: int) -> Array:
    """Add dimensions of size 1 to an array, until it has `rank` dimensions."""
    missing = max(0, rank - a.ndim)
    return a.reshape(a.shape[:-2] + (1,) * missing + a.shape[-2:])


def cases(signature: str) -> dict[str, list[Trial]]:
    """Return the cases of all tests, keyed by test name; smaller cases come first."""
    own_cases = _of_query_key_value() if signature == "qkv" else _of_word_vectors()
    two, _, three, *_ = own_cases[CORE]
    batch = own_cases["batches"][-1]
    whole = {
        name: a if name.startswith("w_") else a.astype(np.int64) for name, a in two.arrays.items()
    }
    diagonal = np.eye(2, dtype=bool)  # each query sees only its own key
    lopsided = np.array([[True, False, True], [True, True, False], [True, False, False]])
    half = np.log(np.array([[0.5, 1, 1], [1, 0.5, 1], [1, 1, 1]]))
    masks = [replace(two, mask=diagonal), replace(three, mask=lopsided)]
    if signature == "qkv":
        masks += [replace(case, mask=lopsided[:2]) for case in draw("qkv", 140, (2, 3, 2, 2))]
    return {
        **own_cases,
        "whole numbers": [Trial(whole)],
        "one key": draw(signature, 160, (1, 1, 2, 2)),
        # every query sees a key, even if a function inverts the mask
        "a mask": masks,
        "a mask of keys": [replace(two, mask=diagonal[1]), replace(three, mask=lopsided[0])],
        "a mask of numbers": [replace(three, mask=np.where(lopsided, half, -np.inf))],
        "a row masked out": [replace(two, mask=np.array([[True, True], [False, False]]))],
        "a mask on a batch": [replace(batch, mask=lopsided)],
        "a causal mask": [replace(two, causal=True), replace(three, causal=True)],
        "a causal mask on a batch": [replace(batch, causal=True)],
        "both masks together": [replace(three, mask=lopsided, causal=True)],
    }


def _of_query_key_value() -> dict[str, list[Trial]]:
    """Return cases for functions that take query, key and value."""
    smallest = _case("qkv", [[1, 1], [2, 1]], [[1, 2], [0, 1]], [[1, 0], [3, 2]])
    if by_seed():
        (smallest,) = draw("qkv", 0, (2, 2, 2, 2))
    sizes = [(1, 2, 2, 2), (2, 3, 2, 2), (3, 2, 2, 2), (2, 2, 2, 1), (2, 2, 2, 3), (2, 2, 1, 1)]
    cached = draw("qkv", 150, (1, 2, 2, 2), (2, 3, 2, 2), (1, 3, 2, 2))
    return {
        CORE: [smallest, *draw("qkv", 10, (3, 3, 2, 2), (3, 3, 4, 4), (3, 3, 5, 5))],
        SIZES["qkv"]: draw("qkv", 50, *sizes, apart=5),
        # scores [[1000, 0], [-1000, 0]]: exp(1000) overflows, and exp(-2000) is 0
        "scores of 1000": [_case("qkv", [[1000], [-1000]], [[1], [0]], [[1], [2]])],
        # in the first case, all sizes are 2: a wrong transpose raises no error
        "batches": draw("qkv", 100, (2, 2, 2, 2), (3, 3, 4, 4), batch=(2,)),
        # query 0 is at the position of key 1; in the last case, key 2 comes after the only query
        "q_offset": [replace(case, causal=True, q_offset=1) for case in cached],
    }


def _of_word_vectors() -> dict[str, list[Trial]]:
    """Return cases for functions that take x and three projections."""
    names = "x,w_q,w_k,w_v"
    smallest = [[[1, 0], [1, 2]], [[1, 1], [0, 1]], [[1, -1], [0, 1]], [[1, 2], [1, 0]]]
    two, sizes = _case(names, *smallest), [(2, 2, 2, 1), (2, 2, 2, 3), (2, 2, 1, 1)]
    if by_seed():
        (two,) = draw(names, 20, (2, 2, 2, 2))
    return {
        CORE: [two, *draw(names, 30, (2, 3, 3, 3), (3, 4, 2, 2), (3, 4, 5, 5))],
        SIZES[names]: draw(names, 80, *sizes, apart=5),
        "scores of 1000": [_case(names, [[1, 1], [-1, 0]], [[1000], [0]], [[0], [1]], [[1], [1]])],
        "batches": draw(names, 120, (2, 2, 2, 2), (3, 4, 4, 4), batch=(2,)),
        # in the second case, the joined heads are wider than x
        "two heads": [replace(case, heads=2) for case in (two, *draw(names, 180, (3, 3, 4, 4)))],
    }


def long_ones(length: int) -> list[Trial]:
    """Return two cases: two queries with many keys, and many queries with two keys.

    In the first case, the scores of query 0 rise from key to key, and the scores of query 1 fall.
    """
    both, long = np.array([[1.0], [-1.0]]), np.arange(length)[:, None] / 8
    value = np.random.default_rng(900).integers(-4, 5, (length, 1)) / 2
    return [_case("qkv", both, long, value), _case("qkv", long, both, value[:2])]


def large_ones(length: int) -> Trial:
    """Return a case with very large scores.

    The scores of the first query are 2000 and 1000. The scores of the second query are -2000 and
    -1000.
    """
    key = np.where(np.arange(length) < (length + 1) // 2, 2, 1)[:, None]
    return _case("qkv", [[1000], [-1000]], key, np.arange(length)[:, None])


def _case(signature: str, *rows: Any) -> Trial:
    """Convert rows of numbers to the arrays of a case."""
    arrays = [np.array(row, dtype=np.float64) for row in rows]
    return Trial(dict(zip(NAMES[signature], arrays, strict=True)))


def draw(names: str, seed: int, *sizes: Shape, apart: int = 10, batch: Shape = ()) -> list[Trial]:
    """Draw cases from multiples of 1/2 between -2 and 2, which float32 represents exactly.

    Args:
        names: the names of the arrays, such as "qkv".
        seed: the seed of the first array in the first case. The second array has the seed
            `seed + 1`, and so on.
        sizes: (L, S, d, dv) for each case; if the function takes x instead of queries, keys and
            values, (T, D, d, dv) for each case.
        apart: the difference between the seeds of successive cases.
        batch: the leading dimensions.
    """
    drawn_cases = []
    for first, (a, b, d, dv) in enumerate(sizes):
        shapes = [(*batch, a, d), (*batch, b, d), (*batch, b, dv)]
        if names != "qkv":
            shapes = [(*batch, a, b), (b, d), (b, d), (b, dv)]
        rngs = (generator(seed + first * apart + n) for n in range(len(shapes)))
        numbers = (rng.integers(-4, 5, shape) / 2 for rng, shape in zip(rngs, shapes, strict=True))
        drawn_cases.append(_case(names, *numbers))
    return drawn_cases


FLOATS = "out = np.zeros((L, dv), dtype=float)  # not zeros_like(v); or x.astype(float) first"


def values_of(case: Trial) -> dict[str, Any]:
    """Return the variables that the lines of attention use."""
    return {
        "x": None,
        "num_heads": case.heads,
        "mask": case.visible,
        "added": None if case.visible is case.mask else case.mask,
        "is_causal": case.causal,
        "q_offset": case.q_offset or 0,
        "w_o": case.output,
        **case.arrays,
    }


def compute(case: Trial, steps: Lines) -> Array:
    """Compute the output of attention with these lines."""
    out: Array = FORMULA.run(values_of(case), steps)["out"]
    return out


def answer(case: Trial) -> Formula:
    """Return the right output, weights and scores, and the log-sum-exp of each row of scores."""
    values = values_of(case)
    arrays = {name: a.astype(np.float64) for name, a in case.arrays.items()}
    names = FORMULA.run({**values, **arrays})
    q, k, v = (names[name] for name in "qkv")
    scale, added = q.shape[-1] ** -0.5, values["added"]
    steps = formula(q, k, v, scale=scale, mask=added, visible=names["visible"])
    joined = FORMULA.part("join", "output").run({**values, "out": steps.out})
    return steps._replace(out=joined["out"])


# the parameter names that learners use for each option
OPTIONS = {
    "mask": ("mask", "attn_mask", "attention_mask"),
    "causal": ("is_causal", "causal"),
    "q_offset": ("q_offset",),
    "heads": ("num_heads", "n_heads", "heads"),
    "output": ("w_o", "W_o", "W_O", "wo", "w_out"),
}


@dataclass(frozen=True)
class Learner:
    """A learner's function, and how to call it.

    Attributes:
        function: the function.
        name: its name.
        options: a mapping from the options that the function takes, such as "causal", to the names
            of its parameters, such as "is_causal".
        needed: the options without a default.
        positional: the positional-only parameters.
        unmasked: the value that fills the mask if the function requires a mask and a test has none.
        per_key: whether a required mask has shape (S,) instead of (L, S).
        weights_first: whether the function returns the weights before the output.
        rank: the number of dimensions of the arrays that the function takes: 2 for a single text, 3
            or 4 if it takes only batches.
        adds_mask: whether the function takes a mask of 0 and -inf.
        number_as_mask: whether the default of the mask parameter is a number.
    """

    function: Function
    name: str
    options: dict[str, str] = field(default_factory=dict)
    needed: frozenset[str] = frozenset()
    positional: tuple[inspect.Parameter, ...] = ()
    unmasked: bool | float = True
    per_key: bool = False
    weights_first: bool = False
    rank: int = 2
    adds_mask: bool = False
    number_as_mask: bool = False

    def __call__(self, case: Trial) -> Outcome:
        """Run the function on a copy of the case, and return the result or the error."""
        case = case.at_rank(self.rank)
        if self.adds_mask:
            case = case.with_added_mask()
        run = outcome(case, self._call_function, answer(case).out, beside=True)
        if self.weights_first:
            run = replace(run, out=run.second, second=run.out)
        return run

    def expect_error(self, case: Trial) -> Outcome:
        """Run the function on a case for which it should raise an error."""
        return outcome(case.at_rank(self.rank), self._call_function, np.zeros(0), beside=True)

    def _call_function(self, case: Trial) -> Any:
        """Call the function with the arrays and options of a case."""
        keywords = self._keywords(case)
        positional = [keywords.pop(p.name, p.default) for p in self.positional]
        return self.function(*case.arrays.values(), *positional, **keywords)

    def _keywords(self, case: Trial) -> dict[str, Any]:
        """Return the options of a case, keyed by the function's parameter names."""
        options = {option: getattr(case, option) for option in self.options}
        if case.mask is not None:
            options["mask"] = case.mask
        elif "mask" in self.needed:
            queries = next(iter(case.arrays.values()))
            keys = case.arrays.get("key", queries)
            before = queries.shape[: -2 if self.per_key else -1]
            options["mask"] = np.full((*before, keys.shape[-2]), self.unmasked)
        if "output" in self.needed and case.output is None:
            options["output"] = np.eye(case.arrays["w_v"].shape[-1])  # the identity matrix
        if "q_offset" in self.needed:
            options["q_offset"] = case.q_offset or 0
        return {
            name: options[option]
            for option, name in self.options.items()
            if options[option] is not None
        }


def learner(function: Function, signature: str) -> Learner:
    """Read a function's parameters.

    Raises:
        TypeError: the function cannot be called with the arrays of this signature.
    """
    names = NAMES[signature]
    name = name_of(function)
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:  # some builtins have no signature
        return Learner(function, name)
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    several = [p for p in parameters if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    rest = [p for p in parameters if p not in (*positional[: len(names)], *several)]
    takes_any = any(p.kind is p.VAR_POSITIONAL for p in several)
    options = {option: p.name for option, known in OPTIONS.items() for p in rest if p.name in known}
    needed = {p.name for p in rest if p.default is p.empty}
    if needed - {*options.values()} or (len(positional) < len(names) and not takes_any):
        other = next(s for s in NAMES if s != signature)
        raise WrongParameters(
            f'check: with signature="{signature}", the call is {name}({", ".join(names)}), but the'
            f" function is {name}({', '.join(p.name for p in parameters)}); give all other"
            f' parameters a default, or pass signature="{other}"'
        )
    return Learner(
        function,
        name,
        options,
        frozenset(option for option, p in options.items() if p in needed),
        tuple(p for p in rest if p.kind == p.POSITIONAL_ONLY),
        number_as_mask=any(is_number(p.default) for p in rest if p.name == options.get("mask")),
    )

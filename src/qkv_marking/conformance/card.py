"""Judge every feature of an attention function by the results of a formula in float64."""

import itertools
import json
import math
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import combinations
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import numpy as np

from qkv.arrays import whole_number
from qkv_marking._isolated import Isolated, serve
from qkv_marking._outcome import name_of
from qkv_marking.conformance._called import LIBRARIES, Callee
from qkv_marking.conformance._explain import Explainer
from qkv_marking.conformance._runs import CaseResult, Runs
from qkv_marking.conformance._worker import MEGABYTES, CaseWorker, load, of_function
from qkv_marking.conformance.read_cases import (
    FEATURES,
    POSITIONAL,
    Case,
    plan_cases,
    random,
    smaller,
    with_and_without,
)
from qkv_marking.conformance.report import Report, WrongCase, status_of

_LENGTHS = (*range(1, 9), 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 96, 127, 128, 129, 256, 257)
# the sizes to try, keyed by the field of `Case`
_TRIED = MappingProxyType(
    {
        "d": (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 40, 48, 64, 72, 80, 96, 112, 128, 160, 192, 256),
        "B": (1, 2, 3),
        "L": _LENGTHS,
        "S": _LENGTHS,
    }
)
_TOGETHER = MappingProxyType({"d": ("d", "dv"), "B": ("B",), "L": ("L",), "S": ("S",)})
# a function that takes all of these sizes (B, L, S, d) has no limits
_FIRST = (
    *((1, 1, 1, 1), (2, 5, 5, 8), (3, 3, 7, 3), (2, 7, 3, 6), (1, 4, 257, 40), (1, 129, 5, 128)),
    *((1, 2, 33, 96), (1, 3, 2, 256)),
)
_LONGEST = 1024  # a case is not made square beyond this length, to save time
_USUAL_D = (64, 128, 32, 16, 8, 256, 96, 4, 1)
_USUAL = ((64, 64), (128, 128), (256, 256), (16, 16), (1, 64), (1, 128), (8, 8), (4, 4), (1, 1))


class _Sizes(NamedTuple):
    """Those of the tried sizes that a function accepts."""

    accepted: tuple[int, ...]
    tried: tuple[int, ...]

    @property
    def step(self) -> int:
        """The number whose multiples in the accepted range are all accepted, or 0."""
        step, low, top = math.gcd(*self.accepted), min(self.accepted), max(self.accepted)
        between = [n for n in self.tried if n % step == 0 and low <= n <= top]
        return step if between == [*self.accepted] and len(between) > 4 else 0

    def nearest(self, size: int) -> int:
        """Return the smallest accepted size of at least `size`; if there is none, the largest."""
        low, top = min(self.accepted), max(self.accepted)
        if not self.step:
            return min((n for n in self.accepted if n >= size), default=top)
        size = max(low, -(-size // self.step) * self.step)
        has_top = any(n > top and n % self.step == 0 for n in self.tried)
        return min(size, top) if has_top else size

    def says(self, name: str) -> str:
        """Describe the sizes, for example "d is a multiple of 8"."""
        if not self.step:
            *some, last = map(str, self.accepted)
            return f"{name} is {', '.join(some)} or {last}" if some else f"{name} is {last}"
        low, top = min(self.accepted), max(self.accepted)
        words = [f"a multiple of {self.step}"] if self.step > 1 else []
        words += [f"at least {low}"] if low > self.step else []
        words += [f"at most {top}"] if self.nearest(top + 1) == top else []
        return f"{name} is {' and '.join(words)}"


class Limits(NamedTuple):
    """The limits of a function: the sizes that it accepts, and whether L must equal S."""

    sizes: Mapping[str, _Sizes]
    square: bool = False

    def fit(self, case: Case) -> Case:
        """Return the case with sizes that the function takes; sizes of 0 stay 0."""
        L, S = case.L, case.S
        if L and S and self.square:
            L = S = max(min(L, S), min(max(L, S), _LONGEST))
        sizes: dict[str, Any] = {"B": case.B, "L": L, "S": S, "d": case.d, "dv": case.dv}
        for name, size in sizes.items():
            accepted = self.sizes.get(name[0])
            if accepted is not None and size:
                sizes[name] = accepted.nearest(size)
        options = dict(case.options)
        if case.L == case.S and sizes["L"] != sizes["S"] and {*options} & {*POSITIONAL}:
            options.setdefault("q_offset", "aligned")
        return replace(case, options=options, **sizes)

    def says(self) -> tuple[str, ...]:
        """Describe the limits, for example `("d is 64, 96 or 128", "L = S")`."""
        sizes = (sizes.says(name) for name, sizes in self.sizes.items())
        return (*sizes, *["L = S"] * self.square)


def find_limits(run: Callable[[Case], CaseResult], dtype: str) -> Limits | None:
    """Find the limits of a function; return None if it refuses every call.

    Args:
        run: a function that runs a case.
        dtype: the dtype of the calls.
    """

    def takes(case: Case) -> bool:
        return run(case).status != "refused"

    def call(B: int, L: int, S: int, d: int) -> Case:
        return Case("plain", "limits", B=B, L=L, S=S, d=d, dv=d, dtype=dtype)

    for sizes in _FIRST:
        result = run(call(*sizes))
        if result.status == "refused":
            break
        if result.ended:  # do not wait for further calls that crash or hang
            return Limits({})
    else:
        return Limits({})
    usual = (call(B, *n, d) for d, B, n in itertools.product(_USUAL_D, (2, 1), _USUAL))
    base = next(filter(takes, usual), None)
    if base is None:
        return None

    def find_accepted(*names: str) -> _Sizes:
        tried = _TRIED[names[0]]
        cases = {n: replace(base, **cast(Any, dict.fromkeys(names, n))) for n in tried}
        return _Sizes(tuple(n for n, case in cases.items() if takes(case)), tried)

    found = {name: find_accepted(*names) for name, names in _TOGETHER.items()}
    square = found["L"].accepted == found["S"].accepted == (base.L,)
    if square:
        found["L"] = found["S"] = find_accepted("L", "S")
    limited = {name: sizes for name, sizes in found.items() if sizes.accepted != sizes.tried}
    return Limits(limited, square)


DTYPES = ("float16", "bfloat16", "float32", "float64")
# the allowed values of some arguments of `conform`, keyed by the argument's name
_NAMES = MappingProxyType(
    {"arrays": LIBRARIES, "dtypes": DTYPES, "features": FEATURES, "aligned": ("start", "end")}
)
_RANDOM = 60
_HANGS = 3  # after this number of crashes or hangs, the other cases of a feature are skipped
_AGAIN = 3  # a call that is right this number of times is not right by chance
_STEPS = 60  # the maximum number of calls in the search for a smaller failing case
_DEPENDS = "it depends on earlier calls: in a new process, the same call is right"


def conform(
    function: Callable[..., Any] | str,
    *,
    arrays: str = "numpy",
    names: Mapping[str, str] | None = None,
    dtypes: Sequence[str] = ("float32",),
    gradient: Callable[..., Any] | str | None = None,
    features: Collection[str] | None = None,
    aligned: str = "end",
    device: str = "",
    strict: bool = False,
    seed: int = 0,
    seconds: float = 10.0,
    waiting: Callable[[], None] = lambda: None,
) -> Report:
    """Judge an attention function: report which features are right and which are wrong.

    The function is called as `function(query, key, value, **arguments)`. The arrays have the shape
    `(B, H, L, d)`: batch, heads, positions, size of a head. The arguments are the parameters that
    `qkv.attention` and the function have in common. The results must equal the results of the
    formula in float64, within the bounds that the card shows. The function runs in a separate
    process. If a call crashes or hangs, its case counts as wrong, and the other cases still run.

    Structured cases come first (each feature, pairs of features, and sizes near tile sizes), then
    random cases. For a wrong feature, the report shows the smallest failing case, and the known
    kernel defects that would produce the same output. If the function raises errors for some sizes,
    such as head sizes that are not multiples of 8, the report states these limits, and all cases
    have sizes within the limits.

    Args:
        function: a function, or `"package.module:function"`, `"file.py:function"`, `"model.onnx"`,
            or the name of another library's attention, such as `"torch.sdpa"`.
        arrays: the library of the function's arrays: `"numpy"`, `"torch"` or `"jax"`.
        names: argument names that differ from `qkv.attention`, for example `{"mask": "attn_mask"}`.
        dtypes: the dtypes in which all features are judged. The feature "half precision" tests
            float16 and bfloat16, if the library has them.
        gradient: the backward pass, called as `gradient(query, key, value, grad_out, **arguments)`.
            Its first three results are the gradients of query, key and value, as in
            `qkv.attention_grad`. If `gradient` is None, torch and JAX differentiate the function.
        features: the features to judge; None for all.
        aligned: how queries align with keys if L and S differ and the function takes no `q_offset`.
            `"end"` aligns the last query with the last key; `"start"` aligns the first query with
            the first key.
        device: the device of torch or JAX arrays, such as `"cuda"`.
        strict: whether fragile features count as wrong.
        seed: the seed of the random cases.
        seconds: the time limit for each call.
        waiting: a function to call several times per second during the run.

    Returns:
        A `Report`. `bool(report)` is True if no feature is wrong, and `print(report)` shows the
            report card.

    Raises:
        ValueError: a library, dtype or feature is unknown; the function cannot be loaded; or the
            function raises an error in every call without options.
        TypeError: `function` cannot be called.

    >>> import numpy as np
    >>> def mine(query, key, value, is_causal=False):
    ...     scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    ...     if is_causal:
    ...         scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    ...     weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    ...     return weights / weights.sum(axis=-1, keepdims=True) @ value
    >>> report = conform(mine, features=["plain", "causal"])
    >>> report.features
    {'plain': 'right', 'causal': 'wrong'}
    >>> report.remark("causal")
    'as if the kernel aligned the causal mask to the first key'
    """
    whole_number(seed, call="conform", name="seed", least=0)
    _check_names(arrays=[arrays], dtypes=dtypes, features=features or (), aligned=[aligned])
    chosen = [feature for feature in FEATURES if features is None or feature in features]
    task = {"target": function, "gradient": gradient, "arrays": arrays, "device": device}
    start = _start(task | {"names": names}, {"seconds": seconds, "waiting": waiting})
    with closing(Runs(start, strict)) as runs:
        about = runs.load()
        limits = _limits(runs, dtypes[0])
        ignored = {name for name in about["unnamed"] if _ignores(runs, name, limits, dtypes[0])}
        about = {**about, "offered": {*about["offered"]} - ignored}
        if gradient is None and about["gradient"] is not None:
            about["gradient"] = {*about["gradient"]} - ignored
        fit = _fit_to(runs, about, aligned, limits)
        cases = _fit_cases(
            [*plan_cases(dtypes, about["halves"]), *random(seed, _RANDOM, dtypes)], fit, chosen
        )
        results = _all(runs, cases)
        causes = _find_causes(runs, results, fit, chosen)
        bad = [result for result in results if result.status == "wrong" and result not in causes]
        own = {result.feature for result in bad}
        results += [cause for cause in dict.fromkeys(causes.values()) if cause.feature not in own]
        results, findings = _findings(results, causes, runs)
    by_feature = {name: _results_of(name, results) for name in chosen}
    statuses = {name: status_of(group) if group else "absent" for name, group in by_feature.items()}
    name = function if isinstance(function, str) else name_of(function)
    says = f"{name} ({about['says'] or arrays}; {', '.join(dtypes)})"
    said = (limits.says(), tuple(sorted(ignored)), _other_types(results))
    return Report(says, statuses, tuple(results), findings, *said)


def _results_of(feature: str, results: Iterable[CaseResult]) -> list[CaseResult]:
    return [result for result in results if result.feature == feature]


def _other_types(results: Iterable[CaseResult]) -> tuple[str, ...]:
    """Return the dtypes of outputs that differ from a half dtype: "float32 for float16"."""
    # bfloat16 is not a dtype of NumPy: its results always arrive as float32
    halves = [one for one in results if one.case.dtype == "float16" and one.outputs]
    kinds = {str(one.outputs[0].dtype) for one in halves} - {"float16"}
    return tuple(f"{kind} for float16" for kind in sorted(kinds))


def _check_names(**values: Collection[str]) -> None:
    """Raise an error if an argument of `conform` contains an unknown name."""
    if not (dtypes := values["dtypes"]) or isinstance(dtypes, str):
        raise ValueError(
            f'conform: the argument dtypes is {dtypes!r}; pass names, such as ("float32",)'
        )
    for argument, known in _NAMES.items():
        for value in values[argument]:
            if value not in known:
                names = ", ".join(known)
                raise ValueError(f"conform: `{argument}` has {value!r}: choose from {names}")


def _start(task: dict[str, Any], limits: dict[str, Any]) -> Callable[[], Isolated]:
    """Return a function that starts the child process.

    If the function is given by name, the child is a new process, which loads the function. If the
    function is given as an object, the child is a fork of this process, so that it has the object.
    """
    limits = {**limits, "call": "conform"}
    target, gradient = task["target"], task["gradient"]
    for function in (target, target if gradient is None else gradient):
        if not (isinstance(function, str) or callable(function)):
            raise TypeError(
                f"conform: `function` has type {type(function).__name__}, which cannot be"
                " called: write conform(my_attention), without () after the name"
            )
    if isinstance(target, str) and isinstance(gradient, str | None):
        sent = json.dumps(task | {"path": [os.getcwd(), *sys.path]})
        return lambda: Isolated(["qkv_marking.conformance._worker", sent], **limits)

    def load_function(function: Any) -> Callee:
        names = task["names"]
        return load(function, names) if isinstance(function, str) else of_function(function, names)

    def fork() -> None:
        worker = CaseWorker(task, load_function)
        serve(lambda: worker.answer, MEGABYTES, 1e5)

    return lambda: Isolated(fork, **limits)


def _limits(runs: Runs, dtype: str) -> Limits:
    """Find the sizes that the function takes.

    Raises:
        ValueError: the function refuses every call.
    """
    limits = find_limits(runs.run, dtype)
    if limits is not None:
        return limits
    case = Case("plain", L=64, S=64, d=64, dv=64, dtype=dtype)
    raise ValueError(
        f"conform: the simplest call is refused ({case.describe()}): {runs.run(case).message}; the"
        " function must accept the call function(query, key, value) with arrays (B, H, L, d)"
    )


def _ignores(runs: Runs, name: str, limits: Limits, dtype: str) -> bool:
    """Return whether an argument accepted only by `**options` never changes the results."""
    same = []
    for pair in with_and_without(name, dtype):
        one, other = (runs.run(limits.fit(case)).outputs for case in pair)
        if one and other:  # the function refuses neither of the two calls
            same.append(len(one) == len(other) and all(map(np.array_equal, one, other)))
    return bool(same) and all(same)


_Fit = Callable[[Case], Case | None]


def _fit_to(runs: Runs, about: Mapping[str, Any], aligned: str, limits: Limits) -> _Fit:
    """Return a function that adapts a case, or returns None if the function cannot take the case.

    A few calls without options show which of the defaults in the function's signature have an
    effect, and how the function aligns queries with keys in a call without `q_offset`.
    """
    aligned, names = about["aligned"] or aligned, [*about["defaults"]]
    subsets = (some for count in range(len(names) + 1) for some in combinations(names, count))
    defaults: dict[str, Any] = {}

    def fit(case: Case) -> Case | None:
        offered = about["gradient"] if case.is_backward else about["offered"]
        if offered is None:
            return None
        return limits.fit(case).fit(offered, aligned, about["absent"], defaults)

    def is_right(case: Case) -> bool:
        fitted = fit(case)
        return fitted is not None and runs.run(fitted).status == "right"

    for some in subsets if names else ():
        defaults = {name: about["defaults"][name] for name in some}
        if is_right(Case("plain")):
            break
    else:
        defaults = {}
    if "q_offset" in about["offered"]:
        tests = [Case("causal", L=3, S=7, options=options) for options in _OF_POSITIONS]
        other = {"start": "end", "end": "start"}[aligned]
        if not any(map(is_right, tests)):
            aligned, before = other, aligned
            aligned = other if any(map(is_right, tests)) else before
    return fit


# options that show how a function aligns queries with keys
_OF_POSITIONS: tuple[dict[str, Any], ...] = (
    {"is_causal": True},
    {"window": (1, 0)},
    {"alibi_slopes": "H"},
)


def _fit_cases(plan: Iterable[Case], fit: _Fit, chosen: Collection[str]) -> list[Case]:
    """Return the cases that the function can take, without cases that became equal."""
    fitted = [case for case in map(fit, plan) if case is not None and case.feature in chosen]
    return [*{repr(replace(case, name="")): case for case in reversed(fitted)}.values()][::-1]


def _all(runs: Runs, cases: Sequence[Case]) -> list[CaseResult]:
    """Run the cases; after several crashes or hangs of a feature, skip its other cases."""
    results: list[CaseResult] = []
    ended: dict[str, int] = {}
    for case in cases:
        if ended.get(case.feature, 0) >= _HANGS:
            continue
        result = runs.run(case)
        ended[case.feature] = ended.get(case.feature, 0) + result.ended
        results.append(result)
    return results


def _findings(
    results: list[CaseResult], causes: Mapping[CaseResult, CaseResult], runs: Runs
) -> tuple[list[CaseResult], dict[str, WrongCase]]:
    """Return `(results, findings)`, with a finding for each wrong, fragile or refused feature.

    A finding holds the smallest case with the error. If a case of "window" is wrong only because
    of a defect in "causal", only the feature "causal" is wrong.
    """
    explainer = Explainer(results)
    findings: dict[str, WrongCase] = {}
    done: list[CaseResult] = []
    wrong: list[str] = []
    own_wrong = {it.feature for it in results if it.status == "wrong" and it not in causes}
    for number, name in enumerate(FEATURES):
        group = _results_of(name, results)
        group = [replace(result, like=_cause_of(result, causes, explainer)) for result in group]
        group = [
            result
            if result.like in (*wrong, *own_wrong.intersection(FEATURES[number:]))
            else replace(result, like="")
            for result in group
        ]
        own = [result for result in group if not result.like]
        cause = explainer.explain(own)
        if cause and cause.feature != name and any(result.status == "right" for result in own):
            wrong.append(cause.feature)
            is_bad = [result.status == "wrong" and not result.like for result in group]
            group = [
                replace(result, like=cause.feature) if bad else result
                for result, bad in zip(group, is_bad, strict=True)
            ]
        done += group
        status = status_of(group) if group else "absent"
        if status in ("right", "absent"):
            continue
        if status == "wrong":
            wrong.append(name)
        smallest = min(
            (result for result in group if result.status == status),
            key=lambda bad: (bool(bad.like), bad.case.optional, bad.case.size()),
        )
        if cause is None and not smallest.message and _depends_on_calls(runs, smallest):
            smallest = replace(smallest, message=_DEPENDS)
        elif status in ("wrong", "fragile") and not smallest.ended and not smallest.like:
            smallest = _shrunk(runs, smallest)
        if smallest.like:
            earlier = findings.get(smallest.like)
            cause = None if earlier is None else earlier.explanation
            findings[name] = WrongCase(smallest, cause, smallest.like)
        else:
            findings[name] = WrongCase(smallest, cause)
    return done, findings


def _cause_of(
    result: CaseResult, causes: Mapping[CaseResult, CaseResult], explainer: Explainer
) -> str:
    """Return the name of an earlier feature whose error makes this result wrong, or ""."""
    if like := explainer.known_at(result):
        return like
    cause = causes.get(result)
    # if known defects explain the call without the feature, but not the call with the feature, then
    # the feature has an error of its own
    return "" if cause is None or explainer.known_at(cause) else cause.feature


def _find_causes(
    runs: Runs, results: Iterable[CaseResult], fit: _Fit, chosen: Collection[str]
) -> dict[CaseResult, CaseResult]:
    """For calls with a wrong result, find a simpler call of an earlier feature that is wrong too.

    The function removes the tested feature from each call and repeats the call, as long as the
    result is wrong.
    """
    known: dict[str, CaseResult | None] = {}

    def simplest(result: CaseResult) -> CaseResult:
        case = None if result.ended else result.case.drop_feature()
        case = case and fit(case)
        if case is None or case.feature not in chosen:
            return result
        call = json.dumps(case.pack())
        if call not in known:
            less = runs.run(case)
            known[call] = simplest(less) if less.status == "wrong" else None
        return known[call] or result

    found = {result: simplest(result) for result in results if result.status == "wrong"}
    return {result: cause for result, cause in found.items() if cause is not result}


def _shrunk(runs: Runs, result: CaseResult) -> CaseResult:
    """Find a smaller call that is wrong in the same way."""
    candidates = iter(smaller(result.case))
    for _ in range(_STEPS):
        case = next(candidates, None)
        if case is None:
            break
        less = runs.run(_move_offset(result.case, case))
        if less.ended:
            break
        if less.status == result.status and bool(less.message) == bool(result.message):
            result, candidates = less, iter(smaller(less.case))
    return result


def _depends_on_calls(runs: Runs, result: CaseResult) -> bool:
    """Return whether the wrong call is right if it is the first call of a new process."""
    if result.status != "wrong":
        return False
    runs.close()
    return all(runs.run(result.case).status == "right" for _ in range(_AGAIN))


def _move_offset(before: Case, after: Case) -> Case:
    """Return `after`, with q_offset adapted to the sizes of `after`.

    If `before` has the q_offset `before.S - before.L`, the result has the q_offset
    `after.S - after.L`. Otherwise, `after` is returned unchanged.
    """
    offset = before.options.get("q_offset")
    if offset != before.S - before.L or isinstance(offset, str):
        return after
    return replace(after, options={**after.options, "q_offset": after.S - after.L})

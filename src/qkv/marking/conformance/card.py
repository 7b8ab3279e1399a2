"""Judge anybody's attention: every feature of the formula, against float64."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

from qkv.arrays import whole_number
from qkv.marking.conformance.called import Callee
from qkv.marking.conformance.cases import FEATURES, Case, random, smaller, structured
from qkv.marking.conformance.explain import Explainer
from qkv.marking.conformance.libraries import LIBRARIES
from qkv.marking.conformance.report import Finding, Report, status_of
from qkv.marking.conformance.runs import CaseResult, Runs
from qkv.marking.conformance.worker import MEGABYTES, Worker, load, of_function
from qkv.marking.isolated import Isolated, serve
from qkv.marking.outcome import name_of

DTYPES = ("float16", "bfloat16", "float32", "float64")
_RANDOM = 60
_HANGS = 3  # cases of a feature that may end the process: the others are left out
_SHAPES = re.compile("broadcast|core dimension|cannot reshape|not aligned|must match the size")
_STEPS = 60  # calls that make a failing case smaller


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
    seed: int = 0,
    seconds: float = 10.0,
    waiting: Callable[[], None] = lambda: None,
) -> Report:
    """Judge an attention function: which features of the formula are right, and what is wrong?

    It is called as `function(query, key, value, **arguments)` with arrays `(B, H, L, d)` and those
    arguments of `qkv.attention` that its signature has, and held against the formula in float64
    with the bounds of `qkv.attention` itself. It runs in a process of its own: a crash, or a call
    that does not come back, is a result, and the other cases still run.

    Structured cases come first (each feature, pairs of features, sizes around those of tiles),
    then random ones. Of a feature that is wrong the report has the smallest case that shows it,
    and which of the known defects of kernels would give just that output.

    Args:
        function: something to call, or `"package.module:function"`, `"file.py:function"`,
            `"model.onnx"`, or the name of another library's attention: `"torch.sdpa"`.
        arrays: `"numpy"`, `"torch"` or `"jax"`: what it takes.
        names: its names for arguments, where they are others: `{"mask": "attn_mask"}`.
        dtypes: the types that all features are judged in; half precision has a feature of its own.
        gradient: its backward pass, called as `gradient(query, key, value, grad_out, **arguments)`
            and giving those of query, key and value first, as `qkv.attention_grad` does. Without
            it, torch and JAX differentiate the function themselves.
        features: those to judge; None for all.
        aligned: where queries stand if L and S differ and it takes no `q_offset`: `"end"` (the
            last query at the last key) or `"start"`.
        device: where torch or JAX arrays stand, as `"cuda"`.
        seed: draws the random cases.
        seconds: how long a call may take.
        waiting: is called several times a second.

    Returns:
        A `Report`: true where nothing is wrong; print it for the card.

    Raises:
        ValueError: an unknown library, type or feature, or a function that cannot be loaded or
            refuses the plainest call.
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
    'as if the causal mask were aligned to the first key'
    """
    chosen = _checked(arrays, dtypes, features, aligned, seed)
    told = {"target": function, "gradient": gradient, "arrays": arrays, "device": device}
    start = _start(told | {"names": names}, {"seconds": seconds, "waiting": waiting})
    with one_blas_thread(), closing(Runs(start)) as runs:
        about = runs.load()
        halves = [one for one in about["halves"] if one not in dtypes]
        plan = [*structured(dtypes, halves), *random(seed, _RANDOM, dtypes)]
        cases = [case for case in _fitted(plan, about, aligned) if case.feature in chosen]
        results = _settled(_all(runs, cases))
        results, findings = _findings(runs, results)
    by_feature = {name: [one for one in results if one.feature == name] for name in chosen}
    statuses = {name: status_of(mine) if mine else "absent" for name, mine in by_feature.items()}
    name = function if isinstance(function, str) else name_of(function)
    says = f"{name} ({about['says'] or arrays}; {', '.join(dtypes)})"
    return Report(says, statuses, tuple(results), findings)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Thousands of small products are slower on many threads than on one."""
    import threadpoolctl

    with threadpoolctl.threadpool_limits(1, user_api="blas"):
        yield


def _checked(
    arrays: str, dtypes: Sequence[str], features: Collection[str] | None, aligned: str, seed: int
) -> list[str]:
    """The features to judge, in order; an error that names what is not known."""
    whole_number(seed, call="conform", name="seed", least=0)
    if not dtypes or isinstance(dtypes, str):
        raise ValueError(f'conform: dtypes is {dtypes!r}: write names, as ("float32",)')
    for name, given, known in (
        ("arrays", [arrays], LIBRARIES),
        ("dtypes", dtypes, DTYPES),
        ("features", features or [], FEATURES),
        ("aligned", [aligned], ("start", "end")),
    ):
        for one in given:
            if one not in known:
                raise ValueError(f"conform: {name} has {one!r}: choose from {', '.join(known)}")
    return [one for one in FEATURES if features is None or one in features]


def _start(told: dict[str, Any], limits: dict[str, Any]) -> Callable[[], Isolated]:
    """What begins a process for the function: a new one, or a fork where it has no name."""
    limits = {**limits, "call": "conform"}
    for one in (told["target"], told["gradient"]):
        if not (isinstance(one, str) or callable(one) or (one is None and one is told["gradient"])):
            raise TypeError(
                f"conform: function is a {type(one).__name__}, it must be something to call:"
                " conform(my_attention), without brackets after its name"
            )
    if isinstance(told["target"], str) and isinstance(told["gradient"], str | None):
        sent = json.dumps(told | {"path": [os.getcwd(), *sys.path]})
        return lambda: Isolated("qkv.marking.conformance.worker", [sent], **limits)

    def loaded(one: Any) -> Callee:
        names = told["names"]
        return load(one, names) if isinstance(one, str) else of_function(one, names)

    def fork() -> None:
        worker = Worker(told, loaded)
        serve(lambda: worker.answer, MEGABYTES, 1e5, again=False)

    return lambda: Isolated(fork, [], **limits)


def _fitted(plan: Iterable[Case], about: Mapping[str, Any], aligned: str) -> Iterator[Case]:
    """The cases that a function has the arguments for."""
    for case in plan:
        is_backward = case.feature == "gradient"
        offered = about["gradient"] if is_backward else about["offered"]
        if offered is not None:
            fitted = case.fit(offered, about["aligned"] or aligned, about["absent"])
            if fitted is not None:
                yield fitted


def _all(runs: Runs, cases: Sequence[Case]) -> list[CaseResult]:
    """What comes of each case; of a feature whose cases end the process, of the first ones."""
    results: list[CaseResult] = []
    ended: dict[str, int] = {}
    for case in cases:
        if ended.get(case.feature, 0) >= _HANGS:
            continue
        result = runs.run(case)
        if not results and result.status == "refused":
            raise ValueError(
                f"conform: the plainest call is refused ({case.shown()}): {result.message}; the"
                " function is called as function(query, key, value) with arrays (B, H, L, d)"
            )
        ended[case.feature] = ended.get(case.feature, 0) + result.ended
        results.append(result)
    return results


def _settled(results: Sequence[CaseResult]) -> list[CaseResult]:
    """Arrays that do not fit each other, where other sizes do, are no way to refuse a call."""
    fits = {one.feature for one in results if one.status == "right" and not one.case.optional}
    return [
        replace(one, status="wrong")
        if one.status == "refused"
        and one.feature in fits
        and not one.case.optional
        and one.case.Hq == one.case.Hkv
        and _SHAPES.search(one.message)
        else one
        for one in results
    ]


def _findings(
    runs: Runs, results: Sequence[CaseResult]
) -> tuple[list[CaseResult], dict[str, Finding]]:
    """The cases, and of each feature that is not right the smallest one with what explains it.

    A case that shows nothing but what was found at an earlier feature speaks against that one only.
    """
    explainer = Explainer(results)
    findings: dict[str, Finding] = {}
    done: list[CaseResult] = []
    for name in FEATURES:
        mine = [one for one in results if one.feature == name]
        mine = [replace(one, like=explainer.known_at(one)) for one in mine]
        mine = [_of_another(runs, one, explainer) for one in mine]
        done += mine
        status = status_of(mine) if mine else "absent"
        if status in ("right", "absent"):
            continue
        bad = [one for one in mine if one.status == status]
        bad.sort(key=lambda one: (bool(one.like), one.case.optional, one.case.size()))
        smallest = bad[0]
        if status == "wrong" and not smallest.ended and not smallest.like:
            smallest = _shrunk(runs, smallest)
        if smallest.like:
            there = findings.get(smallest.like)
            known = None if there is None else there.explanation
            findings[name] = Finding(smallest, known, smallest.like)
        else:
            own = [one for one in mine if not one.like]
            findings[name] = Finding(smallest, explainer.explain(own))
    return done, findings


def _of_another(runs: Runs, result: CaseResult, explainer: Explainer) -> CaseResult:
    """A case that is wrong without what its feature adds, too, is one of another feature."""
    if result.status != "wrong" or result.like or result.ended:
        return result
    case = result.case.stripped()
    if case is None:
        return result
    without = runs.run(case)
    if without.status != "wrong" or explainer.known_at(without):
        return result
    return replace(result, like=case.feature)


def _shrunk(runs: Runs, result: CaseResult) -> CaseResult:
    """A smaller call that goes wrong in the same way."""
    candidates = iter(smaller(result.case))
    for _ in range(_STEPS):
        case = next(candidates, None)
        if case is None:
            break
        found = runs.run(_moved(result.case, case))
        if found.ended:
            break
        if found.status == "wrong" and bool(found.message) == bool(result.message):
            result, candidates = found, iter(smaller(found.case))
    return result


def _moved(before: Case, after: Case) -> Case:
    """A smaller case whose queries stand where they did: at the end, or at an offset."""
    offset = before.options.get("q_offset")
    if offset != before.S - before.L or isinstance(offset, str):
        return after
    return replace(after, options={**after.options, "q_offset": after.S - after.L})

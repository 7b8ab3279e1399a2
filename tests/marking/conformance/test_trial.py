"""Seven trials: 297 defective and 178 correct kernels, by the cases that decide each kernel.

`make test` judges every tenth kernel, `make attack` all of them, and `make judge` by all cases.
"""

import collections

import pytest

from qkv_marking.conformance.read_cases import FEATURES

from .trial.judging import TRIALS, decide, judge, name_of

SLOW = ("hidden NaN", "half precision", "gradient")  # `make judge` and `make attack` have them too


def some(kernels, function_of):
    """Return a parameter of a test for each kernel; `make test` runs one in ten."""
    return [
        pytest.param(it, id=name_of(function_of(it)), marks=pytest.mark.attack if i % 10 else [])
        for i, it in enumerate(kernels)
    ]


@pytest.mark.parametrize(
    "entry",
    some(
        [entry for trial in TRIALS.values() for entry in trial.defective],
        lambda entry: entry.function,
    ),
)
def test_a_defect_is_found_and_named(entry):
    report = judge(entry.function, entry.gradient, [entry.feature, *entry.beside])
    verdict = decide(entry, report)
    assert bool(verdict.placed) == entry.found, report
    assert verdict.named == bool(entry.named), report
    assert entry.named or not verdict.name, report


@pytest.mark.parametrize(
    "function",
    some([it for trial in TRIALS.values() for it in trial.correct], lambda function: function),
)
def test_a_correct_kernel_is_not_called_wrong(function):
    features = [feature for feature in FEATURES if feature not in SLOW]
    gradients = collections.ChainMap(*(trial.gradients for trial in TRIALS.values()))
    report = judge(function, gradients.get(function), features)
    assert report.passed, report

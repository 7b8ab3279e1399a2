"""Planted kernels, defective and correct, by the cases that decide each kernel.

`make test` judges every tenth kernel, `make attack` all of them, and `make judge` by all cases.
"""

import pytest

from qkv_marking.conformance.read_cases import FEATURES

from .trial.judging import CORRECT, CORRECT_GRADIENTS, DEFECTIVE, decide, judge

SLOW = ("hidden NaN", "half precision", "gradient")  # `make judge` and `make attack` have them too


def some(kernels):
    """Return a parameter of a test for each kernel; `make test` runs one in ten."""
    return [
        pytest.param(it, id=name, marks=pytest.mark.attack if i % 10 else [])
        for i, (name, it) in enumerate(kernels.items())
    ]


@pytest.mark.parametrize("entry", some(DEFECTIVE))
def test_a_defect_is_found_and_named(entry):
    report = judge(*entry.functions(), entry.features())
    verdict = decide(entry, report)
    words = next(iter(entry.card.values()))
    assert bool(verdict.placed) == entry.found, report
    assert verdict.named == bool(words), report
    assert words or not verdict.name, report


@pytest.mark.parametrize("function", some(CORRECT))
def test_a_correct_kernel_is_not_called_wrong(function):
    features = [feature for feature in FEATURES if feature not in SLOW]
    report = judge(function, CORRECT_GRADIENTS.get(function), features)
    assert report.passed, report

"""Three blind trials: 127 defective and 80 correct kernels, by the cases that decide each kernel.

`make test` judges every tenth kernel, `make attack` all of them, and `make judge` by all cases.
"""

import pytest

from qkv_marking.conformance.read_cases import FEATURES

from .trial.correct import CORRECT, GRADIENTS
from .trial.judging import decide, judge, name_of
from .trial.second_table import RIGHT, RIGHT_GRADIENTS, SECOND
from .trial.table import DEFECTIVE
from .trial.third_table import THIRD

SLOW = ("hidden NaN", "half precision", "gradient")  # `make judge` and `make attack` have them too


def some(kernels, function_of):
    """Return a parameter of a test for each kernel; `make test` runs one in ten."""
    return [
        pytest.param(it, id=name_of(function_of(it)), marks=pytest.mark.attack if i % 10 else [])
        for i, it in enumerate(kernels)
    ]


@pytest.mark.parametrize("entry", some([*DEFECTIVE, *SECOND, *THIRD], lambda entry: entry.function))
def test_a_defect_is_found_and_named(entry):
    report = judge(entry.function, entry.gradient, [entry.feature, *entry.beside])
    verdict = decide(entry, report)
    assert bool(verdict.placed) == entry.found, report
    assert verdict.named == bool(entry.named), report
    assert entry.named or not verdict.name, report


@pytest.mark.parametrize("function", some([*CORRECT, *RIGHT], lambda function: function))
def test_a_correct_kernel_is_not_called_wrong(function):
    features = [feature for feature in FEATURES if feature not in SLOW]
    report = judge(function, (GRADIENTS | RIGHT_GRADIENTS).get(function), features)
    assert report.passed, report

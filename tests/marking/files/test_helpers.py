"""Tests that the mistake of a function costs no points in the functions that call it."""

import pytest

from qkv_marking import check_file

from .test_check_file import ATTENTION, SOFTMAX

pytestmark = pytest.mark.usefixtures("quick")

WRONG = SOFTMAX.replace("np.exp(x - x.max(axis=-1, keepdims=True))", "np.exp(-x)")
COUNTED = "Marked with a right softmax: the mistake of your softmax is counted in the task softmax."


@pytest.mark.parametrize(
    "softmax",
    [
        WRONG,
        "\nimport numpy as np\ndef softmax(x, axis=-1): ...",
        SOFTMAX.replace(" - x.max", " - x.min"),
    ],
)
def test_the_mistake_of_softmax_costs_points_once(file, softmax):
    helper, attention = check_file(file(softmax + ATTENTION))
    assert helper.points < 10
    assert attention.points == 10
    assert COUNTED in attention.message
    (attention,) = check_file(file(softmax + ATTENTION), "attention")
    assert attention.points < 10  # here nothing else counts the mistake


def test_a_right_softmax_leaves_the_mistakes_of_attention(file):
    _, attention = check_file(file(WRONG + "\ndef attention(q, k, v):\n    return q"))
    assert attention.mistakes == ("returns-input",)
    assert COUNTED not in attention.message

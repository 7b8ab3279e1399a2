"""Tests of small slips, planted in right solutions of every task in several styles.

Each line of `slips.txt` has what the marker finds, the changed solutions, and the changes.
"""

import pytest

from qkv_marking.tasks import _block, _kv_cache
from qkv_marking.tasks._mask import KNOWN as CAUSAL
from qkv_marking.tasks._positions import MISTAKES as POSITIONS
from qkv_marking.tasks._softmax import CORE as SOFTMAX
from qkv_marking.tasks.attention.mistakes import HEADS, core
from qkv_marking.tasks.decoder import _decoder_task as decoders

from .written import marked, plantings

pytestmark = pytest.mark.attack


@pytest.mark.parametrize(("key", "written", "changes"), plantings("slips.txt"))
def test_a_slip_is_told_by_its_name(key, written, changes):
    result = marked(written, changes)
    assert (result.mistakes, result.fragile) == ((key,), ()), str(result)
    assert all(result.hint)
    assert result.hint[2] not in result.text(2)


def test_every_slip_is_planted():
    known = {
        one.key
        for table in (core("x,w_q,w_k,w_v"), HEADS, SOFTMAX, CAUSAL,
                      POSITIONS, _kv_cache.KNOWN, _block.KNOWN, decoders.KNOWN)
        for one in table
        if one.alone
    }  # fmt: skip
    assert known <= {case.values[0] for case in plantings("slips.txt")}


@pytest.mark.parametrize(
    "changes",
    [
        "attention/tables | return out => return np.zeros((len(q), dv)) * weights[0, 0]",
        "softmax/arrays | return e / => return e * 0 /",
    ],
)
def test_zero_outputs_are_constant_and_no_slip(changes):
    assert marked(*changes.split(" | ")).mistakes == ("constant",)


def test_accidentally_right_lengths_are_not_reported_by_length():
    result = marked("attention/matmul", "soft(scores) => soft(np.maximum(scores, 0))")
    assert result.mistakes == ("unknown",), str(result)

"""Tests that Python, the kernel and the pages have the same activation functions."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from activations import FORMULAS
from qkv.ops.activation import ACTIVATIONS, CONFIG_NAMES
from qkv.see.steps.step import ACTIVATION_ROWS, ROWS, fill

ROOT = Path(__file__).resolve().parent.parent
ASSETS = ROOT / "src/qkv/see/page/assets"
# `gelu_bloom` is `gelu_tanh` with a rounded constant: the two share the kernel's code and the row
# of the walk, and a page runs no model with `gelu_bloom`. `tanh` is an activation of heads only.
ROUNDED, OF_HEADS = "gelu_bloom", "tanh"
EXACT = FORMULAS | {OF_HEADS: math.tanh}


def table_of(script: str, name: str) -> list[str]:
    """Return the keys of a table in a page's script."""
    text = (ASSETS / script).read_text("utf-8")
    (table,) = re.findall(rf"^(?:export )?const {name} = \{{$(.*?)^\}};$", text, re.S | re.M)
    return re.findall(r"^  (\w+)(?:: |\()", table, re.M)


def test_the_kernel_lists_the_activations_by_their_codes() -> None:
    header = (ROOT / "native/activation.h").read_text("utf-8")
    (listed,) = re.findall(r"^#define QKV_ACTIVATIONS\(EACH\) (.*)$", header, re.M)
    names = re.findall(r"EACH\((\w+)\)", listed)
    assert {name: ACTIVATIONS[name].code for name in names} == {
        name: code for code, name in enumerate(names, 1)
    }
    assert {name: one.code for name, one in ACTIVATIONS.items() if name not in names} == {
        ROUNDED: ACTIVATIONS["gelu_tanh"].code
    }


def test_walks_and_pages_have_each_activation() -> None:
    assert set(FORMULAS) == set(ACTIVATIONS)
    assert set(ACTIVATION_ROWS) == {*ACTIVATIONS, OF_HEADS} - {ROUNDED}
    assert sorted(table_of("engine/layers.js", "ACTIVATIONS")) == sorted(ACTIVATION_ROWS)
    assert all(ROWS[name]["op"]["name"] == name for name in ACTIVATION_ROWS)


def test_a_name_in_a_config_means_one_activation() -> None:
    assert len(CONFIG_NAMES) == sum(len(one.names) for one in ACTIVATIONS.values())


@pytest.mark.parametrize("name", ACTIVATION_ROWS)
def test_the_line_of_a_walk_computes_the_activation(name: str) -> None:
    x = np.linspace(-5, 5, 101)
    erf = np.vectorize(math.erf, otypes=[float])
    values = {"np": np, "erf": erf, "x": x}
    exec(fill(ROWS[name]["code"], {"name": "y", "x": "x"}), values)
    expected = [EXACT[name](number) for number in x]
    np.testing.assert_allclose(values["y"], expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("name", ACTIVATION_ROWS)
@pytest.mark.parametrize("x", [-1.5, 0.5])
def test_the_sum_of_a_walk_computes_the_activation(name: str, x: float) -> None:
    written = ROWS[name]["op"]["sum"].replace("[-x]", f"({-x})").replace("[x]", f"({x})")
    result = eval(written.replace("^", "**"), vars(math) | {"max": max})
    assert result == pytest.approx(EXACT[name](x), abs=2e-3)

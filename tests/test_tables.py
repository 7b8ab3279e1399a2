"""Tests that Python, the kernel and the pages have the same activation functions and edits."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from activations import FORMULAS
from browser.edited import examples
from qkv.edits import operations
from qkv.models.run._edit_ops import OPS
from qkv.ops.activation import ACTIVATIONS, CONFIG_NAMES
from qkv.see.steps.step import ACTIVATION_ROWS, ROWS, fill

ROOT = Path(__file__).resolve().parent.parent
ASSETS = ROOT / "src/qkv/see/page/assets"
# `gelu_bloom` is `gelu_tanh` with a rounded constant: the two share the kernel's code and the row
# of the walk, and a page runs no model with `gelu_bloom`. `tanh` is an activation of heads only.
ROUNDED, OF_HEADS = "gelu_bloom", "tanh"
EXACT = FORMULAS | {OF_HEADS: math.tanh}


def table_of(script: str, name: str) -> dict[str, str]:
    """Return the rows of a table in a page's script, by key."""
    text = (ASSETS / script).read_text("utf-8")
    (table,) = re.findall(rf"^(?:export )?const {name} = \{{$(.*?)^\}};$", text, re.S | re.M)
    return dict(re.findall(r"^  (\w+): (.*)$", table, re.M))


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


def test_the_pages_kernels_list_the_activations_by_the_codes_of_the_kernel() -> None:
    script = (ASSETS / "engine/kernels.js").read_text("utf-8")
    (listed,) = re.findall(r"^const CODES = \[(.*)\];", script, re.M)
    codes = {ACTIVATIONS[name].code: name for name in ACTIVATION_ROWS if name != OF_HEADS}
    names = [codes[code] for code in range(1, len(codes) + 1)]
    assert listed.replace('"', "").split(", ") == ["", *names, OF_HEADS]


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


# Edits


def test_the_library_and_the_page_have_each_op_of_the_schema() -> None:
    assert set(OPS) == set(operations())
    assert set(table_of("engine/edits.js", "OPS")) == set(operations())
    assert set(examples(8, "dog", 12)) == set(operations())


def test_the_page_has_words_for_each_op() -> None:
    """Two scripts name the ops that have their own sentences; `OPS` has words for the others."""
    described = {op for op, row in table_of("engine/edits.js", "OPS").items() if 'words: "' in row}
    for script in ("parts/outcome.js", "parts/changes.js"):
        text = (ASSETS / script).read_text("utf-8")
        named = {op for op in operations() if f'of("{op}")' in text or f'op === "{op}"' in text}
        assert described | named | {"mask"} == set(operations())
        assert not described & named

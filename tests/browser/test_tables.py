"""Tests that the scripts of a page compute the same functions as Python."""

import json
import math

import numpy as np

from activations import FORMULAS
from qkv.see.steps.step import ACTIVATION_ROWS, ROWS, spell

from .bundling import by_node, script_of

XS = [*np.linspace(-9, 9, 180).tolist(), -40.0, 40.0]


def test_a_page_computes_and_writes_out_each_activation() -> None:
    ops = [ROWS[name]["op"] | {"of": "x", "name": "y", "at": name} for name in ACTIVATION_ROWS]
    code = (
        f"{script_of('engine/layers', 'parts/sums')}\n"
        f"const xs = {XS}, ops = {json.dumps(ops)};\n"
        "const x = { shape: [xs.length, 1], get: (i) => xs[i], row: (i) => [xs[i]] };\n"
        "const { spell } = page.sumsOf(() => x);\n"
        "const result = ops.map((op) => ["
        "page.PLAIN.activated(xs, op.at), xs.map((_, i) => spell(op, i, 0))]);"
    )
    exact, x = FORMULAS | {"tanh": math.tanh}, np.array(XS)[:, None]
    for op, (found, sums) in zip(ops, by_node(code), strict=True):
        expected = [exact[op["at"]](number) for number in XS]
        np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-8, err_msg=op["at"])
        for i, written in enumerate(sums):
            text = spell("y", op, (i, 0), {"x": x, "y": x}, [str(n) for n in range(len(XS))])
            assert written.replace("\u00d7", "*").replace("\u2212", "-") == text.split(" = ")[1]

"""Tests of xarray datasets and pandas tables of traces: cells equal the traces' own arrays."""

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from qkv.trace import Trace
from qkv.trace.activations import axes

WHY = "it is not installed: pip install '.[tables]'"


def made() -> Trace:
    """Return a trace with the arrays of layers 0 and 2, from a model with four layers.

    The trace has two texts. The first has one token, and the second has three tokens.
    """
    rng = np.random.default_rng(0)
    arrays = {"hook_embed": rng.normal(size=(2, 3, 4))}
    for layer in (0, 2):
        arrays[f"blocks.{layer}.attn.hook_k"] = rng.normal(size=(2, 3, 1, 2))
        arrays[f"blocks.{layer}.attn.hook_pattern"] = rng.random((2, 2, 3, 3))
    tokens = [["a"], ["b", "c", "d"]]
    return Trace(arrays, tokens=tokens, single=False, num_layers=4, model="made")


def stand_in(monkeypatch: pytest.MonkeyPatch, module: str, **parts: Any) -> None:
    """Replace a module by a stub with these parts, so that tests do not need the package."""
    made = ModuleType(module)
    vars(made).update(parts)
    monkeypatch.setitem(sys.modules, module, made)


def test_axes_have_names() -> None:
    assert axes("blocks.1.attn.hook_q", (1, 5, 4, 8)) == ("text", "token", "head", "d")
    assert axes("blocks.1.attn.hook_v", (1, 5, 2, 8)) == ("text", "token", "kv_head", "dv")
    assert axes("blocks.1.mlp.hook_post", (1, 5, 32)) == ("text", "token", "F")
    assert axes("blocks.1.ln1.hook_scale", (1, 5, 1)) == ("text", "token", "one")
    assert axes("logits", (1, 5, 99)) == ("text", "token", "V")
    assert axes("blocks.0.attn.top_weights", (1, 2, 5, 8)) == ("text", "head", "query", "rank")
    assert axes("out", (2, 5, 4)) == ("head", "query", "dv")
    assert axes("scores_raw", (3, 2, 5, 6)) == ("batch_0", "head", "query", "key")


def test_to_xarray_builds_variables_coordinates_and_attributes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def kept(variables: Any, coords: Any, attrs: Any) -> Any:
        return variables, coords, attrs

    stand_in(monkeypatch, "xarray", Dataset=kept)
    trace = made()
    variables, coordinates, about = trace.to_xarray()
    assert list(variables) == trace.names()
    for name, (found, array) in variables.items():
        assert array is trace[name]
        assert found == axes(name, array.shape)
    for name, axis in (("token_text", "token"), ("query_text", "query"), ("key_text", "key")):
        assert coordinates[name][0] == ("text", axis)
        assert coordinates[name][1].tolist() == [["a", "", ""], ["b", "c", "d"]]
    assert coordinates["length"] == ("text", [1, 3])
    assert about == {"model": "made", "num_layers": 4}
    odd = {f"blocks.{n}.attn.hook_pattern": np.ones((1, 1, 2, 2 + n)) for n in (0, 1)}
    variables, coordinates, _ = Trace(odd, tokens=[["a", "b"]]).to_xarray()
    assert variables["blocks.1.attn.hook_pattern"][0] == ("text", "head", "query", "key_3")


def test_to_pandas_builds_one_row_per_value(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, "pandas", DataFrame=dict)
    trace = made()
    found = trace.to_pandas()
    names = ["text", "layer", "head", "query", "key", "query_text", "key_text", "value"]
    assert list(found) == names
    assert len(found["value"]) == 2 * 2 * (1 + 9)  # layers, heads, links of both texts
    rows = list(zip(*found.values(), strict=True))
    for text, layer, head, query, key, query_text, key_text, value in rows:
        assert value == trace["pattern", layer][text, head, query, key]
        assert (query_text, key_text) == (trace.tokens[text][query], trace.tokens[text][key])
    assert len({row[:5] for row in rows}) == len(rows)
    assert set(trace.to_pandas(("pattern", 2))["layer"]) == {2}
    one = trace.to_pandas("embed")
    assert list(one) == ["text", "token", "D", "token_text", "value"]
    assert one["value"].tolist() == [*trace["embed"][0, 0], *trace["embed"][1].ravel()]
    assert set(trace.to_pandas("k")) == {"text", "layer", "token", "kv_head", "d", "token_text",
                                         "value"}  # fmt: skip
    with pytest.raises(KeyError, match="no 'patern'; the nearest are"):
        trace.to_pandas("patern")


def test_to_xarray_returns_a_dataset() -> None:
    xarray = pytest.importorskip("xarray", reason=WHY)
    trace = made()
    found = trace.to_xarray()
    assert isinstance(found, xarray.Dataset)
    for name, array in trace.items():
        np.testing.assert_array_equal(found[name].values, array)
    link = found["blocks.2.attn.hook_pattern"].isel(text=1, head=0, query=2, key=1)
    assert float(link) == trace["pattern", 2][1, 0, 2, 1]
    assert [str(link[name].values) for name in ("query_text", "key_text")] == ["d", "c"]


def test_to_pandas_returns_a_data_frame() -> None:
    pandas = pytest.importorskip("pandas", reason=WHY)
    trace = made()
    found = trace.to_pandas()
    assert isinstance(found, pandas.DataFrame)
    rows = found[(found.text == 1) & (found.layer == 2) & (found["head"] == 1)]
    assert rows["value"].tolist() == trace["pattern", 2][1, 1].ravel().tolist()
    sums = found.groupby(["text", "layer", "head", "query"])["value"].sum()
    assert sums[1, 0, 1, 2] == pytest.approx(trace["pattern", 0][1, 1, 2].sum())


@pytest.mark.parametrize(("call", "package"), [("to_xarray", "xarray"), ("to_pandas", "pandas")])
def test_a_package_that_is_missing(
    monkeypatch: pytest.MonkeyPatch, call: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    with pytest.raises(ImportError, match=rf"needs {package}.*pip install '.\[tables\]'"):
        getattr(made(), call)()

"""Tests that compare the MLP with plain loops over numbers."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from activations import FORMULAS
from qkv.layers import MLP
from rows import failing

from .support import dot, numbers


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("activation", FORMULAS)
def test_output_equals_a_row_by_row_reference(activation: str, gated: bool, bias: bool) -> None:
    mlp = MLP(3, 5, activation=activation, gated=gated, bias=bias, seed=1, dtype=np.float64)
    for seed, name in enumerate(n for n in mlp.parameters if n.endswith("bias")):
        mlp.parameters[name][:] = numbers(len(mlp.parameters[name]), seed=seed)
    assert ("up_proj.bias" in mlp.parameters) is bias
    assert (mlp.dim, mlp.hidden, mlp.gated) == (3, 5, gated)
    x = numbers(2, 4, 3, seed=2)

    def through(name: str, row: Any) -> list[float]:
        return dot(row, mlp.parameters[f"{name}.weight"], mlp.parameters.get(f"{name}.bias"))

    f = FORMULAS[activation]
    expected = np.empty_like(x)
    for place in np.ndindex(2, 4):
        up = through("up_proj", x[place])
        if gated:
            gate = through("gate_proj", x[place])
            hidden = [f(g) * u for g, u in zip(gate, up, strict=True)]
        else:
            hidden = [f(u) for u in up]
        expected[place] = through("down_proj", hidden)
    np.testing.assert_allclose(mlp(x), expected, rtol=1e-13, atol=1e-14)
    np.testing.assert_array_equal(mlp.forward(x), mlp(x))


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
@pytest.mark.parametrize("gated", [True, False])
def test_a_residual_is_added(gated: bool, dtype: Any) -> None:
    mlp = MLP(3, 5, gated=gated, seed=1, dtype=dtype)
    x, residual = numbers(2, 4, 3, seed=2, dtype=dtype), numbers(2, 4, 3, seed=3, dtype=dtype)
    expected = mlp(x).astype(np.float64) + residual
    found = mlp(x, residual=residual)
    assert found.dtype == dtype
    close = 2e-3 if dtype == np.float16 else 1e-6
    np.testing.assert_allclose(found, expected, close, close)


@pytest.mark.parametrize("gated", [True, False])
def test_recording_changes_nothing(gated: bool) -> None:
    mlp = MLP(30, 70, gated=gated, seed=1)
    x = numbers(9, 30, dtype=np.float32)
    np.testing.assert_array_equal(mlp.trace(x)["hook_mlp_out"], mlp(x))


def test_a_seed_gives_the_same_weights_in_every_type() -> None:
    names = MLP(4, 8, seed=5).parameters
    for name, array in names.items():
        assert array.dtype == np.float32
        np.testing.assert_array_equal(array, MLP(4, 8, seed=5).parameters[name])
        double = MLP(4, 8, seed=5, dtype=np.float64).parameters[name]
        np.testing.assert_array_equal(array, double.astype(np.float32))
    other = MLP(4, 8, seed=6).parameters["up_proj.weight"]
    assert not np.array_equal(names["up_proj.weight"], other)


def test_initial_weights_keep_the_scale_of_their_input() -> None:
    mlp = MLP(256, 1024, seed=0)
    assert abs(mlp.parameters["up_proj.weight"].std() * 16 - 1) < 0.01
    assert abs(mlp.parameters["down_proj.weight"].std() * 32 - 1) < 0.01
    assert not mlp.parameters["up_proj.bias"].any()


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("half", [np.float16, ml_dtypes.bfloat16])
def test_halves(half: Any, gated: bool) -> None:
    """float16 is rounded once; bfloat16 is also rounded between the two products."""
    mlp = MLP(16, 64, gated=gated, seed=0, dtype=half)
    x = numbers(3, 16, seed=1).astype(half)
    wide = {name: array.astype(np.float64) for name, array in mlp.parameters.items()}
    expected = MLP.from_parameters(wide)(x.astype(np.float64))
    out = mlp(x)
    assert out.dtype == half
    # The tolerance is half a unit in the last place, and a little for errors of float32.
    step = float(ml_dtypes.finfo(half).eps)
    once = {"rtol": step / 2 * 1.01, "atol": 1e-6}
    allowed = once if half is np.float16 else {"rtol": 0, "atol": step * abs(expected).max()}
    np.testing.assert_allclose(out.astype(np.float64), expected, **allowed)


def test_types_promote_and_inputs_stay() -> None:
    mlp = MLP(2, 3, seed=0)
    x = np.array([[1, 2]])
    assert mlp(x).dtype == np.float32
    assert mlp(x.astype(np.float64)).dtype == np.float64
    assert mlp(x.astype(np.float16)).dtype == np.float32
    frozen = x.astype(np.float32)
    frozen.setflags(write=False)
    mlp(frozen)
    np.testing.assert_array_equal(frozen, x)


def test_infinite_rows_draw_no_warning() -> None:
    for activation in FORMULAS:
        mlp = MLP(2, 4, gated=True, activation=activation, seed=0)
        out = mlp(np.array([[np.inf, -np.inf], [1.0, 2.0]], np.float32))
        assert np.isfinite(out[1]).all()


def test_bad_input() -> None:
    good = {"up_proj.weight": np.ones((2, 3)), "down_proj.weight": np.ones((3, 2))}
    for make, error, message in (
        (lambda: MLP(2, 0), ValueError, "hidden is 0"),
        (lambda: MLP(2, 3, activation="glu"), ValueError, "no activation 'glu': did you mean"),
        (lambda: MLP(2, 3)(np.ones((4, 5))), ValueError, r"\(4, 5\).* \(\.\.\., 2\)"),
        (lambda: MLP(2, 3)(["a", "b"]), TypeError, "x is <U1"),
        (lambda: MLP.from_parameters({}), ValueError, "up_proj.weight is missing: the parameters"),
        (
            lambda: MLP.from_parameters(good | {"down_proj.weight": np.ones((2, 3))}),
            ValueError,
            r"down_proj.weight has shape \(2, 3\), but must have \(3, 2\): up_proj.weight has",
        ),
        (
            lambda: MLP.from_parameters(good | {"side_proj.weight": np.ones(3)}),
            ValueError,
            "no parameter side_proj.weight: choose from gate_proj.weight",
        ),
        (
            lambda: MLP.from_parameters(good | {"up_proj.weight": np.ones(3)}),
            ValueError,
            r"up_proj.weight has shape \(3,\): it must be \(D, F\)",
        ),
    ):
        with failing(make, error, message), pytest.raises(error, match=message):
            make()


@pytest.mark.parametrize("gated", [False, True])
def test_a_trace_has_each_step(gated: bool) -> None:
    layer = MLP(4, 6, gated=gated, activation="relu", seed=0, dtype=np.float64)
    x = np.random.default_rng(1).standard_normal((2, 3, 4))
    trace, p = layer.trace(x), layer.parameters
    first = "gate_proj.weight" if gated else "up_proj.weight"
    np.testing.assert_allclose(trace["hook_pre"], x @ p[first], rtol=1e-12)
    post = np.maximum(x @ p[first], 0)
    if gated:
        np.testing.assert_allclose(trace["hook_pre_linear"], x @ p["up_proj.weight"], rtol=1e-12)
        post = post * (x @ p["up_proj.weight"])
    np.testing.assert_allclose(trace["hook_post"], post, rtol=1e-12)
    np.testing.assert_allclose(trace["hook_mlp_out"], post @ p["down_proj.weight"], rtol=1e-12)
    np.testing.assert_array_equal(trace["hook_mlp_out"], layer(x))

"""Tests of int8 rows with float16 scales: computed, kept if exact, saved and loaded."""

import json

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from safetensors.numpy import load_file

from qkv.models import load
from qkv.ops import exact_rows, from_rows, to_rows

from ..decoders import gpt2
from ..support import CONFIG

TINY = 2.0**-24  # the smallest positive float16
MAX_NUMBER = 127 * 65504.0  # the largest number that int8 rows can hold


def by_hand(row):
    """Return the scale and the integers of a row of floats, for scales of at least 2**-14."""
    scale = float(np.float16(max(map(abs, row)) / 127))
    return scale, [max(-127, min(127, round(x / scale))) for x in row]


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_to_rows_equals_the_formula(kind):
    matrix = (np.random.default_rng(0).standard_normal((40, 30)) * 0.1).astype(kind)
    rows, scales = to_rows(matrix)
    assert (rows.dtype, rows.shape) == (np.int8, (40, 30))
    assert (scales.dtype, scales.shape) == (np.float16, (40,))
    for row, *found in zip(matrix.astype(float), scales.astype(float), rows.tolist(), strict=True):
        assert found == list(by_hand(row.tolist()))


@pytest.mark.parametrize(
    ("row", "scale", "expected"),
    [
        ([0.0, -0.0, 0.0], 0, [0, 0, 0]),
        ([MAX_NUMBER, -MAX_NUMBER, 1.0], 65504, [127, -127, 0]),
        ([-MAX_NUMBER], 65504, [-127]),
        ([12.7], 0.1, [127]),  # 0.1 in float16
        ([TINY, -3 * TINY], TINY, [1, -3]),
        ([127 * TINY, 0.0], TINY, [127, 0]),
        ([1.4 * TINY, -8.6 * TINY], TINY, [1, -9]),
        ([180.0 * TINY, 1.0 * TINY], 2 * TINY, [90, 0]),  # a scale of TINY would clip 180 to 127
        ([TINY / 4, TINY / 4], 0, [0, 0]),
        ([], 0, []),
    ],
)
def test_rows_at_the_edges(row, scale, expected):
    rows, scales = to_rows(np.array([row, row], np.float64))
    assert scales.tolist() == [np.float16(scale)] * 2
    assert rows.tolist() == [expected] * 2


@pytest.mark.parametrize("examples", [25, pytest.param(200, marks=pytest.mark.attack)])
def test_error_is_at_most_half_a_scale_and_requantising_is_exact(examples):
    @settings(max_examples=examples)
    @given(
        matrix=arrays(
            np.float32, array_shapes(min_dims=2, max_dims=2), elements=st.floats(-1, 1, width=32)
        ),
        exponent=st.integers(-30, 22),
    )
    def same(matrix, exponent):
        matrix = matrix * np.float32(2.0**exponent)
        rows, scales = to_rows(matrix)
        found = rows.astype(float) * scales.astype(float)[:, None]
        for row, own in zip(matrix.astype(float), found, strict=True):
            # the largest number / 127, plus the rounding error of float16
            scale = np.abs(row).max() / 127 * (1 + 2**-11) + TINY
            assert np.abs(row - own).max() <= scale / 2 * (1 + 1e-5)
        numbers = from_rows(rows, scales)
        assert numbers.dtype == np.float32
        np.testing.assert_array_equal(numbers, found)
        for again in (to_rows(numbers), exact_rows(numbers)):
            np.testing.assert_array_equal(again[0], rows)
            np.testing.assert_array_equal(again[1], scales)

    same()


@settings(max_examples=60)
@given(data=st.data())
def test_int8_representable_numbers_are_stored_exactly(data):
    shape = data.draw(array_shapes(min_dims=2, max_dims=2))
    rows = data.draw(arrays(np.int8, shape, elements=st.integers(-127, 127)))
    halves = st.floats(0, 65504, width=16)
    scales = data.draw(arrays(np.float16, shape[:1], elements=halves))
    numbers = rows.astype(float) * scales.astype(float)[:, None]
    for kind in (np.float32, np.float64):
        found = exact_rows(numbers.astype(kind))
        np.testing.assert_array_equal(found[0] * found[1].astype(float)[:, None], numbers)
        again = to_rows(numbers.astype(kind))
        np.testing.assert_array_equal(again[0], found[0])
        np.testing.assert_array_equal(again[1], found[1])


def test_exact_rows_requires_an_exact_int8_matrix():
    matrix = np.float32([[1, 0.5], [1, 1 / 3]])
    assert exact_rows(matrix) is None
    assert exact_rows(matrix[:1]) is not None
    assert exact_rows(np.float32([1, 0.5])) is None
    # 128 needs a scale of at least 128 / 127, and 1 is not an integer multiple of such a scale
    assert exact_rows(np.float32([[128, 1]])) is None
    assert exact_rows(np.float64([[0.1 * 127, 0.1]])) is None
    wide = np.full((1, 40), 0.5, np.float32)
    wide[0, 39] = 0.3  # only the last number does not fit the scale
    assert exact_rows(wide) is None
    np.testing.assert_array_equal(to_rows(matrix)[0][1], [127, 42])


# a whole model


def saved(model, path, **options):
    model.save(path, **options)
    return load_file(path / "model.safetensors"), (path / "model.safetensors").read_bytes()


def test_saving_as_int8_again_gives_the_same_bytes(folder, tmp_path):
    """Saving as int8 also converts the tensors that `load` ignores.

    Float matrices become int8. Float arrays of other shapes become float16. Integer arrays do not
    change.
    """
    rng = np.random.default_rng(3)
    others = {
        "cls.matrix": rng.standard_normal((3, 4)),
        "cls.cube": rng.standard_normal((2, 3, 4)),
        "cls.number": np.array(0.25),
        "cls.ids": np.arange(6).reshape(2, 3),
    }
    folder.tensors |= others
    folder.config |= {"torch_dtype": "float32", "architectures": ["BertForNothing"]}
    folder.write()
    with pytest.warns(UserWarning, match="ignored tensors: cls"):
        model = load(folder.path)
    found, raw = saved(model, tmp_path / "int8", dtype="int8")
    for name, array in folder.tensors.items():
        if name == "cls.ids":
            assert found.pop(name).dtype == np.int64
        elif array.ndim != 2:
            assert found[name].dtype == np.float16
            np.testing.assert_array_equal(found.pop(name), array.astype(np.float16))
        else:
            scales, rows = found.pop(f"{name}_scale"), found.pop(name)
            assert (rows.dtype, scales.dtype) == (np.int8, np.float16)
            for row, *own in zip(array.tolist(), scales.tolist(), rows.tolist(), strict=True):
                assert own == list(by_hand(row)), name
    assert found == {}
    config = json.loads((tmp_path / "int8" / "config.json").read_text())
    assert config == {**CONFIG, "architectures": ["BertForNothing"], "dtype": "int8"}
    with pytest.warns(UserWarning, match="ignored tensors: cls"):
        again = load(tmp_path / "int8")
    assert {array.dtype for array in again.parameters.values()} == {np.dtype(np.float32)}
    assert saved(again, tmp_path / "again", dtype=np.int8)[1] == raw
    for name in ("config.json", "tokenizer.json"):
        pair = [(tmp_path / place / name).read_bytes() for place in ("int8", "again")]
        assert pair[0] == pair[1]


def test_each_scale_belongs_to_a_row_of_the_stored_matrix(tmp_path):
    """Each scale belongs to one row of a matrix in the model's file.

    GPT-2's files store the weights of queries, keys and values in one matrix of shape (in, out).
    """
    model = gpt2(tmp_path / "model", seed=1)
    files = load_file(tmp_path / "model" / "model.safetensors")
    found, _ = saved(model, tmp_path / "int8", dtype="int8")
    fused = "transformer.h.1.attn.c_attn.weight"
    assert found[fused].shape == (24, 72)
    for name in (fused, "lm_head.weight"):
        own = zip(found[f"{name}_scale"].tolist(), found[name].tolist(), strict=True)
        assert list(own) == [by_hand(row) for row in files[name].tolist()]
    parameters = load(tmp_path / "int8").parameters
    largest = max(np.abs(array).max() for array in files.values())
    for name, array in model.parameters.items():
        assert np.abs(parameters[name] - array).max() <= largest / 250


@pytest.mark.parametrize("dtype", ["float16", "float64", np.dtype("float32"), "bfloat16"])
def test_a_model_is_saved_in_another_type_of_floats(folder, tmp_path, dtype):
    model = load(folder.write())
    model.save(tmp_path / "copy", dtype=dtype)
    again = load(tmp_path / "copy")
    kind = np.dtype(dtype)
    assert again.config["dtype"] == kind.name
    for name, array in model.parameters.items():
        np.testing.assert_array_equal(again.parameters[name], array.astype(kind).astype(np.float64))


ROWS = "int8 with float16 scales stores finite numbers only up to 8.31901e+06"
HALVES = "float16 stores finite numbers only up to 65504"


@pytest.mark.parametrize(
    ("part", "number", "dtype", "said"),
    [
        ("weight", 1e7, "int8", f"up to 1e+07, but {ROWS}"),
        ("weight", np.nan, "int8", f"up to nan, but {ROWS}"),
        ("weight", -np.inf, "int8", f"up to inf, but {ROWS}"),
        ("weight", -7e4, "float16", f"up to 70000, but {HALVES}"),
        ("bias", 7e4, "int8", f"up to 70000, but {HALVES}"),
    ],
)
def test_numbers_outside_the_dtypes_range_are_refused(folder, tmp_path, part, number, dtype, said):
    model = load(folder.write())
    name = f"blocks.0.mlp.up_proj.{part}"
    array = model.parameters[name].copy()
    array.flat[5] = number
    model.parameters[name] = array
    with pytest.raises(ValueError, match=r"^save: ") as caught:
        model.save(tmp_path / "copy", dtype=dtype)
    place = f"encoder.layer.0.intermediate.dense.{part}"
    assert (
        str(caught.value)
        == f"save: {place} has numbers {said}: omit dtype to keep the type of each array"
    )
    assert not (tmp_path / "copy").exists()
    model.save(tmp_path / "copy")


@pytest.mark.parametrize("dtype", ["nonsense", "int16", np.uint8, 3])
def test_saving_in_an_unsupported_dtype_is_refused(folder, tmp_path, dtype):
    model = load(folder.write())
    with pytest.raises(ValueError, match=r"^save: dtype is .*; pass int8, float16, .* omit dtype"):
        model.save(tmp_path / "copy", dtype=dtype)
    assert not (tmp_path / "copy").exists()

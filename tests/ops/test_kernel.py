"""Tests of the kernel: the choice of its variant, wrong arguments, and the memory it writes."""

import math
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import qkv
from qkv.ops.kernel import BACKENDS, VARIANTS, compiled, variant
from rows import failing

native = pytest.mark.skipif(compiled is None, reason="the kernel was not built")


def test_the_fastest_backend_comes_first_and_numpy_is_always_available(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("QKV_BACKEND", raising=False)
    order = ["native-amx", "native-avx512", "native-avx2", "native-portable", "numpy"]
    assert list(BACKENDS) == [name for name in order if name in BACKENDS]
    assert qkv.backend() == BACKENDS[0]
    assert "numpy" in BACKENDS
    assert (len(BACKENDS) > 1) == (compiled is not None)


def test_each_backend_is_in_the_name_of_an_item_and_runs_it(
    backend: str, request: pytest.FixtureRequest
) -> None:
    assert request.node.name.endswith(f"[{backend}]")
    assert qkv.backend() == backend
    assert variant() == VARIANTS.get(backend)


def test_an_unavailable_backend_is_an_error_of_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QKV_BACKEND", "native-abacus")
    x = np.ones((2, 2), np.float32)
    for call in (qkv.attention, qkv.summarize_attention):
        with pytest.raises(ValueError, match=rf"native-abacus is not.*{', '.join(BACKENDS)}"):
            call(x, x, x)
    with pytest.raises(ValueError, match="native-abacus"):
        qkv.backend()


# The kernel rejects wrong arguments before it reads any memory.

SHAPES = ((2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 3))
QUERY, KEY, VALUE = (np.ones(shape, "f4") for shape in SHAPES)
NAMES = (  # in the order in which the kernel takes them
    "variant query key value out lse mask bias slopes sinks offset query_lengths key_lengths left "
    "right softcap scale threads weights"
)
ASKED: dict[str, Any] = dict.fromkeys(NAMES.split())
ASKED |= {"variant": 0, "query": QUERY, "key": KEY, "value": VALUE, "offset": 0, "scale": 1.0}
ASKED |= {"out": np.zeros((2, 4, 5, 3), "f4"), "lse": np.zeros((2, 4, 5, 1)), "threads": 1}


@native
@pytest.mark.parametrize(
    "wrong",
    [
        {"variant": len(VARIANTS)},
        {"key": KEY[:, :, :, :7]},
        {"key": KEY[:1, :, :6]},
        {"key": np.ones((3, 2, 7, 8), "f4")},
        {"key": np.ones((2, 3, 7, 8), "f4")},
        {"value": VALUE[:, :1]},
        {"value": VALUE.astype("f2")},
        {"query": QUERY[0]},
        {"query": QUERY.astype("f8"), "key": KEY.astype("f8"), "value": VALUE.astype("f8")},
        {"query": QUERY[..., ::-1]},
        {"query": np.ones((2, 4, 5, 257), "f4"), "key": np.ones((2, 2, 7, 257), "f4")},
        {"query": QUERY[..., :0], "key": KEY[..., :0]},
        {"out": np.zeros((2, 4, 5, 2), "f4")},
        {"out": np.zeros((1, 4, 5, 3), "f4")},
        {"out": np.zeros((2, 4, 5, 3), "f2")},
        {"lse": np.zeros((2, 4, 5, 1), "f4")},
        {"lse": np.zeros((2, 4, 4, 1))},
        {"lse": np.zeros((1, 4, 5, 1))},
        {"mask": np.ones((5, 6), bool)},
        {"mask": np.ones((3, 1, 5, 7), bool)},
        {"mask": np.ones((1, 2, 4, 5, 7), bool)},
        {"mask": np.ones((5, 7), np.int64)},
        {"bias": np.ones((5, 7), bool)},
        {"bias": np.ones((6, 7), "f4")},
        {"slopes": np.ones(3, "f4")},
        {"slopes": np.ones(8, "f4")[::2]},
        {"sinks": np.ones((3, 2), "f4")},
        {"sinks": np.ones(4, "f4")},
        {"offset": np.zeros(3, np.int64)},
        {"offset": 2**61},
        {"query_lengths": 6},
        {"key_lengths": np.array([3, 8])},
        {"left": -1},
        {"weights": np.zeros((2, 4, 5, 6), "f4")},
        {"weights": np.zeros((2, 4, 5, 7))},
    ],
    ids=lambda wrong: " ".join(wrong),
)
def test_the_kernel_refuses_invalid_arguments(wrong: dict[str, Any]) -> None:
    compiled.attend(*ASKED.values())
    with pytest.raises(ValueError, match=r"^kernel: "):
        compiled.attend(*(ASKED | wrong).values())


@native
def test_the_kernel_refuses_other_types_and_read_only_arrays() -> None:
    sealed = np.zeros((2, 4, 5, 3), "f4")
    sealed.flags.writeable = False
    for name, value in (
        *(("query", None), ("query", [[1.0]]), ("offset", 1.5), ("scale", "1"), ("out", sealed)),
        *(("mask", np.ones((5, 7), kind)) for kind in (np.int8, ">f4")),
    ):
        with failing(name, value), pytest.raises((TypeError, ValueError, BufferError)):
            compiled.attend(*(ASKED | {name: value}).values())


@native
@pytest.mark.parametrize(
    ("starts", "key_starts"),
    [
        ([0, 3, 6], [0, 2, 5]),
        ([0, 3, 2], [0, 2, 4]),
        ([0, 5], [0, 2, 4]),
        ([-1, 5], [0, 4]),
        ([], []),
    ],
)
def test_the_kernel_refuses_starts_beyond_the_rows(
    starts: list[int], key_starts: list[int]
) -> None:
    query, key = np.ones((5, 2, 4), "f4"), np.ones((4, 2, 4), "f4")
    edges = [np.array(cu, np.int64) for cu in (starts, key_starts)]
    rest = (None, None, 0, None, None, None, 1.0, 1)
    out, lse = np.zeros((5, 2, 4), "f4"), np.zeros((5, 2, 1))
    with pytest.raises(ValueError, match=r"^kernel: "):
        compiled.attend_packed(0, query, key, key, out, lse, *edges, *rest)
    compiled.attend_packed(0, query, key, key, out, lse, np.array([0, 5]), np.array([1, 4]), *rest)
    wide = [np.ones((n, 2, 257), "f4") for n in (5, 4)]
    with pytest.raises(ValueError, match=r"^kernel: .* MAX_SIZE"):
        compiled.attend_packed(0, *wide, key, out, lse, np.array([0, 5]), np.array([0, 4]), *rest)


@native
def test_the_kernel_computes_up_to_its_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QKV_BACKEND", raising=False)
    asked: list[int] = []
    for name in ("attend", "attend_packed", "summarize"):
        monkeypatch.setattr(compiled, name, lambda *given: asked.append(given[1].shape[-1]))
    for d in (255, 256, 257):
        x = np.ones((2, 2, d), np.float32)
        qkv.attention(x, x, x)
        qkv.attention(x, x, x, softcap=5.0)
        qkv.summarize_attention(x, x, x)
        qkv.varlen_attention(x, x, x, [0, 2], [0, 2])
    assert compiled.MAX_SIZE == 256
    assert asked == [255] * 4 + [256] * 4


@native
@pytest.mark.parametrize("here", VARIANTS.values())
def test_the_kernel_takes_lse_or_none(here: int) -> None:
    given = ASKED | {"variant": here, "lse": np.zeros((2, 4, 5, 1))}
    compiled.attend(*given.values())
    np.testing.assert_allclose(given["lse"], 8 + math.log(7), rtol=2e-6)
    out = np.zeros_like(ASKED["out"])
    compiled.attend(*(given | {"lse": None, "out": out}).values())
    np.testing.assert_allclose(out, 1, rtol=2e-6)
    summary = (np.zeros((2, 4, 5, 3), "i8"), np.zeros((2, 4, 5, 3), "f4"), np.zeros((2, 4, 1, 7)))
    asked = list(given.values())[:-1]
    compiled.summarize(*asked, *summary)
    asked[list(given).index("lse")] = None
    with pytest.raises(ValueError, match=r"^kernel: an array is missing"):
        compiled.summarize(*asked, *summary)


# Memory layouts of arrays


@native
def test_the_variable_for_tiles_takes_one_word() -> None:
    code = "import qkv; print(qkv.backend())"
    for word, wanted in (("model", "native-amx\n"), ("yes", "QKV_AMX=yes is unknown")):
        result = subprocess.run(
            [sys.executable, "-c", code],
            env={name: text for name, text in os.environ.items() if name != "QKV_BACKEND"}
            | {"QKV_AMX": word},
            capture_output=True,
            text=True,
            check=False,
        )
        assert wanted in result.stdout + result.stderr

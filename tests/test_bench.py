"""Tests of the benchmarks: their checks and their arithmetic, but not the measured times."""

import gc
import json
import math
import mmap
import signal
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from benchmarks import (
    __main__ as bench,
    common,
    conformance,
    growth,
    measure,
    memory,
    page,
    parts,
    peers,
)
from benchmarks.common import Row, Way
from benchmarks.gradient import by_the_chain_rule
from benchmarks.measure import (
    in_turn,
    largest_error,
    operations,
    plain_attention,
    random_inputs,
    sample,
    time_in_words,
)
from benchmarks.models import random_model
from qkv.ops.kernel import compiled


def row_of(**seconds: float) -> dict:
    """Return a measured row that has only times."""
    return {"ways": {name: {"seconds": value} for name, value in seconds.items()}}


# The claims


def test_six_claims_are_measured_only_once() -> None:
    assert [claim for claim in bench.CLAIMS if bench.once(claim)] == [
        *("circuits", "serve", "scale", "play", "play_smollm2", "growth")
    ]


def test_every_file_of_a_claim_is_measured() -> None:
    assert set(bench.CLAIMS) == {
        path.stem
        for path in Path(bench.__file__).parent.glob("*.py")
        if hasattr(bench.module(path.stem), "rows") or path.stem == "growth"
    }


# Measuring


def test_every_part_of_a_model_takes_a_share_of_its_time() -> None:
    config = {"model_type": "bert", "vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 1}
    config |= {"num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 9}
    model = random_model(config)
    for call in (lambda: model([[1, 2, 3]]), lambda: model.trace([1, 2, 3])):
        shares = parts.parts(call)
        assert all(shares[name] > 0 for name in ("projections", "attention", "norms", "the rest"))


def test_a_wrong_result_is_not_timed() -> None:
    calls = []

    def call() -> float:
        calls.append(None)
        return 1.0

    row = Row("sum", {"qkv": Way(call, lambda result: abs(result - 2.0), allowed=0.5)})
    with pytest.raises(ArithmeticError, match=r"sum: qkv has the error 1.0e\+00, but the largest"):
        common.measure(row, threads=1)
    assert len(calls) == 1
    nothing = Row("nan", {"qkv": Way(call, lambda result: math.nan)})
    with pytest.raises(ArithmeticError, match="qkv has the error nan"):
        common.measure(nothing, threads=1)


def test_measuring_a_row_reports_rates_shares_and_goals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "multiply_adds", lambda dtype: {"float32": 4e9}[dtype])
    monkeypatch.setattr(common, "read_rate", lambda: 2e9)
    took = {"qkv": 0.5, "peer": 2.0, "reader": 0.25}
    monkeypatch.setattr(
        common,
        "in_turn",
        lambda calls, **_: {
            name: [0.9 * took.get(name, call() or 0.0), took.get(name, 0.0), 99.0]
            for name, call in calls.items()
        },
    )
    row = Row(
        "work",
        {
            "qkv": Way(lambda: 0, lambda _: 1e-7, operations=1e9),
            "peer": Way(lambda: 3, lambda _: 2e-7, operations=1e9, also=lambda got: {"bias": got}),
            "reader": Way(lambda: 0, lambda _: 0.0, reads=1e8),
            "absent": None,
            "failing": "not compiled: no compiler",
        },
        (
            *(common.faster("peer", 4.0, 5.0), common.faster("absent", 1.0)),
            *(common.share_of_peak(0.6), common.per_second("texts", 1000, "peer")),
            *(common.other_measure("bias", "peer", least=4), common.other_measure("bias", "qkv")),
            common.other_measure("bias", "peer", relative_to="peer", most=1.005),
        ),
        {"qkv": lambda: 7.0},
    )
    found = common.measure(row, threads=2)
    assert found["limits"] == {"float32": 4e9, "reading": 2e9}
    assert found["ways"]["qkv"]["seconds"] == 0.5
    assert found["ways"]["qkv"]["rate"] == 2e9
    assert found["ways"]["qkv"]["share"] == 0.5
    assert found["ways"]["reader"]["share"] == 0.2
    assert found["ways"]["peer"]["error"] == 2e-7
    assert found["memory"] == {"qkv": 7.0}
    assert found["missing"] == {"absent": "not installed", "failing": "not compiled: no compiler"}
    first, absent, share, rate, bias, unbiased, ratio = found["goals"]
    assert (first["value"], first["met"], first["aim_met"]) == (4.0, True, False)
    assert (absent["value"], absent["met"]) == (None, None)
    assert (share["value"], share["met"], share["aim_met"]) == (0.5, False, None)
    assert (rate["value"], rate["met"]) == (500.0, None)
    assert (bias["value"], bias["met"]) == (3, False)
    assert unbiased["value"] is None
    assert (ratio["value"], ratio["met"]) == (1.0, True)
    lines = "\n".join(common.report(found))
    assert "work, 2 threads  (limits: float32 4.0 GFLOP/s, reading 2.0 GB/s)" in lines
    assert "absent                           not installed" in lines
    assert "failing                          not compiled: no compiler" in lines
    assert "4.00x  (≥ 4.00x, aim 5.00x) met, short of the aim" in lines
    assert "50.0%  (≥ 60.0%) MISSED" in lines
    assert "not measured" in lines
    assert "error 2e-07; bias 3.0000" in lines
    assert "3.0000  (≥ 4.0000) MISSED" in lines
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize(
    ("goal", "row", "value", "met"),
    [
        (common.faster("b|c", 2.0), row_of(qkv=2.0, b=9.0, c=4.0), 2.0, True),
        (common.faster("b|c", 2.5), row_of(qkv=2.0, b=9.0), 4.5, True),
        (common.faster("b", 2.5, way="a"), row_of(a=2.0, b=4.0, qkv=1.0), 2.0, False),
        (common.within(1.25, "b"), row_of(qkv=2.0, b=2.5), 1.25, True),
        (common.within(1.2, "b"), row_of(qkv=2.0, b=2.5), 1.25, False),
        (common.at_most(20e-6), row_of(qkv=21e-6), 21e-6, False),
        (common.share_of_reading(0.8), {"ways": {"qkv": {"share": 0.8}}}, 0.8, True),
        (
            common.no_less_exact("b"),
            {"ways": {"qkv": {"error": 1.0}, "b": {"error": 4.0}}},
            0.25,
            True,
        ),
        (common.memory_at_most(10.0, "qkv"), {"memory": {"qkv": 11.0}}, 11.0, False),
        (common.less_memory("b", 10.0), {"memory": {"qkv": 3.0, "b": 30.0}}, 10.0, True),
    ],
)
def test_goals_by_hand(goal, row, value, met) -> None:
    judged = goal.judged(row)
    assert judged["value"] == pytest.approx(value, rel=1e-12)
    assert judged["met"] is met


AMX = "| decode: x | speed relative to b, with AMX | ≥ 2.00x | **1.50x (c), missed** |"
PLAIN = "| speed relative to b | ≥ 1.00x | 1.50x (c) |"


@pytest.mark.parametrize(
    ("flags", "met", "lines"),
    [
        (["amx_bf16"], False, [AMX, f"|  {PLAIN}"]),
        (["avx512f"], None, [f"| decode: x {PLAIN}"]),
    ],
)
def test_a_goal_for_amx_is_listed_only_for_processors_with_amx(
    flags: list[str], met: bool | None, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(common, "processor", lambda: ("Fast One", flags))
    measured = row_of(qkv=2.0, b=9.0, c=3.0)
    wanted = [common.with_amx(common.faster("b|c", 2.0)), common.faster("b|c", 1.0)]
    found = [goal.judged(measured) for goal in wanted]
    assert found[0]["met"] is met
    rows = [measured | {"name": "x", "threads": 1, "goals": found}]
    table = page.goals({"claims": {"decode": {"rows": rows}}})
    assert table.splitlines()[2:] == lines


def test_the_formula_of_the_benchmarks_equals_attention_by_hand() -> None:
    q, k, v = random_inputs((1, 4, 20, 4), (1, 2, 20, 4))
    rng = np.random.default_rng(1)
    options = {
        "window": (3, 1),
        "softcap": 0.5,
        "sinks": rng.standard_normal(4),
        "alibi_slopes": rng.random(4),
        "bias": rng.standard_normal((1, 4, 20, 20)),
    }
    weights, out = common.formula(q, k, v, slice(5, 20), **options)
    assert weights.shape == (1, 4, 15, 20)
    for head in range(4):
        expected = np.zeros((15, 4))
        for row, i in enumerate(range(5, 20)):
            total = math.exp(options["sinks"][head])
            for j in range(max(0, i - 3), min(20, i + 2)):
                score = float(q[0, head, i].astype(float) @ k[0, head // 2, j].astype(float)) / 2
                score = 0.5 * math.tanh(score / 0.5) - options["alibi_slopes"][head] * abs(i - j)
                weight = math.exp(score + options["bias"][0, head, i, j])
                expected[row] += weight * v[0, head // 2, j].astype(float)
                total += weight
            expected[row] /= total
        np.testing.assert_allclose(out[0, head], expected, rtol=0, atol=1e-13)
    causal = common.formula(q, k, v, slice(0, 20), is_causal=True)[0]
    assert (causal[..., ~np.tri(20, dtype=bool)] == 0).all()


@pytest.mark.parametrize("causal", [False, True])
def test_the_gradient_of_the_benchmarks_equals_differences(causal: bool) -> None:
    inputs = [x.astype(np.float64) for x in random_inputs((1, 2, 6, 4), (1, 2, 6, 4))]
    above = np.random.default_rng(1).standard_normal((1, 2, 6, 4))

    def total() -> float:
        return float((above * common.formula(*inputs, slice(None), is_causal=causal)[1]).sum())

    step = 1e-5
    for x, found in zip(inputs, by_the_chain_rule(*inputs, above, causal), strict=True):
        for at in ((0, 0, 0, 0), (0, 1, 2, 3), (0, 1, 5, 1)):
            kept = x[at]
            x[at] = kept + step
            higher = total()
            x[at] = kept - step
            slope = (higher - total()) / (2 * step)
            x[at] = kept
            assert found[at] == pytest.approx(slope, abs=1e-8)


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="only POSIX systems have this signal")
def test_what_torch_cannot_compile_is_replaced_by_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("no\n compiler")

    def slow() -> None:
        with suppress(Exception):  # as torch has such handlers
            signal.sigtimedwait([], 60)

    before = signal.getsignal(signal.SIGALRM)
    assert peers.if_compiled(float) is float
    assert peers.if_compiled(fail) == "not compiled: no compiler"
    monkeypatch.setattr(peers, "PATIENCE", 1)
    assert peers.if_compiled(slow) == "not compiled within 1 s"
    with pytest.raises(KeyboardInterrupt):
        peers.if_compiled(lambda: signal.default_int_handler(signal.SIGINT, None))
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.alarm(0) == 0


def test_the_fastest_call_is_found_after_a_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def wait(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(peers, "perf_counter", lambda: now)  # this machine may be busy
    slow, waits = iter([0.0, 2.0]), iter([5.0, 1.0])
    calls = {"slow": lambda: wait(next(slow)), "fast": lambda: wait(next(waits))}
    assert peers.fastest(calls) == "fast"


def test_calls_take_turns() -> None:
    order = []
    gc.enable()
    times = in_turn(
        {name: lambda name=name: order.append(name) for name in "abc"},
        rounds=3,
        seconds=0,
    )
    assert gc.isenabled()
    assert {name: len(found) for name, found in times.items()} == dict.fromkeys("abc", 3)
    runs = [name for k, name in enumerate(order) if k == 0 or order[k - 1] != name]
    assert runs == list("abc") * 4  # a warm-up round, and three rounds
    assert all(one > 0 for found in times.values() for one in found)


def test_long_calls_are_called_once_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "SHORT", 0.0)
    monkeypatch.setattr(measure, "LEAST", 0.0)
    calls = []
    in_turn({"a": lambda: calls.append(None)}, rounds=5, seconds=0)
    assert len(calls) == 6


def test_garbage_is_collected_again_after_an_error() -> None:
    def fail() -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        in_turn({"a": fail})
    assert gc.isenabled()


# Samples, errors and limits


@pytest.mark.parametrize("length", [1, 7, 256, 257, 1000, 4096])
def test_a_sample_has_distinct_queries_including_the_first_and_last(length: int) -> None:
    chosen = [i for part in sample(length) for i in range(length)[part]]
    assert chosen == sorted(set(chosen))
    assert chosen[0] == 0
    assert chosen[-1] == length - 1
    assert len(chosen) == min(length, 256)


@pytest.mark.parametrize("causal", [False, True])
def test_plain_numpy_agrees_with_the_formula(causal: bool) -> None:
    q, k, v = random_inputs((1, 2, 20, 4), (1, 1, 20, 4))
    wide = [x.astype(np.float64) for x in (q, k, v)]
    found = plain_attention(*wide, is_causal=causal)
    rows = [slice(0, 3), slice(11, 20)]
    parts = [common.formula(q, k, v, part, is_causal=causal)[1] for part in rows]
    truth = np.concatenate(parts, axis=-2)
    assert largest_error(found, truth, rows) < 1e-13
    assert largest_error(found + 0.5, truth, rows) == pytest.approx(0.5)
    assert plain_attention(q, k, v, is_causal=causal).dtype == np.float32


def test_nan_outside_of_the_sample_shows() -> None:
    found = np.zeros((4, 2), np.float32)
    found[3, 1] = np.nan
    assert math.isnan(largest_error(found, np.zeros((1, 2)), [slice(0, 1)]))


def test_operations_are_counted() -> None:
    q, k, v = random_inputs((2, 3, 5, 4), (2, 3, 7, 4))
    assert operations(q, k, v) == 2 * 3 * (5 * 7) * (2 * 4 + 2 * 4)
    q, k, v = random_inputs((1, 1, 4, 8), (1, 1, 4, 8))
    assert operations(q, k, v, is_causal=True) == (1 + 2 + 3 + 4) * (2 * 8 + 2 * 8)


def test_the_processor_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    about = tmp_path / "cpuinfo"
    about.write_text(
        "cpu family\t: 26\nmodel\t\t: 2\nmodel name\t: Fast One\nflags\t\t: fma sse2 avx512f\n"
        "\nmodel name\t: Another\n",
        encoding="utf-8",
    )
    real = open
    monkeypatch.setattr(
        "builtins.open", lambda path, *a, **k: real(about if "cpuinfo" in str(path) else path)
    )
    assert measure.processor() == ("Fast One (family 26, model 2)", ["fma", "avx512f"])


@pytest.mark.skipif(compiled is None, reason="the kernel is not built here")
def test_limits_come_from_the_kernel() -> None:
    assert measure.multiply_adds() > 0
    assert measure.multiply_adds("bfloat16") > 0
    assert measure.read_rate() > 0


def test_limits_without_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "compiled", None)
    assert measure.multiply_adds() > 0
    assert measure.read_rate() > 0


# Growth and memory


def test_exponents_of_known_curves() -> None:
    points = [
        {"length": n, "seconds": 1e-9 * n * n, "bytes": 50.0 * n}
        for n in (1024, 2048, 4096, 262144)
    ]
    assert growth.exponent(points, "seconds") == pytest.approx(2)
    assert growth.exponent(points, "bytes") is None  # only the last point is above the noise
    bent = [{"length": 2**n, "seconds": 4.0 ** max(n, 3)} for n in range(7)]
    assert growth.exponent(bent, "seconds") == pytest.approx(2)  # the slope of the last four points
    points[2]["bytes"], points[3]["bytes"] = 5e6, 5e6 * 64
    assert growth.exponent(points, "bytes") == pytest.approx(1)


def test_the_next_point_is_skipped_if_it_would_need_too_much() -> None:
    def points(*pairs):
        return [{"seconds": s, "bytes": b} for s, b in pairs]

    assert not growth.next_is_too_much([])
    assert not growth.next_is_too_much(points((30.0, 1e3)))
    assert not growth.next_is_too_much(points((1.0, 1e3), (4.0, 1e3)))  # next: 16 s
    assert growth.next_is_too_much(points((1.5, 1e3), (6.0, 1e3)))  # next: 24 s
    assert growth.next_is_too_much(points((0.1, 0.5e9), (0.1, 2e9)))  # next: 8 GB
    assert growth.next_is_too_much(points((0.1, 1e3), (1.5, 1e3), (6.0, 1e3)))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the most since a moment")
def test_peak_memory_since_a_reset_is_measured() -> None:
    memory.forget_the_peak()
    before, _ = memory.resident()
    with mmap.mmap(-1, 30_000_000) as fresh:  # fresh pages, not memory that earlier tests freed
        fresh.write(bytes(len(fresh)))
    after, most = memory.resident()
    assert 29e6 < most - before < 90e6
    assert after - before < 20e6


def test_a_call_is_measured_alone() -> None:
    found = memory.measured_alone("numpy", (1, 1, 1024, 16))
    assert found["bytes"] > 4 * 1024 * 1024  # more than the scores
    assert found["seconds"] > 0


# Results and their page


def result_of(claims: dict) -> dict:
    return {
        "when": "2026-01-01 00:00 UTC",
        "seconds": 601,
        "machine": {
            "processor": "Fast One",
            "cores": 2,
            "flags": ["fma"],
            "system": "Linux",
            "python": "3.11",
            "backend": "numpy",
        },
        "versions": {"numpy": "2.0", "torch": None},
        "claims": claims,
    }


def test_the_page_has_what_was_measured() -> None:
    def row(threads: int, seconds: float, goal: float) -> dict:
        measured = row_of(qkv=seconds, torch=goal * seconds)
        for way in measured["ways"].values():
            way |= {"error": 3e-7, "share": 0.5}
        measured["ways"]["torch"]["also"] = {"mean cosine": 0.99}
        judged = common.faster("torch", 2.0, 2.5).judged(measured)
        return measured | {
            "name": "(1, 2)",
            "threads": threads,
            "limits": {"float32": 1e11 * threads},
            "memory": {},
            "goals": [judged],
        }

    points = [{"length": n, "seconds": 1e-9 * n * n, "bytes": 1e4 * n} for n in (1024, 2048, 4096)]
    claims = {
        "prefill": {
            "title": "Whole texts.\n\nEach was read.",
            "rows": [row(1, 0.1, 3.0), row(2, 0.05, 1.5)],
        },
        "growth": {"title": "Growth.", "rows": [], "curves": {"qkv": points}, "threads": 2},
    }
    other = result_of({"prefill": claims["prefill"]}) | {"when": "2025-01-01 00:00 UTC"}
    other["machine"] = other["machine"] | {"processor": "Slow One"}
    text = page.page([result_of(claims), other], "It waits for memory.")
    assert text.index("### Fast One\n") < text.index("### Slow One\n")
    assert text.index("### Times on Fast One\n") < text.index("### Times on Slow One\n")
    assert "Measured on Fast One." in text
    assert "| peak, float32, 2 threads | 200.0 GFLOP/s |" in text
    assert "| 3.00x | **1.50x, missed** |" in text
    assert "≥ 2.00x, aim 2.50x" in text
    assert "| (1, 2) | qkv | 100 ms | 50% | 50 ms | 50% | 3e-07 |" in text
    assert "| torch | 300 ms | 50% | 75 ms | 50% | 3e-07; mean cosine 0.9900 |" in text
    assert "It waits for memory." in text
    assert "#### Whole texts\n\nEach was read.\n\n| work |" in text
    assert "| qkv | 2.00 | 1.00 | 4,096 | 16.8 ms | 41 MB |" in text
    assert "10 minutes here" in text
    assert "torch None" not in text


def test_results_have_one_line_for_each_table_of_figures() -> None:
    row = {"name": "x", "ways": {"qkv": {"seconds": 1.5}, "numpy": {"seconds": 3}}, "missing": {}}
    assert common.in_lines({"rows": [row]}).splitlines() == [
        *("{", ' "rows": [', "  {", '   "name": "x",'),
        '   "ways": {"qkv": {"seconds": 1.5}, "numpy": {"seconds": 3}},',
        *('   "missing": {}', "  }", " ]", "}"),
    ]


def test_the_kept_results_have_the_layout_of_the_writer() -> None:
    for path in (*page.PROCESSORS.glob("*.json"), conformance.LAST):
        text = path.read_text(encoding="utf-8")
        assert text == common.in_lines(json.loads(text)) + "\n"


def test_a_partial_run_updates_the_last_full_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "RESULTS", tmp_path)
    claims = {name: {"title": name, "rows": []} for name in ("prefill", "growth")}
    last = result_of(claims) | {"when": "before"}
    path = bench.path_of(last["machine"])
    path.parent.mkdir()
    path.write_text(json.dumps(last), encoding="utf-8")
    fresh = {"llama": {"title": "new", "rows": [1]}, "prefill": {"title": "again", "rows": [2]}}
    found = bench.in_the_last(result_of(fresh) | {"when": "now"})
    assert list(found["claims"]) == ["prefill", "llama", "growth"]
    assert found["claims"]["prefill"] == {"title": "again", "rows": [2], "when": "now"}
    assert found["when"] == "before"
    assert found["claims"]["growth"] == claims["growth"]
    other = {"processor": "Fast One", "cores": 8, "system": "Linux"}
    elsewhere = result_of(fresh) | {"machine": other, "versions": {"torch": None, "dask": "1.0"}}
    found = bench.in_the_last(elsewhere)
    assert found["machine"] == last["machine"]
    assert found["claims"]["llama"]["machine"] == other
    assert "machine" not in found["claims"]["growth"]
    assert found["versions"] == {
        **last["versions"],
        "dask": "1.0",
    }
    assert (
        page.elsewhere(found["claims"]["llama"]) == " on another machine: Fast One, 8 cores, Linux"
    )
    assert page.elsewhere(found["claims"]["growth"]) == ""
    unknown = result_of(fresh) | {"machine": {"processor": "Slow One"}}
    assert bench.in_the_last(unknown) == unknown


@pytest.mark.parametrize(
    ("processor", "name"),
    [
        ("AMD EPYC (family 25, model 17)", "amd-25-17.json"),
        ("Intel(R) Xeon(R) Processor @ 2.60GHz (family 6, model 207)", "intel-6-207.json"),
        ("aarch64", "aarch64.json"),
    ],
)
def test_a_processor_has_a_file_of_results(processor: str, name: str) -> None:
    assert bench.path_of({"processor": processor}).name == name


def test_the_page_says_where_the_time_goes() -> None:
    row = {"name": "8 texts", "threads": 1, "parts": {"projections": 0.9, "the rest": 0.1}}
    assert "(8 texts, 1 thread): projections 90%, the rest 10%." in page.shares(row)


@pytest.mark.parametrize("dark", [False, True])
def test_the_pictures_are_the_same_each_time(dark: bool, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    points = [{"length": n, "seconds": 1e-9 * n * n, "bytes": 1e4 * n} for n in (1024, 2048)]
    for name in ("one.svg", "two.svg"):
        page.draw({"qkv": points, "torch": points}, tmp_path / name, dark=dark)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_the_page_is_that_of_the_kept_results() -> None:
    results = page.kept()
    assert page.PAGE.read_text(encoding="utf-8") == page.page(results, page.notes())
    if page.with_growth(results):
        assert all((page.IMAGES / page.picture(dark)).is_file() for dark in (False, True))


def test_a_page_without_a_run_says_how_to_make_one() -> None:
    text = page.page([], "")
    assert "No full run" in text
    assert "make bench" in text


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(12.345, "12.3 s"), (0.99, "990 ms"), (1.5e-3, "1.5 ms"), (2e-5, "20 µs"), (2e-7, "0.2 µs")],
)
def test_times_in_words(seconds: float, words: str) -> None:
    assert time_in_words(seconds) == words


def test_a_claim_that_is_not_there(monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.argv", ["benchmarks", "prefil"])
    with pytest.raises(SystemExit):
        bench.main()
    assert "there is no claim prefil: choose among prefill" in capsys.readouterr().err

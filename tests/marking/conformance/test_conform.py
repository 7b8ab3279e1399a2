"""Tests of `qkv.conform`: right functions pass in every style; crashes and errors are reported."""

import json
import os
import sys
import time
from xml.etree import ElementTree

import numpy as np
import pytest

import qkv
from processes import ends_with_its_parent
from qkv.attend.arguments import OPTIONS
from qkv_marking.conformance.read_cases import FEATURES

from ..formulas import softmax
from .tiled import kernel


def plain(q, k, v):
    return softmax((q / np.sqrt(q.shape[-1])) @ k.swapaxes(-1, -2)) @ v


def bounded(query, key, value, mask=None, causal=False, softmax_scale=None):
    """Attention with other argument names; the last query is aligned with the last key."""
    scale = query.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    scores = (query * scale) @ key.swapaxes(-1, -2)
    L, S = scores.shape[-2:]
    if causal:
        scores = np.where(np.tri(L, S, S - L, dtype=bool), scores, -np.inf)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    return softmax(scores) @ value


def test_qkv_is_right_in_every_feature_that_it_has():
    report = qkv.conform(qkv.attention)
    assert report.passed, report
    assert report
    assert [*report.features] == [*FEATURES]
    assert {*report.features.values()} == {"right", "absent"}
    assert [name for name, it in report.features.items() if it == "absent"] == ["gradient"]
    assert len(report.cases) > 300


def test_a_kernel_in_tiles_is_right():
    report = qkv.conform(kernel())
    assert report.passed, report
    assert "refused" not in report.features.values()


@pytest.mark.parametrize("names", [None, {"causal": "is_causal"}, {"is_causal": "causal"}])
def test_arguments_are_found_by_signature_and_by_names(names):
    features = ["plain", "scale", "causal", "bool mask", "float mask", "window"]
    report = qkv.conform(bounded, names=names, features=features)
    assert report.passed, report
    statuses = dict.fromkeys(features[:-1], "right") | {"window": "absent"}
    assert report.features == statuses


def test_options_of_a_function_with_kwargs_are_recognized():
    report = qkv.conform(lambda q, k, v, **options: qkv.attention(q, k, v, **options))
    assert report.passed, report
    assert report.features["sinks"] == "right"


def test_options_that_vanish_in_kwargs_are_ignored_once():
    def attention(query, key, value, is_causal=False, **options):
        scores = query @ key.swapaxes(-1, -2) * options.get("scale", query.shape[-1] ** -0.5)
        if is_causal:
            L, S = scores.shape[-2:]
            scores = np.where(np.tri(L, S, S - L, dtype=bool), scores, -np.inf)
        return softmax(scores) @ value

    features = ["plain", "scale", "causal", "q_offset", "bool mask", "softcap", "LSE", "lengths"]
    report = qkv.conform(attention, features=features)
    assert report.features == dict.fromkeys(features, "absent") | dict.fromkeys(
        features[:3], "right"
    )
    assert {*report.ignored} == {*OPTIONS} - {"scale", "is_causal", "out"}
    assert str(report).count("softcap") == 2  # in the note and as the name of a feature
    assert report.passed

    named = qkv.conform(attention, names={"softcap": "softcap"}, features=["softcap"])
    assert named.features == {"softcap": "wrong"}


def test_features_without_an_argument_are_absent():
    report = qkv.conform(plain)
    assert report.passed, report
    assert {name for name, it in report.features.items() if it == "right"} == {
        *("plain", "half precision", "strides", "large scores", "hidden NaN", "determinism")
    }
    assert report.features["grouped heads"] == report.features["empty"] == "refused"


def test_float64_is_held_to_its_own_bound():
    assert qkv.conform(plain, dtypes=["float64"], features=["plain"])

    def single(q, k, v):
        return plain(*(x.astype(np.float32) for x in (q, k, v))).astype(q.dtype)

    assert not qkv.conform(single, dtypes=["float64"], features=["plain"])
    assert qkv.conform(single, features=["plain"])


def test_aligned_start_accepts_masks_aligned_to_the_first_key():
    def first(query, key, value, is_causal=False):
        scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
        if is_causal:
            scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
        return softmax(scores) @ value

    report = qkv.conform(first, features=["causal"])
    assert report.remark("causal") == "as if the kernel aligned the causal mask to the first key"
    assert qkv.conform(first, features=["causal"], aligned="start")


def test_a_kernel_that_never_reads_q_offset_is_wrong_at_q_offset():
    def attention(query, key, value, is_causal=False, q_offset=None, window=None):
        end = key.shape[2] - query.shape[2]
        return qkv.attention(query, key, value, is_causal=is_causal, q_offset=end, window=window)

    report = qkv.conform(attention)
    assert report.features["q_offset"] == "wrong"
    assert {report.features[name] for name in ("plain", "causal", "window")} == {"right"}
    wrong = [one for one in report.cases if one.feature == "q_offset" and one.status == "wrong"]
    assert len(wrong) > 5
    assert not any(one.like for one in wrong)


def test_a_wrong_case_makes_the_feature_wrong_that_receives_the_blame():
    def attention(query, key, value):
        return qkv.attention(query, key[:, :, :2500], value[:, :, :2500])

    report = qkv.conform(attention)
    assert report.features["plain"] == "wrong"
    assert report.features["half precision"] == "right"
    assert "the same error as in plain" in report.remark("half precision")
    report = qkv.conform(attention, features=["half precision"])
    assert report.features == {"half precision": "wrong"}


def test_float16_numbers_of_large_scores_do_not_overflow_before_the_call():
    def attention(query, key, value):
        assert np.isfinite(query).all()
        wide = (x.astype(np.float64) for x in (query, key, value))
        return qkv.attention(*wide).astype(query.dtype)

    report = qkv.conform(attention, dtypes=["float16"], features=["plain", "large scores"])
    assert report.features == {"plain": "right", "large scores": "right"}


@pytest.mark.attack
def test_an_unknown_mistake_of_masks_is_not_also_one_of_large_scores():
    def attention(query, key, value, attn_mask=None):
        if attn_mask is not None and attn_mask.shape[-1] > 3:
            attn_mask = attn_mask.copy()
            attn_mask[..., 1:3] = np.array([True, False]) if attn_mask.dtype == bool else [0, 1]
        return qkv.attention(query, key, value, attn_mask=attn_mask)

    report = qkv.conform(attention, features=["plain", "bool mask", "large scores"])
    assert report.features == {"plain": "right", "bool mask": "wrong", "large scores": "right"}
    assert "the same error as in bool mask" in report.remark("large scores")


@pytest.mark.parametrize("causal", [True, False])
def test_a_call_without_an_argument_is_judged_by_the_default_of_the_function(causal):
    def attention(query, key, value, causal=causal, softcap=30.0, window=(-1, -1), q_offset=None):
        offset = key.shape[2] - query.shape[2] if q_offset is None else q_offset
        sides = tuple(None if side == -1 else side for side in window)
        options = {"is_causal": causal, "window": sides, "q_offset": offset}
        return qkv.attention(query, key, value, **options, softcap=softcap)

    report = qkv.conform(attention)
    assert report.passed, report
    assert report.features["causal"] == report.features["softcap"] == "right"


@pytest.mark.parametrize(
    ("does", "said"),
    [
        (lambda: os.abort(), "it crashes: the process was ended by SIGABRT"),
        (lambda: os._exit(3), "it ends: the process ended with the exit code 3"),
        (lambda: time.sleep(100), "it does not return: the process was ended after 0.5 s"),
        (lambda: sys.exit(), "it raises SystemExit"),
    ],
)
def test_a_failing_case_does_not_stop_the_other_features(does, said):
    def attention(query, key, value, scale=None):
        if scale == 2.5:
            does()
        return qkv.attention(query, key, value, scale=scale)

    # on a busy machine, half a second may pass before the end of a process is noticed
    seconds = 0.5 if "after 0.5 s" in said else 10
    report = qkv.conform(attention, features=["plain", "scale", "large scores"], seconds=seconds)
    assert report.features == {"plain": "right", "scale": "wrong", "large scores": "right"}
    assert said in str(report)
    wrong = [one for one in report.cases if one.status == "wrong"]
    assert [one.case.options["scale"] for one in wrong] == [2.5]


@pytest.mark.parametrize(
    "error",
    [
        NotImplementedError("no softcap here"),
        IndexError("list index out of range"),
        ValueError("operands could not be broadcast together: head size 3 is not aligned to 8"),
        NameError("name 'tanh' is not defined"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_any_type_is_a_refusal_and_fits_no_defect(error):
    def attention(query, key, value, softcap=None):
        if softcap is not None:
            raise error
        return qkv.attention(query, key, value)

    report = qkv.conform(attention, features=["plain", "softcap"])
    assert report.passed
    assert report.features == {"plain": "right", "softcap": "refused"}
    assert report.remark("softcap") == f"it raises {type(error).__name__}: {error}"


def test_a_result_without_numbers_is_wrong_not_refused():
    def attention(query, key, value, softcap=None):
        return None if softcap is not None else qkv.attention(query, key, value)

    report = qkv.conform(attention, features=["plain", "softcap"])
    assert report.features == {"plain": "right", "softcap": "wrong"}
    assert "the function returned NoneType" in report.remark("softcap")


def test_a_finding_has_the_smallest_failing_case():
    def attention(query, key, value):
        out = qkv.attention(query, key, value).copy()
        if key.shape[2] > 20:
            out[..., -1, :] += 1
        return out

    report = qkv.conform(attention, features=["plain"])
    case = report.findings["plain"].case.case
    assert (case.B, case.Hq, case.L, case.S, case.d, case.dv) == (1, 1, 1, 21, 1, 1)
    assert report.remark("plain") == "no known defect gives this result"


@pytest.mark.parametrize(
    ("does", "said"),
    [
        (lambda q, k, v: k.fill(0), "it writes to key"),
        (lambda q, k, v: v.sort(), "it writes to value"),
    ],
)
def test_writing_to_an_input_is_wrong(does, said):
    def attention(query, key, value):
        out = qkv.attention(query, key, value)
        does(query, key, value)
        return out

    report = qkv.conform(attention, features=["plain"])
    assert said in report.remark("plain")


def test_nondeterministic_outputs_fail_the_determinism_feature():
    calls, buffer = [], np.zeros(1 << 16, np.float32)

    def unsteady(query, key, value):
        calls.append(1)
        return qkv.attention(query, key, value) * np.float32(1 + 3e-7 * (len(calls) % 2))

    def noisy(query, key, value):
        calls.append(1)
        return qkv.attention(query, key, value) + len(calls)

    def seldom(query, key, value):
        calls.append(1)
        return qkv.attention(query, key, value) + (len(calls) % 3 == 2)

    def reuses(query, key, value):
        out = buffer[: query[..., 0].size * value.shape[-1]]
        out[...] = noisy(query, key, value).reshape(-1)
        return out.reshape(*query.shape[:3], -1)

    report = qkv.conform(unsteady, features=["plain", "determinism"])
    assert report.features == {"plain": "right", "determinism": "fragile"}
    assert "different results for the same call" in report.remark("determinism")
    report = qkv.conform(seldom, features=["determinism"])
    assert report.features["determinism"] == "wrong"
    report = qkv.conform(noisy, features=["determinism"])
    assert "different results for the same call" in report.remark("determinism")
    report = qkv.conform(reuses, features=["determinism"])
    assert report.features["determinism"] == "wrong"


def shaky(query, key, value, attn_mask=None, spoil=None):
    """Attention with NaN in rows that see nothing; `spoil` changes the rows that see a key."""
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    blind = False
    if attn_mask is not None:
        hidden = ~attn_mask if attn_mask.dtype == bool else attn_mask == -np.inf
        scores = np.where(hidden, -np.inf, scores + (0 if attn_mask.dtype == bool else attn_mask))
        blind = np.all(hidden, axis=-1)
    out = softmax(scores) @ value
    return out if spoil is None else spoil(out, np.any(blind))


UNDOCUMENTED = ["plain", "bool mask", "rows that see nothing", "hidden NaN"]


def test_a_function_without_undocumented_promises_is_fragile_and_wrong_if_strict():
    report = qkv.conform(shaky, features=UNDOCUMENTED)
    statuses = ["right", "right", "fragile", "fragile"]
    assert [*report.features.values()] == statuses, report
    assert report.passed
    assert report.summary() == "2 right, 2 fragile"
    assert "the kernel divided 0 by 0" in report.remark("rows that see nothing")
    report = qkv.conform(shaky, features=UNDOCUMENTED, strict=True)
    assert [*report.features.values()] == ["right", "right", "wrong", "wrong"], report
    assert not report.passed


def test_an_error_in_rows_that_see_a_key_is_not_fragile():
    def attention(query, key, value, attn_mask=None):
        return shaky(query, key, value, attn_mask, lambda out, blind: out + 0.1 * blind)

    report = qkv.conform(attention, features=UNDOCUMENTED)
    assert report.features["rows that see nothing"] == "wrong"


def test_an_error_that_is_there_without_nan_is_not_fragile():
    def attention(query, key, value, attn_mask=None):
        return shaky(query, key, value, attn_mask, lambda out, blind: out + (attn_mask is not None))

    assert qkv.conform(attention, features=["hidden NaN"]).features == {"hidden NaN": "wrong"}


def test_a_wrong_output_shape_is_reported():
    report = qkv.conform(lambda q, k, v: plain(q, k, v)[..., :1, :], features=["plain"])
    assert report.findings["plain"].case.message.startswith("out has shape")


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ((3,), TypeError, "which cannot be called"),
        ((lambda: 1,), ValueError, "simplest call is refused"),
        ((plain, {"arrays": "cupy"}), ValueError, "`arrays` has 'cupy': choose from numpy, torch"),
        ((plain, {"dtypes": ["int8"]}), ValueError, "`dtypes` has 'int8'"),
        ((plain, {"dtypes": "float32"}), ValueError, "pass names"),
        ((plain, {"features": ["dropout"]}), ValueError, "`features` has 'dropout'"),
        ((plain, {"names": {"a": "b"}}), ValueError, "`names` has a=b"),
        ((plain, {"device": "cuda"}), ValueError, "have no device"),
        (("no.such:function",), ValueError, "cannot be loaded: ModuleNotFoundError"),
        (("numpy:nothing",), ValueError, "numpy has no nothing"),
        (("nothing",), ValueError, "write package.module:function"),
        (("nothing.py:f",), ValueError, "there is no file nothing.py"),
        (("numpy:pi",), ValueError, "it is a float"),
    ],
)
def test_a_bad_request_is_one_clear_error(given, error, said):
    function, *options = given
    with pytest.raises(error, match=said.replace("(", r"\(")):
        qkv.conform(function, **(options[0] if options else {}))


def test_a_report_is_written_as_json_junit_and_a_page(tmp_path):
    report = qkv.conform(kernel("causal-start"), features=["plain", "causal", "sinks", "gradient"])
    told = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert told["features"] == {
        **{"plain": "right", "causal": "wrong", "sinks": "right"},
        "gradient": "absent",
    }
    assert not told["passed"]
    assert told["findings"]["causal"]["defects"] == ["causal-first-key"]
    wrong, right = (f"if is_causal: seen = seen & (j <= {end})" for end in ("i", "position"))
    assert told["findings"]["causal"]["lines"] == [[wrong, right]]
    lines = report.details("causal")
    caption = "the difference in the formula (-: as the function computes, +: right):"
    assert lines[-3:] == [caption, f"- {wrong}", f"+ {right}"]
    assert {one["status"] for one in told["cases"]} == {"right", "wrong"}

    report.to_junit(tmp_path / "card.xml")
    (suite,) = ElementTree.parse(tmp_path / "card.xml").getroot()
    assert [suite.get(name) for name in ("tests", "failures", "skipped")] == ["4", "1", "1"]
    (failure,) = suite.iter("failure")
    assert "aligned the causal mask to the first key" in failure.get("message")

    report.to_html(tmp_path / "card.html")
    page = (tmp_path / "card.html").read_text("utf-8")
    assert "<del>- if is_causal: seen = seen &amp; (j &lt;= i)</del>" in page
    assert "<ins>+ if is_causal: seen = seen &amp; (j &lt;= position)</ins>" in page
    assert "http" not in page


@pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps the number of a dead parent")
@pytest.mark.parametrize("function", ["stuck", "'{file}:stuck'"], ids=["an object", "a name"])
@pytest.mark.parametrize(
    "busy",
    ["while True: pass", "import itertools; sum(itertools.repeat(0))"],
    ids=["a loop", "a call that never yields to other threads"],
)
def test_a_busy_function_ends_when_the_judging_process_is_killed(busy, function, tmp_path):
    note, file = tmp_path / "child", tmp_path / "mine.py"
    file.write_text(
        f"def stuck(q, k, v):\n"
        f"    import os; open({str(note)!r}, 'w').write(str(os.getpid()))\n"
        f"    {busy}\n"
    )
    given = function.format(file=file)
    program = f"{file.read_text()}\nimport qkv\nqkv.conform({given}, seconds=600)"
    assert ends_with_its_parent(program, note)

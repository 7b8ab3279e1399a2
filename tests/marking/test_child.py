"""The process that a file runs in, started without whoever listens to it."""

import json
import subprocess
import sys

import numpy as np
import pytest

from qkv.marking import CheckResult, check_file
from qkv.marking.files.child import packed
from qkv.marking.files.process import _unpacked

pytestmark = pytest.mark.attack

SOFTMAX = """
import numpy as np
def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)
"""
ATTENTION = "def attention(q, k, v):\n    return q\n"
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="other systems have other limits")


@pytest.fixture
def file(tmp_path):
    def write(source):
        path = tmp_path / "mine.py"
        path.write_text(source)
        return path

    return write


def run(path, *tasks, megabytes=2048, **options):
    """What the process tells, and how it ended."""
    program = "from qkv.marking.files.child import main; main()"
    given = [str(path), str(megabytes), "100", *tasks]
    done = subprocess.run(
        [sys.executable, "-P", "-B", "-c", program, *given],
        capture_output=True,
        timeout=100,
        check=False,
        **options,
    )
    return [json.loads(line) for line in done.stdout.splitlines()], done


def points(told):
    return {one["task"]: one["result"]["points"] for one in told if "result" in one}


def test_it_tells_that_it_is_ready_what_there_is_and_each_verdict(file):
    told, done = run(file(ATTENTION + SOFTMAX))
    keys = ["ready", "tasks", "imported", "task", "task"]
    assert [next(iter(one)) for one in told] == keys
    assert told[1]["tasks"] == ["softmax", "attention"]
    assert points(told) == {"softmax": 10, "attention": 0}
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_tasks_that_are_named_are_marked_and_no_others(file):
    told, _ = run(file(ATTENTION + SOFTMAX), "attention")
    assert [*points(told)] == ["attention"]


def test_nothing_is_done_behind_the_last_verdict(file, tmp_path):
    note = tmp_path / "note"
    source = f"""
import atexit, threading, time
atexit.register(lambda: open({str(note)!r}, "w"))
threading.Thread(target=time.sleep, args=(1000,)).start()
"""
    told, done = run(file(SOFTMAX + source))
    assert points(told) == {"softmax": 10}
    assert done.returncode == 0
    assert not note.exists()


def test_what_the_file_prints_is_nobody_s(file):
    source = "import sys\nprint('a')\nprint('b', file=sys.stderr)\nassert sys.stdin.read() == ''"
    told, done = run(file(SOFTMAX + source), input=b"not for the file")
    assert points(told) == {"softmax": 10}
    assert done.stderr == b""
    assert b"a" not in done.stdout.splitlines()


def test_a_line_that_is_written_in_pieces_is_told_as_a_whole(file):
    source = "import os\nwrite = os.write\nos.write = lambda to, text: write(to, text[:7])"
    told, _ = run(file(SOFTMAX + source))
    assert points(told) == {"softmax": 10}


def test_a_class_finds_the_module_that_it_is_in(file):
    source = "from __future__ import annotations\nfrom dataclasses import dataclass\n"
    source += "@dataclass\nclass Sizes:\n    d: int = 2\n"
    assert points(run(file(source + SOFTMAX))[0]) == {"softmax": 10}


@LINUX
def test_limits_are_set_for_memory_files_of_crashes_and_time(file):
    source = """
import resource, signal
assert resource.getrlimit(resource.RLIMIT_DATA)[0] == 300 << 20
assert resource.getrlimit(resource.RLIMIT_CORE)[0] == 0
assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL
assert 0 < signal.alarm(0) <= 100
"""

    def deaf():
        import signal

        signal.signal(signal.SIGALRM, signal.SIG_IGN)

    told, _ = run(file(SOFTMAX + source), megabytes=300, preexec_fn=deaf)
    assert points(told) == {"softmax": 10}


@LINUX
def test_a_lower_limit_from_outside_is_left(file):
    import resource

    def low():
        resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30))

    told, _ = run(file(SOFTMAX), preexec_fn=low)
    assert points(told) == {"softmax": 10}


# -- what is raised outside of the file's own functions -------------------------------------------


def marked_by(line):
    """What a file does that replaces the marker by one in which this line stands first."""
    return f"""
import qkv.marking.files.child as child
def check(function, way, task):
    {line}
    return mark(function, way, task=task)
mark, child.check = child.check, check
"""


@pytest.mark.parametrize(
    ("error", "key"), [("MemoryError('no room')", "out-of-memory"), ("KeyboardInterrupt", "exits")]
)
def test_an_error_while_a_task_is_marked_is_a_finding_and_the_next_is_marked(file, error, key):
    raises = marked_by(f"if task == 'softmax': raise {error}")
    told, _ = run(file(raises + ATTENTION + SOFTMAX))
    softmax, attention = (one["result"] for one in told if "result" in one)
    assert softmax["mistakes"] == [key]
    assert error.split("(")[0] in softmax["message"]
    assert (softmax["task"], attention["task"]) == ("softmax", "attention")
    assert attention["mistakes"] == ["returns-input"]


def test_an_error_of_the_marker_is_the_verdict_on_the_task(file):
    raises = marked_by("if task == 'softmax': raise ZeroDivisionError('ours')")
    softmax, attention = check_file(file(raises + ATTENTION + SOFTMAX))
    assert (softmax.mistakes, softmax.points) == (("not-marked",), 0)
    assert "the marker failed on softmax" in softmax.message
    assert "ZeroDivisionError: ours" in softmax.message
    assert attention.mistakes == ("returns-input",)


@LINUX
def test_an_output_that_fits_and_cannot_be_compared_is_out_of_memory(file):
    # its numbers are sorted to see whether they are all the same, which needs as much room again
    source = "import numpy as np\ndef softmax(x):\n    return np.zeros(1 << 24)\n"  # 128 MB
    told, _ = run(file(source + ATTENTION), megabytes=420)
    softmax, attention = (one["result"] for one in told if "result" in one)
    assert softmax["mistakes"] == ["out-of-memory"]
    assert attention["mistakes"] == ["returns-input"]


def test_a_function_of_compiled_code_that_does_not_say_its_parameters_may_be_a_helper(file):
    softmax = next(iter(check_file(file(SOFTMAX + "block = max"))))
    assert "Not marked for block, whose parameters are others: block(...)." in softmax.message


# -- verdicts on their way ------------------------------------------------------------------------


class Odd:
    def __str__(self):
        raise ZeroDivisionError


def test_a_verdict_arrives_as_it_was_given():
    example = {
        "x": np.array([[1, 2], [3, 4]]),
        "empty": np.zeros((0, 3), np.float32),
        "seen": np.array([True, False]),
        "yours": np.array([np.nan, np.inf, 1e-300]),
        "causal": True,
        "offset": 3,
        "scale": 0.5,
        "words": "ValueError: no",
    }
    given = CheckResult("no", ("a", "b"), ("c",), ("d",), 5, example, "mask", ("1", "2", "3"))
    arrived = _unpacked(json.loads(json.dumps(packed(given))))
    for name, value in vars(given).items():
        if name != "example":
            assert getattr(arrived, name) == value, name
    assert arrived.example.keys() == example.keys()
    for name, value in example.items():
        np.testing.assert_array_equal(arrived.example[name], value)
        assert type(arrived.example[name]) is type(value), name
        assert getattr(value, "dtype", None) == getattr(arrived.example[name], "dtype", None)
        assert np.shape(arrived.example[name]) == np.shape(value)


def test_what_is_too_long_or_no_number_arrives_as_words():
    example = {
        "long": np.zeros(10_001),
        "just": np.zeros(10_000),
        "words": "x" * 20_000,
        "complex": np.array([1 + 2j]),
        "odd": Odd(),
    }
    arrived = _unpacked(json.loads(json.dumps(packed(CheckResult("no", example=example))))).example
    assert arrived["long"].startswith("[0. 0. 0.")
    assert arrived["just"].shape == (10_000,)
    assert arrived["words"] == "x" * 10_000
    assert arrived["complex"] == "[1.+2.j]"
    assert arrived["odd"] == "a Odd"

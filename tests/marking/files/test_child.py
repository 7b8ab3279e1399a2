"""Tests of the process in which a file runs, started without the marker's main process."""

import json
import subprocess
import sys

import pytest

from qkv_marking import check_file

from .test_check_file import SOFTMAX

pytestmark = pytest.mark.attack

ATTENTION = "def attention(q, k, v):\n    return q\n"
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="other systems have other limits")


READ = {"do": "read", "tasks": []}


def run(path, *requests, megabytes=2048, **options):
    """Start the process, send requests, and return the replies and the exit code."""
    program = "from qkv_marking.files._child import main; main()"
    asked = [request | {"n": number} for number, request in enumerate(requests or (READ,))]
    done = subprocess.run(
        [sys.executable, "-P", "-B", "-c", program, str(path), str(megabytes), "100"],
        input=b"".join(json.dumps(request).encode() + b"\n" for request in asked),
        capture_output=True,
        timeout=100,
        check=False,
        **options,
    )
    told = [json.loads(line) for line in done.stdout.splitlines()]
    return [one for one in told if "n" in one], done


def tasks(told):
    return told[0]["tasks"]


def test_the_child_lists_functions_and_calls_them(file):
    find = {"do": "find", "names": ["none", "attention", "softmax"]}
    one = {"v": 1.5}
    call = {"do": "call", "of": 0, "given": [one, one, one], "named": {}}
    told, done = run(file(ATTENTION + SOFTMAX), READ, find, call)
    assert tasks(told) == ["softmax", "attention"]
    name, thing, parameters = told[1]["value"]
    assert (name, parameters) == ("attention", "(q, k, v)")
    assert (thing["r"], thing["calls"]) == (0, True)
    assert told[2]["value"] == one
    assert [reply["n"] for reply in told] == [0, 1, 2]
    assert (done.returncode, done.stderr) == (0, b"")


def test_only_requested_tasks_are_listed(file):
    told, _ = run(file(ATTENTION + SOFTMAX), {"do": "read", "tasks": ["attention"]})
    assert tasks(told) == ["attention"]


def test_the_child_exits_after_the_last_reply(file, tmp_path):
    note = tmp_path / "note"
    source = f"""
import atexit, threading, time
atexit.register(lambda: open({str(note)!r}, "w"))
threading.Thread(target=time.sleep, args=(1000,)).start()
"""
    told, done = run(file(SOFTMAX + source))
    assert tasks(told) == ["softmax"]
    assert done.returncode == 0
    assert not note.exists()


def test_prints_of_the_file_are_discarded(file):
    source = "import sys\nprint('a')\nprint('b', file=sys.stderr)\nassert sys.stdin.read() == ''"
    told, done = run(file(SOFTMAX + source), READ, {"do": "find", "names": ["softmax"]})
    assert told[1]["value"][0] == "softmax"
    assert tasks(told) == ["softmax"]
    assert done.stderr == b""
    assert b"a" not in done.stdout.splitlines()


def test_a_reply_survives_partial_writes(file):
    source = "import os\nwrite = os.write\nos.write = lambda to, text: write(to, text[:7])"
    told, _ = run(file(SOFTMAX + source))
    assert tasks(told) == ["softmax"]


def test_a_class_finds_the_module_that_it_is_in(file):
    source = "from __future__ import annotations\nfrom dataclasses import dataclass\n"
    source += "@dataclass\nclass Sizes:\n    d: int = 2\n"
    assert tasks(run(file(source + SOFTMAX))[0]) == ["softmax"]


@LINUX
def test_limits_are_set_for_memory_core_dumps_and_time(file):
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
    assert tasks(told) == ["softmax"]


@LINUX
def test_a_lower_inherited_memory_limit_is_accepted(file):
    import resource

    def low():
        resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30))

    told, _ = run(file(SOFTMAX), preexec_fn=low)
    assert tasks(told) == ["softmax"]


# -- errors in one task while other tasks are marked ----------------------------------------------


@pytest.mark.parametrize(
    ("error", "key"), [("MemoryError('no room')", "out-of-memory"), ("KeyboardInterrupt", "exits")]
)
def test_an_error_in_one_task_is_a_finding_and_the_next_is_marked(file, error, key):
    source = f"def softmax(x):\n    raise {error}\n"
    softmax, attention = check_file(file(source + ATTENTION))
    assert softmax.mistakes == (key,)
    assert error.split("(")[0] in softmax.message
    assert attention.mistakes == ("returns-input",)


def test_an_error_of_the_marker_is_the_verdict_on_the_task(file, monkeypatch):
    from qkv_marking.files import _mark_file

    def check(function, way, task, seed):
        if task == "softmax":
            raise ZeroDivisionError("ours")
        return mark(function, way, task=task, seed=seed)

    mark = _mark_file.check
    monkeypatch.setattr(_mark_file, "check", check)
    softmax, attention = check_file(file(ATTENTION + SOFTMAX))
    assert (softmax.mistakes, softmax.points) == (("not-marked",), 0)
    assert "the marker itself failed on softmax" in softmax.message
    assert "ZeroDivisionError: ours" in softmax.message
    assert attention.mistakes == ("returns-input",)


def test_an_oversized_output_is_not_sent(file):
    source = "import numpy as np\ndef softmax(x):\n    return {}\n"
    table = "[[0.0] * 999] * 99"
    view = "np.broadcast_to(1.0, (1 << 29,) * 2)"
    for huge in ("np.zeros(1 << 23)", "[0.0] * (1 << 23)", table, view):
        softmax, attention = check_file(file(source.format(huge) + ATTENTION))
        assert softmax.mistakes == ("out-of-memory",), huge
        assert attention.mistakes == ("returns-input",)


def test_a_builtin_without_a_signature_may_be_a_helper(file):
    softmax = next(iter(check_file(file(SOFTMAX + "block = max"))))
    said = "the parameters of this function do not fit the task: block(...)."
    assert f"Not marked for the task block, because {said}" in softmax.message

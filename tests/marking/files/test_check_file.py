"""Tests of files that learners hand in; each file runs in its own process."""

import os
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from processes import ends, ends_with_its_parent, until
from qkv_marking import CheckResult, _isolated, check_file, write_junit

SOFTMAX = """
import numpy as np
def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)
"""
ATTENTION = """
def attention(q, k, v):
    return softmax(q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])) @ v
"""


def only(path, task=None, **limits):
    (result,) = check_file(path, task, **limits)
    return result


def test_every_task_defined_in_the_file_is_marked(file):
    softmax, attention = check_file(file(ATTENTION + SOFTMAX))
    assert (softmax.task, softmax.points, softmax.passed) == ("softmax", 10, True)
    assert (attention.task, attention.points, attention.passed) == ("attention", 10, True)


def test_the_example_shows_a_returned_object_in_its_own_words(file):
    source = "class Rows:\n    def __str__(self):\n        return 'my rows'\n\n"
    result = only(file(source + "def softmax(x):\n    return Rows()"))
    assert result.mistakes == ("wrong-type",)
    assert result.example["yours"] == "my rows"


@pytest.mark.usefixtures("quick")
def test_only_the_requested_task_is_marked(file):
    result = only(file(SOFTMAX + ATTENTION), "attention")
    assert result.task == "attention"


@pytest.mark.usefixtures("quick")
def test_a_task_can_be_requested_by_function_name(file):
    both = "def masked_attention(q, k, v, mask):\n    return q\n\n"
    both += "def causal_mask(n):\n    return [[j <= i for j in range(n)] for i in range(n)]"
    (result,) = check_file(file(both), "causal_mask")
    assert (result.task, result.points) == ("mask", 10)
    (result,) = check_file(file(both), "mask")
    assert (result.task, result.points) == ("mask", 0)
    (result,) = check_file(file("def attention(q, k, v):\n    return v"), "causal_mask")
    assert (result.task, result.mistakes) == ("mask", ("missing-function",))
    assert "the file has no causal_mask." in result.message
    (result,) = check_file(file("def ("), "many_heads")
    assert (result.task, result.mistakes) == ("heads", ("syntax-error",))


def test_a_wrong_function_gets_its_mistake_hint_and_example(file):
    result = only(file("def softmax(x):\n    return x / x.sum(axis=-1, keepdims=True)"))
    assert result.mistakes == ("no-exp",)
    assert len(result.hint) == 3
    np.testing.assert_array_equal(result.example["x"], [[1, 0], [3, 1]])
    np.testing.assert_allclose(result.example["yours"], [[1, 0], [0.75, 0.25]])
    assert result.example["right"].dtype == np.float64


@pytest.mark.usefixtures("quick")
def test_attention_from_word_vectors_is_recognized_by_parameters(file):
    source = """
def attention(x, w_q, w_k, w_v):
    q, k, v = x @ w_q, x @ w_k, x @ w_v
    return softmax(q @ np.swapaxes(k, -1, -2)) @ v
"""
    result = only(file(SOFTMAX + source), "attention")
    assert result.mistakes == ("no-scaling",)
    assert "w_q" in result.example


def test_neighbouring_modules_are_imported_without_leaving_files(file, tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    file(SOFTMAX, "helpers_of_mine.py")
    path = file("from helpers_of_mine import *\n" + ATTENTION)
    assert only(path).points == 10
    assert {one.name for one in tmp_path.iterdir()} == {"mine.py", "helpers_of_mine.py"}


def test_a_relative_path_works_if_the_file_changes_directory(file, tmp_path, monkeypatch):
    file(SOFTMAX, "helpers_of_mine.py")
    path = file("import os\nos.chdir('/')\nfrom helpers_of_mine import softmax, np\n" + ATTENTION)
    monkeypatch.chdir(tmp_path)
    assert only(path.name).points == 10


@pytest.mark.usefixtures("quick")
def test_an_imported_function_is_marked_only_on_request(file):
    file(SOFTMAX, "helpers_of_mine.py")
    path = file("from helpers_of_mine import softmax\nimport numpy as np\n" + ATTENTION)
    assert [result.task for result in check_file(path)] == ["attention"]
    assert only(path, "softmax").points == 10


def test_a_file_runs_on_one_thread_and_knows_its_path(file, monkeypatch):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "4")
    source = "import os\nassert os.environ['OPENBLAS_NUM_THREADS'] == '1'\n"
    path = file(SOFTMAX + source + "assert os.path.basename(__file__) == 'mine.py'")
    assert only(path).points == 10


def test_files_with_library_names_or_blanks_are_marked(file):
    for name in ("numpy.py", "random.py", "qkv.py", "a file with blanks.txt"):
        assert only(file(SOFTMAX, name)).points == 10, name


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("head", ["if True:", "try:", "for _ in range(1):"])
def test_a_function_may_be_defined_inside_of_a_block(file, head):
    tail = "finally:\n    pass\n" if head == "try:" else ""
    body = SOFTMAX.strip().replace("\n", "\n    ")
    assert only(file(f"{head}\n    {body}\n{tail}")).points == 10


@pytest.mark.usefixtures("quick")
def test_an_array_with_the_name_of_a_task_is_not_marked(file):
    (result,) = check_file(file(SOFTMAX + "\nattention = softmax(np.eye(2))\nlogits = 3"))
    assert result.task == "softmax"


# -- errors before a function is called, and words of their messages ------------------------------

BROKEN = [
    ("syntax-error", "def softmax(x:\n    return x", "(mine.py, line 1)"),
    ("syntax-error", b"def softmax(x):\n    return x\0", "null bytes"),
    ("syntax-error", "(" * 100_000, ""),
    ("not-utf-8", b"# \xff\xfe\ndef softmax(x):\n    return x", ""),
    ("not-utf-8", b"\n\n\n# \xff\ndef softmax(x):\n    return x", ""),
    ("not-utf-8", b"name = 'caf\xe9'\ndef softmax(x):\n    return x", ""),
    ("not-utf-8", b"# coding: no-such\ndef softmax(x):\n    return x", ""),
    ("import-error", "import numpy\nimport no_such_package\n" + SOFTMAX, "line 2: ModuleNotFound"),
    ("import-error", "from numpy import no_such_name\n" + SOFTMAX, "line 1: ImportError"),
    ("file-raises", SOFTMAX + "\n1 / 0", "ZeroDivisionError"),
    ("file-raises", SOFTMAX + "\nraise KeyboardInterrupt", "KeyboardInterrupt"),
    ("exits", SOFTMAX + "\nimport sys\nsys.exit(3)", "line 8: SystemExit: 3"),
    ("exits", SOFTMAX + "\nimport os\nos._exit(0)", "exit code 0"),
    ("exits", "import sys\nsys.exit()\ndef softmax(x):\n    return x", "line 2: SystemExit"),
    ("exits", "import sys\n\nsys.exit('nothing yet')", "line 3: SystemExit: nothing yet"),
    ("exits", "quit()", "line 1: SystemExit"),
    ("exits", "import os\nos._exit(3)", "exit code 3"),
    ("file-raises", "x = 1 / 0", "line 1: ZeroDivisionError"),
    ("asks-for-input", "name = input()\n" + SOFTMAX, "line 1: EOFError"),
    ("no-function", "def mine(q, k, v):\n    return v", "it defines mine;"),
    ("no-function", "", "it defines nothing;"),
    ("process-died", SOFTMAX + "\nimport os\nos.abort()", "SIGABRT"),
    ("out-of-memory", SOFTMAX + "\nx = np.ones((1 << 20, 1 << 20))", "MemoryError"),
]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("key", "source", "shows"), BROKEN)
def test_the_fault_of_a_broken_file_is_named(file, key, source, shows):
    result = only(file(source))
    assert result.mistakes == (key,), str(result)
    assert (result.passed, result.points, result.task) == (False, 0, None)
    assert len(result.hint) == 3
    assert shows in result.message


@pytest.mark.usefixtures("quick")
def test_a_file_error_belongs_to_the_requested_task(file):
    assert only(file("def softmax(x:"), "softmax").task == "softmax"


# -- helpers with the name of a task's function ---------------------------------------------------

HELPERS = [
    ("step", "def step(params, grads, lr):\n    return params", "step(params, grads, lr)"),
    ("step", "def step(m, batch, a, b, c):\n    return m.step(batch)", "step(m, batch, a, b, c)"),
    ("block", "def block(name):\n    return name", "block(name)"),
    ("positions", "def positions(text):\n    return text.split()", "positions(text)"),
    ("decoder", "def decoder(text):\n    return text.split()", "decoder(text)"),
]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("name", "source", "said"), HELPERS)
def test_helpers_are_marked_only_on_request_or_alone(file, name, source, said):
    path = file(SOFTMAX + source)
    (result,) = check_file(path)
    assert (result.task, result.points) == ("softmax", 10)
    (line,) = [one for one in result.message.splitlines() if one.startswith("Not marked for ")]
    assert line.endswith(f": {said}.")
    task = "kv-cache" if name == "step" else name
    assert only(path, task).task == task  # the task is requested
    assert only(path, task).points == 0
    assert only(file(source)).task == task  # the file has no other function


@pytest.mark.usefixtures("quick")
def test_a_raising_answer_with_a_helper_name_is_marked(file):
    source = "def step(x, cache, w_q, w_k, w_v):\n    return no_such_name"
    softmax, step = check_file(file(SOFTMAX + source))
    assert (step.task, step.mistakes) == ("kv-cache", ("name-unknown",))
    assert "Not marked" not in softmax.message


@pytest.mark.usefixtures("quick")
def test_attention_is_marked_even_with_wrong_parameters(file):
    softmax, attention = check_file(file(SOFTMAX + "def attention(a):\n    return a"))
    assert (softmax.points, attention.mistakes) == (10, ("wrong-parameters",))


# -- functions that exit, fail or do not end ------------------------------------------------------

ENDS = [
    ("exits", "import sys\ndef softmax(x):\n    sys.exit()"),
    ("exits", "import os\ndef softmax(x):\n    os._exit(0)"),
    ("exits", "def softmax(x):\n    raise KeyboardInterrupt"),
    ("process-died", "import os\ndef softmax(x):\n    os.abort()"),
    ("process-died", "import os\ndef softmax(x):\n    os.kill(os.getpid(), 9)"),
    ("asks-for-input", "def softmax(x):\n    return float(input('x? '))"),
    ("endless-recursion", "def softmax(x):\n    return softmax(x)"),
    (
        "out-of-memory",
        "import numpy as np\ndef softmax(x):\n    return np.ones((1 << 20, 1 << 20))",
    ),
    ("out-of-memory", "def softmax(x):\n    return [0] * (1 << 33)"),
    ("name-unknown", "def softmax(x):\n    return y"),
    ("not-a-function", "three = 3\nsoftmax = three"),
    ("wrong-parameters", "def softmax(x, y):\n    return x"),
    ("wrong-parameters", "class softmax:\n    def __init__(self):\n        pass"),
    (
        "wrong-type",
        "class Odd:\n    def __str__(self):\n        1 / 0\ndef softmax(x):\n    return Odd()",
    ),
    ("wrong-type", "def softmax(x):\n    return x + 1j"),
    ("returns-nothing", "def softmax(x):\n    x.sum()"),
]


@pytest.mark.attack
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("key", "source"), ENDS)
def test_a_function_that_does_not_return_is_a_finding(file, key, source):
    result = only(file(source))
    assert result.mistakes == (key,), str(result)
    assert (result.passed, result.points, result.task) == (False, 0, "softmax")
    assert len(result.hint) == 3


@pytest.mark.attack
@pytest.mark.skipif(sys.platform != "linux", reason="other systems bound other memory")
def test_memory_is_bounded_for_the_function_and_its_output(file):
    source = "def softmax(x):\n    bytearray(300 << 20)"
    assert only(file(source), megabytes=250).mistakes == ("out-of-memory",)
    assert only(file(source)).mistakes == ("returns-nothing",)
    source = "import numpy as np\ndef softmax(x):\n    return np.zeros(1 << 26)"  # 512 MB
    assert only(file(source), megabytes=500).mistakes == ("out-of-memory",)


@pytest.mark.attack
@pytest.mark.parametrize("body", ["while True: pass", "import time; time.sleep(1e6)"])
def test_an_endless_loop_is_ended_and_the_other_tasks_are_marked(file, body):
    source = f"def softmax(x):\n    {body}\ndef attention(q, k, v):\n    pass"
    softmax, attention = check_file(file(source), seconds=1)
    assert (softmax.task, softmax.mistakes) == ("softmax", ("endless-loop",))
    assert "after 1 s" in softmax.message
    assert (attention.task, attention.mistakes) == ("attention", ("returns-nothing",))


@pytest.mark.attack
def test_a_file_that_defines_nothing_and_never_ends_is_ended(file):
    result = only(file("while True: pass"), seconds=0.7)
    assert (result.mistakes, result.task) == (("endless-loop",), None)


@pytest.mark.attack
@pytest.mark.usefixtures("quick")
def test_a_file_that_loops_after_its_functions_is_ended(file):
    result = only(file(SOFTMAX + "\nwhile True: pass"), "softmax", seconds=0.7)
    assert (result.mistakes, result.task) == (("endless-loop",), "softmax")


@pytest.mark.attack
def test_a_process_without_cpu_time_is_waited_for(file, tmp_path, monkeypatch):
    note, asked = tmp_path / "note", []

    def processor(pid):
        if note.exists():  # the loop has begun
            asked.append(pid)
        return True, max(0.0, len(asked) - 15.0)  # CPU seconds: 0 for the first 15 calls

    monkeypatch.setattr(_isolated, "processor", processor)
    monkeypatch.setattr(_isolated, "_PATIENCE", 1e6)
    monkeypatch.setattr(_isolated, "_TICK", 0.01)
    source = f"def softmax(x):\n    open({str(note)!r}, 'w')\n    while True: pass"
    result = only(file(source), seconds=0.05)  # five ticks
    assert result.mistakes == ("endless-loop",)
    assert len(asked) > 15


@pytest.mark.attack
def test_a_process_that_a_busy_machine_puts_to_sleep_is_waited_for(file, monkeypatch):
    """The process sleeps at each measurement, but uses 0.04 s of CPU time per second."""
    monkeypatch.setattr(_isolated, "processor", lambda pid: (False, 0.04 * time.monotonic()))
    source = "import time\ndef softmax(x):\n    time.sleep(4)"
    assert only(file(source), seconds=2).mistakes == ("returns-nothing",)


@pytest.mark.attack
@pytest.mark.usefixtures("quick")
def test_waiting_for_a_process_without_cpu_time_ends(file, monkeypatch):
    monkeypatch.setattr(_isolated, "processor", lambda pid: (True, 0.0))
    monkeypatch.setattr(_isolated, "_PATIENCE", 3)
    monkeypatch.setattr(_isolated, "_TICK", 0.01)
    begin = time.monotonic()
    result = only(file("def softmax(x):\n    while True: pass"), seconds=0.2)
    assert result.mistakes == ("endless-loop",)
    assert time.monotonic() - begin >= 0.6  # three times the time limit


@pytest.mark.attack
@pytest.mark.usefixtures("quick")
def test_the_waiting_callback_is_called(file, monkeypatch):
    monkeypatch.setattr(_isolated, "_TICK", 0.01)
    calls = []
    # the process, which ends after its time limit, has used no CPU time before the third call
    monkeypatch.setattr(_isolated, "processor", lambda pid: (True, max(0.0, len(calls) - 2)))
    monkeypatch.setattr(_isolated, "_PATIENCE", 200)
    check_file(file("while True: pass"), seconds=0.3, waiting=lambda: calls.append(1))
    assert len(calls) >= 3


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux says it so")
def test_a_process_that_sleeps_does_not_wait_for_a_processor():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as sleeper:
        until(lambda: not _isolated.processor(sleeper.pid)[0], "Python waits for input")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux says it so")
def test_the_measured_cpu_time_equals_process_time():
    sum(range(3_000_000))
    before = time.process_time()
    runs, used = _isolated.processor(os.getpid())
    assert runs
    assert before - 0.02 <= used <= time.process_time() + 0.02  # a tick of the clock takes 0.01 s
    assert _isolated.processor(2**22 + 1) == (False, 0.0)


@pytest.mark.attack
def test_an_exit_in_one_task_leaves_the_others_marked(file):
    source = SOFTMAX.replace("softmax", "weights") + ATTENTION.replace("softmax", "weights")
    first, second = check_file(file(source + "def softmax(x):\n    import os; os._exit(1)"))
    assert (first.task, first.mistakes) == ("softmax", ("exits",))
    assert (second.task, second.points) == ("attention", 10)


@pytest.mark.usefixtures("quick")
def test_printing_is_a_convention_and_does_not_disturb(file, capfd):
    loud = SOFTMAX.replace("e = ", "[print('x' * 99) for _ in range(5000)]; e = ")
    loud += "\nimport os, sys\nprint('{}')\nos.write(1, b'{}')\nprint('oh', file=sys.stderr)"
    result = only(file(loud))
    assert (result.passed, result.points, result.conventions) == (True, 10, ("prints",))
    assert "5,000 lines" in result.message
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "source",
    [
        SOFTMAX.replace("    e = ", "    while True: print('x')\n    e = "),
        SOFTMAX + "\nwhile True: print('x')",
        SOFTMAX + "\nwhile True: print('x' * 10_000, end='')",
    ],
)
def test_a_flood_of_prints_is_no_endless_loop(file, source):
    result = only(file(source))
    assert result.mistakes == ("prints-too-much",)
    assert "more than 100,000 lines are printed" in result.message


@pytest.mark.usefixtures("quick")
def test_a_stub_below_the_solution_is_named(file):
    stub = "def softmax(x): ..."
    result = only(file(SOFTMAX.strip() + "\n\n" + stub))
    assert result.mistakes == ("returns-nothing",)
    assert "defined in line 2 and line 6: only the last definition counts." in result.message
    assert "definition" not in only(file(stub + SOFTMAX)).message


@pytest.mark.usefixtures("quick")
def test_writes_to_other_file_descriptors_do_not_disturb(file):
    source = SOFTMAX + "\nimport os\nfor number in range(3, 20):\n    try:\n"
    source += "        os.write(number, b'{\\n')\n    except OSError:\n        pass"
    assert only(file(source)).points == 10


@pytest.mark.usefixtures("quick")
def test_a_missing_function_verdict_lists_the_defined_functions(file):
    result = only(file("def soft_max(x):\n    return x\ndef other(): ..."), "softmax")
    assert result.mistakes == ("missing-function",)
    assert "the file has no softmax" in result.message
    assert "it has other, soft_max" in result.message


LONE = SOFTMAX.replace("softmax", "mine")


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("task", ["softmax", None])
def test_a_lone_function_of_any_name_is_marked(file, task):
    """Without a requested task, only the task softmax gives a function the parameter `x` alone."""
    right = only(file(LONE), task)
    assert (right.task, right.points) == ("softmax", 10)
    wrong = only(file("def mine(x):\n    return x / x.sum(axis=-1, keepdims=True)"), task)
    assert (wrong.task, wrong.mistakes) == ("softmax", ("no-exp",))


@pytest.mark.usefixtures("quick")
def test_a_lone_function_is_marked_for_the_requested_task(file):
    mine = file("def mine(query, key, value):\n    return value")
    assert only(mine).mistakes == ("no-function",)  # its parameters fit several tasks
    assert "missing-function" not in only(mine, "attention").mistakes
    mask = file("def mine(n):\n    return [[j <= i for j in range(n)] for i in range(n)]")
    assert only(mask, "causal_mask").points == 10
    assert only(mask, "mask").points == 10


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "source", [LONE + "\ndef other(x): ...", SOFTMAX, "class Mine:\n    pass", "mine = 3"]
)
def test_a_function_that_may_belong_to_another_task_is_not_marked(file, source):
    assert only(file(source), "closeness").mistakes == ("missing-function",)


@pytest.mark.attack
def test_no_process_is_left_behind(file, tmp_path):
    note = tmp_path / "children"
    source = f"""
import os, subprocess, sys
one = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
open({str(note)!r}, "w").write(f"{{os.getpid()}} {{one.pid}}")
def softmax(x):
    while True: pass
"""
    assert only(file(source), seconds=1).mistakes == ("endless-loop",)
    for number in note.read_text().split():
        assert ends(int(number))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps the number of a dead parent")
@pytest.mark.parametrize(
    "busy",
    ["while True: pass", "import itertools; sum(itertools.repeat(0))"],
    ids=["a loop", "a call that never yields to other threads"],
)
def test_a_busy_process_ends_when_the_marker_is_killed(busy, file, tmp_path):
    note = tmp_path / "child"
    source = f"import os\nopen({str(note)!r}, 'w').write(str(os.getpid()))\n{busy}"
    path = str(file(source))
    program = f"from qkv_marking import check_file; check_file({path!r}, seconds=600)"
    assert ends_with_its_parent(program, note)


def test_files_in_the_working_folder_do_not_shadow_libraries(file, tmp_path, monkeypatch):
    path = file(SOFTMAX)
    file("1 / 0", "numpy.py")
    monkeypatch.chdir(tmp_path)
    assert only(path).points == 10


# -- bad requests ---------------------------------------------------------------------------------


def test_a_bad_request_is_an_error(file, tmp_path):
    path = file(SOFTMAX)
    with pytest.raises(ValueError, match="task 'x' is unknown"):
        check_file(path, "x")
    with pytest.raises(FileNotFoundError):
        check_file(tmp_path / "none.py")
    with pytest.raises(IsADirectoryError):
        check_file(tmp_path)
    with pytest.raises(ValueError, match="seconds is 0; pass a positive number"):
        check_file(path, seconds=0)
    with pytest.raises(ValueError, match="megabytes is -1; pass a positive number"):
        check_file(path, megabytes=-1)


def test_a_python_that_does_not_start_is_a_runtime_error(file, monkeypatch):
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(RuntimeError, match="Python did not start"):
        check_file(file(SOFTMAX))


# -- JUnit ----------------------------------------------------------------------------------------


def test_junit_has_a_test_for_each_task(tmp_path):
    right = CheckResult("softmax is right.", task="softmax")
    wrong = CheckResult("no \x1b[1m, <&>\nmore", ("a", "b"), points=2, task="attention")
    write_junit(tmp_path / "all.xml", [("one.py", (right, wrong)), ("two.py", (right,))])
    root = ElementTree.parse(tmp_path / "all.xml").getroot()
    assert (root.tag, root.get("tests"), root.get("failures")) == ("testsuites", "3", "1")
    one, two = root
    tests = {suite.get("name"): suite.get("tests") for suite in root}
    assert tests == {"one.py": "2", "two.py": "1"}
    assert [test.get("name") for test in one] == ["softmax", "attention"]
    failure = one[1].find("failure")
    assert failure.get("message") == "no \N{REPLACEMENT CHARACTER}[1m, <&>"
    assert failure.get("type") == "a b"
    assert {p.get("name"): p.get("value") for p in one[1].find("properties")}["points"] == "2"
    assert one[0].find("failure") is None
    assert two[0].find("failure") is None


def test_junit_is_written_whole_or_not_at_all(tmp_path):
    target = tmp_path / "all.xml"
    target.write_text("before")
    with pytest.raises(AttributeError):
        write_junit(target, [("one.py", (None,))])
    assert target.read_text() == "before"
    assert [one.name for one in tmp_path.iterdir()] == ["all.xml"]

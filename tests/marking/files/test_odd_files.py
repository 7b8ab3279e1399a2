"""Tests that each student's file gets its own verdict, whatever the code in the file does."""

import os
import sys

import pytest
from click.testing import CliRunner

from qkv.cli import main
from qkv_marking import _isolated, check_file
from qkv_marking._errors import in_words, words_of

from .test_check_file import SOFTMAX, only

pytestmark = [pytest.mark.attack, pytest.mark.usefixtures("quick")]

FORK = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
ATTENTION = "\ndef attention(q, k, v):\n    return q"  # a wrong function, which is also marked
ODD = """
class Odd:
    def __getattribute__(self, name):
        raise RuntimeError("hands off")
    def __str__(self):
        raise RuntimeError
    __repr__ = __len__ = __iter__ = __eq__ = __bool__ = __reduce__ = __array__ = __str__
    __hash__ = None
"""
META = """
class Meta(type):
    def {method}(cls, *given):
        raise RuntimeError("not like this")
class SelfAttention(metaclass=Meta):
    def __init__(self, embed_dim, num_heads):
        pass
"""
LIES = "\nclass Lies:\n    __class__ = property(lambda self: {tells})\n"
BACK = """
import builtins, json, os, sys, threading, warnings
import numpy as np
def softmax(x):
    return x
"""
WRITTEN = """
for number in range(3, 16):
    for line in {lines}:
        try:
            os.write(number, line + bytes([10]))
        except OSError:
            pass
"""
FORGED = [
    b"3",
    b"{}",
    b'{"tasks": 5}',
    b'{"tasks": [5]}',
    b'{"task": "mask", "result": 3}',
    b'{"task": "mask", "result": {"example": []}}',
    b'{"task": "mask", "result": {"message": "", "example": {}}, "helper": ""}',
]

# pairs of a source text and the first mistake in its verdict
FILES = [
    ("class E(Exception):\n    def __str__(self):\n        raise self\nraise E", "file-raises"),
    ("class E(Exception):\n    def __str__(self):\n        return 3\nraise E", "file-raises"),
    ("class E(SyntaxError):\n    def __str__(self):\n        1 / 0\nraise E", "syntax-error"),
    ("class E(BaseException):\n    __str__ = None\nraise E", "file-raises"),
    ("raise ValueError('x' * 10_000_000)", "file-raises"),
    (
        "class E(Exception):\n    def __str__(self):\n        exit()\n    __repr__ = __str__\n"
        "def softmax(x):\n    raise E",
        "raises",
    ),
    (
        "class E(KeyError):\n    def __str__(self):\n        raise self\n    __repr__ = __str__\n"
        "def decoder(ids, weights, config):\n    raise E(E())",
        "decoder-no-such-name",
    ),
    (ODD + "def softmax(x):\n    return Odd()", "raises"),
    (ODD + "def softmax(x):\n    return [Odd()]", "wrong-type"),
    (ODD + "def step(x, cache, w_q, w_k, w_v):\n    return Odd()", "raises"),
    (ODD + "def step(x, cache, w_q, w_k, w_v):\n    return x @ w_v, Odd()", "cache-unused"),
    (ODD + "def block(x, parameters, more=Odd()):\n    return x", "returns-input"),
    (ODD + "def softmax(x, y=Odd(), *, z):\n    return x", "wrong-parameters"),
    (ODD + "odd = Odd()\nsoftmax = odd", "not-a-function"),
    (
        ODD + "class SelfAttention:\n    def __init__(self, embed_dim, num_heads):\n"
        "        self.w_q = Odd()\n    def __call__(self, x):\n        return x",
        "returns-input",
    ),
    (LIES.format(tells="1 / 0") + "def softmax(x):\n    return Lies()", "raises"),
    (LIES.format(tells="tuple") + "def softmax(x):\n    return Lies()", "wrong-type"),
    (META.format(method="__call__"), "raises"),
    (META.format(method="__getattribute__"), "not-marked"),
    (META.format(method="__instancecheck__"), "class-not-called"),
    ("def __getattr__(name):\n    raise RuntimeError\nif 0:\n    softmax = odd", "not-marked"),
    (BACK.replace("return x", "return x.astype(np.longdouble)"), "returns-input"),
    ("def softmax(x):\n    return 10**5000", "wrong-type"),
    ("def softmax(x):\n    return 'x' * (1 << 24)", "wrong-type"),
    (BACK.replace("return x", "return np.broadcast_to(1.0, (1 << 29, 1 << 29))"), "out-of-memory"),
    (BACK + "softmax.__name__ = '\\ud800\\x1b[2J'", "returns-input"),
    # files that damage libraries or the process
    (BACK + "sys.setrecursionlimit(60)", None),
    (BACK + "sys.modules.clear()", None),
    (BACK + "sys.stdout.close()\nsys.stdin.close()", "returns-input"),
    (BACK + "np.array_equal = np.abs = np.unique = None", "returns-input"),
    (BACK + "builtins.isinstance = builtins.len = None", None),
    (BACK + "json.dumps = None", "returns-input"),
    (BACK + "os._exit = os.getpid = print", "returns-input"),
    (BACK + "warnings.simplefilter('error')", "returns-input"),
    (BACK + "np.seterr(all='raise')", "returns-input"),
    (BACK + "threading.Thread(target=threading.Event().wait).start()", "returns-input"),
    (BACK + "os.closerange(3, 256)", "not-marked"),
    (BACK + "os.closerange(0, 256)\nwhile True: pass", "not-marked"),
    (BACK.replace("return", "os.closerange(0, 256)\n    while True: pass;"), "not-marked"),
    (BACK + WRITTEN.format(lines=[b"[" * 99_999]), "returns-input"),
    (BACK + WRITTEN.format(lines=FORGED), "returns-input"),
]


@pytest.mark.parametrize(("source", "key"), FILES)
def test_a_file_has_a_verdict_whatever_it_does(file, source, key):
    waits = "while True" in source or "closerange(0" in source
    first, *_ = check_file(file(source), seconds=0.7 if waits else 10)
    assert not first.passed
    assert key is None or first.mistakes == (key,), str(first)
    assert len(str(first)) < 20_000
    assert len(first.hint) == 3


@FORK
@pytest.mark.parametrize(
    "source",
    [
        "import os\nos.fork()\n" + SOFTMAX + ATTENTION,
        "import os\nif not os.fork(): os._exit(0)\n" + SOFTMAX + ATTENTION,
    ],
)
def test_a_file_that_forks_is_marked_once(file, source):
    softmax, attention = check_file(file(source))
    assert (softmax.task, softmax.points) == ("softmax", 10)
    assert (attention.task, attention.mistakes) == ("attention", ("returns-input",))


@FORK
@pytest.mark.parametrize(
    ("ends", "key"),
    [
        ("os.kill(os.getppid(), signal.SIGKILL)", "no-function"),
        ("os.killpg(os.getpgid(os.getppid()), signal.SIGTERM)", "process-died"),
        ("os.kill(0, signal.SIGKILL)", "process-died"),
        ("os.kill(os.getpid(), signal.SIGSTOP)", "endless-loop"),
        ("os.kill(0, signal.SIGSTOP)", "endless-loop"),
        ("signal.alarm(1); signal.pause()", "process-died"),
    ],
)
def test_a_file_that_ends_its_parent_ends_itself_alone(file, ends, key):
    source = f"import os, signal\n{ends}\n"
    seconds = 1.5 if key == "endless-loop" else 10  # an alarm rings after 1 s at the earliest
    assert only(file(source), seconds=seconds).mistakes == (key,)


@FORK
def test_a_process_that_left_its_group_is_ended_too(file, tmp_path):
    from processes import ends

    note = tmp_path / "process"
    source = f"import os\nos.setsid()\nopen({str(note)!r}, 'w').write(str(os.getpid()))\n"
    assert only(file(source + "while True: pass"), seconds=0.7).mistakes == ("endless-loop",)
    assert ends(int(note.read_text()))


def test_the_words_of_an_error_are_short_and_never_raise():
    class Silent(Exception):
        def __str__(self):
            raise SystemExit

    assert in_words(Silent()) == "Silent: (the message cannot be read)"
    assert words_of(Silent()) == "a Silent"
    assert len(in_words(ValueError("ab " * 10**6))) < 1100
    assert in_words(ValueError(" a\n b ")) == "ValueError: a b"


# -- the class ------------------------------------------------------------------------------------


@pytest.fixture
def handed_in(tmp_path):
    def write(**sources):
        for name, source in sources.items():
            (tmp_path / "class" / name).mkdir(parents=True)
            if source is not None:
                (tmp_path / "class" / name / "a.py").write_text(source)
        return tmp_path / "class"

    return write


def table(*args):
    return CliRunner().invoke(main, ["check", *map(str, args)], env={"COLUMNS": "200"})


def test_one_file_does_not_keep_the_others_from_the_table(handed_in, tmp_path):
    odd = {
        "b": "class E(Exception):\n    def __str__(self):\n        raise self\nraise E",
        "c": META.format(method="__getattribute__"),
        "d": "import os\nos.fork()\n" + SOFTMAX + ATTENTION,
        "e": "import os\nos.killpg(os.getpgid(os.getppid()), 9)",
    }
    folder = handed_in(a=SOFTMAX, **odd, f=SOFTMAX)
    result = table(folder, "--csv", tmp_path / "all.csv")
    assert result.exit_code == 1
    rows = [line.split(",") for line in (tmp_path / "all.csv").read_text().splitlines()]
    assert [row[-1] for row in rows[1:]] == [
        "", "file-raises", "not-marked", "returns-input", "process-died", "",
    ]  # fmt: skip
    assert [row[1] for row in rows] == ["softmax (10)", "10", "", "", "10", "", "10"]


def test_a_file_that_cannot_be_read_is_a_row_of_the_table(handed_in, tmp_path, monkeypatch):
    folder = handed_in(a=SOFTMAX, b=None, c=SOFTMAX)
    (folder / "b" / "_loop.py").symlink_to("_loop.py")
    (folder / "b" / "nowhere.py").symlink_to("no such file")
    if hasattr(os, "mkfifo"):
        os.mkfifo(folder / "b" / "pipe.py")  # a pipe without a writer
    mark = check_file

    def refused(path, *given, **named):
        if "/c/" in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return mark(path, *given, **named)

    monkeypatch.setattr("qkv_marking.check_file", refused)
    # this file is in no student's folder, so the table has a row per file, not per student
    (tmp_path / "class" / "other.py").touch()
    lines = [line.split() for line in table(folder).stdout.splitlines()]
    assert [line[1:] for line in lines[1:5]] == [
        ["10", "10"],
        ["0", "unreadable"],
        ["0", "unreadable"],
        ["0", "unreadable"],
    ]


def test_a_folder_with_nothing_in_it_is_a_row_beside_others(handed_in):
    folder = handed_in(a=SOFTMAX, b=None)
    result = table(folder / "a", folder / "b")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[2].split()[1:] == ["0", "nothing-handed-in"]
    (folder / "b" / "mine.zip").write_bytes(b"PK\x03\x04 and more")
    alone = table(folder / "b")
    assert alone.exit_code == 1
    assert "nothing-handed-in" in alone.stdout


def test_a_failure_of_the_marker_is_a_verdict_and_the_next_file_is_marked(handed_in, monkeypatch):
    folder = handed_in(a=SOFTMAX, b=SOFTMAX)
    start = _isolated.subprocess.Popen

    def once(*given, **named):
        monkeypatch.setattr(_isolated.subprocess, "Popen", start)
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(_isolated.subprocess, "Popen", once)
    lines = [line.split() for line in table(folder).stdout.splitlines()]
    assert [line[1:] for line in lines[1:3]] == [["0", "unreadable"], ["10", "10"]]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_an_undecodable_file_name_is_printed_and_written(handed_in, tmp_path):
    folder = handed_in(a=SOFTMAX)
    name = os.fsdecode(b"\xff\n\x1b[2J=.py")
    (folder / "a" / "a.py").rename(folder / name)
    outputs = [f"--{kind}={tmp_path / f'all.{kind}'}" for kind in ("csv", "html")]
    result = table(folder, *outputs, f"--junit={tmp_path / 'all.xml'}")
    assert result.exit_code == 0, result.stderr
    assert "\\udcff\\n\\x1b[2J=.py" in result.stdout
    assert table(folder, "--json").exit_code == 0
    assert f"{folder}/\\udcff\\n\\x1b[2J=.py, softmax: passed" in table(folder / name).stdout


def test_terminal_codes_in_errors_are_escaped(file):
    result = table(file("raise ValueError('\\ud800\\x1b[2J')"))
    assert result.exit_code == 1
    assert "ValueError: \\ud800\\x1b[2J" in result.stdout


def test_an_unwritable_output_leaves_the_other_outputs(handed_in, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("qkv_marking.write_junit", full)
    outputs = [f"--csv={tmp_path / 'all.csv'}", f"--junit={tmp_path / 'all.xml'}"]
    result = table(handed_in(a=SOFTMAX), *outputs)
    assert result.exit_code == 1
    assert result.stderr.endswith("all.xml cannot be written: No space left on device\n")
    assert "10" in result.stdout
    assert "a,10,10" in (tmp_path / "all.csv").read_text()

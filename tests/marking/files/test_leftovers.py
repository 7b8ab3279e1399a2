"""Tests that nothing which a student's code starts or writes outlives the marking."""

import sys
import tempfile

import pytest

from processes import ends, ends_with_its_parent, until
from qkv_marking import check_file
from qkv_marking.files import _own_folder

from .test_check_file import SOFTMAX

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="other systems do not list processes")
SLEEPS = "import time; time.sleep(1000)"
DAEMONS = {
    "setsid": "subprocess.Popen(SLEEPS, start_new_session=True).pid",
    "no environment": "subprocess.Popen(SLEEPS, start_new_session=True, env={}).pid",
    "double fork": "daemon()",
}
START = f"""
import os, subprocess, sys, time
SLEEPS = [sys.executable, "-c", {SLEEPS!r}]
def daemon():
    read, write = os.pipe()
    if not os.fork():
        os.setsid()
        if number := os.fork():
            os.write(write, str(number).encode())
            os._exit(0)
        time.sleep(1000)
    return int(os.read(read, 99))
"""


@pytest.fixture
def file(tmp_path):
    def write(source):
        path = tmp_path / "own" / "mine.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
        return path

    return write


@LINUX
@pytest.mark.parametrize("end", ["", "os._exit(0)", "os.kill(os.getppid(), 9)"])
@pytest.mark.parametrize("daemon", DAEMONS)
def test_a_daemon_ends_with_the_marking(file, tmp_path, daemon, end):
    if (daemon, end) == ("no environment", "os.kill(os.getppid(), 9)"):
        pytest.skip("nothing connects this process with the marker")
    note = tmp_path / "note"
    source = f"open({str(note)!r}, 'w').write(str({DAEMONS[daemon]}))\n{end}\n"
    check_file(file(SOFTMAX + START + source))
    number = int(note.read_text())
    assert ends(number)


def test_a_file_runs_in_a_copy_of_its_folder(file, tmp_path, monkeypatch):
    path = file(SOFTMAX + "import helper\nassert open('deep/data.txt').read() == 'data'\n"
                "open('written', 'w').write('x')\nopen('helper.py', 'a').write('y = 2')\n"
                "import tempfile\ntempfile.mkstemp()\n")  # fmt: skip
    (path.parent / "helper.py").write_text("x = 1\n")
    (path.parent / "deep").mkdir()
    (path.parent / "deep" / "data.txt").write_text("data")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (result,) = check_file(path)
    assert result.points == 10, str(result)
    assert {one.name for one in path.parent.iterdir()} == {"mine.py", "helper.py", "deep"}
    assert (path.parent / "helper.py").read_text() == "x = 1\n"
    assert not [*(tmp_path / "tmp").iterdir()]


@LINUX
def test_the_copy_is_deleted_if_the_marker_is_killed(file, tmp_path):
    note, folder = tmp_path / "child", tmp_path / "tmp"
    folder.mkdir()
    path = file(f"import os\nopen({str(note)!r}, 'w').write(str(os.getpid()))\nwhile True: pass")
    program = f"import os; os.environ['TMPDIR'] = {str(folder)!r}\n"
    program += f"from qkv_marking import check_file; check_file({str(path)!r}, seconds=600)"
    assert ends_with_its_parent(program, note)
    until(lambda: [*folder.iterdir()], "the copy is deleted", lambda left: not left)


def test_only_a_part_of_a_large_folder_is_copied(file, tmp_path, monkeypatch):
    path = file(SOFTMAX)
    for name in ("a", "b", "c", ".hidden", "other.ipynb"):
        (path.parent / name).write_text("12345")
    (path.parent / "link").symlink_to("a")
    monkeypatch.setattr(_own_folder, "_MOST_BYTES", len(SOFTMAX) + 10)
    with _own_folder.copy_folder(path) as (copy, folder):
        assert copy.read_text() == SOFTMAX
        assert len([*copy.parent.iterdir()]) == 3
    assert not folder.exists()


@LINUX
def test_a_large_file_is_refused(file):
    source = "with open('large', 'wb') as out:\n    for _ in range(200): out.write(bytes(1 << 20))"
    (result,) = check_file(file(SOFTMAX + source), seconds=60)  # a disk may write 10 MB/s
    assert result.mistakes == ("file-raises",)
    assert "File too large" in result.message


@LINUX
def test_many_large_files_end_the_marking(file):
    source = "import time\nfor n in range(500):\n    time.sleep(0.02)\n"
    source += "    with open(str(n), 'wb') as out: out.write(bytes(10 << 20))"
    (result,) = check_file(file(SOFTMAX + source), seconds=60)  # a disk may write 10 MB/s
    assert result.mistakes == ("writes-too-much",)

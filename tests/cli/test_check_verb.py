"""Tests of `qkv check`: its output, its files and its exit codes."""

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from processes import child_of, ends
from qkv.cli import main
from qkv_marking import check_file

RIGHT = """
import numpy as np
def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)
"""
WRONG = "def attention(q, k, v):\n    return q @ k.T @ v\n"
KEYS = {
    "file",
    "task",
    "passed",
    "points",
    "max_points",
    "mistakes",
    "fragile",
    "conventions",
    "hint",
    "helped_by",
    "reason",
    "text",
}


def run(*args):
    return CliRunner().invoke(main, ["check", *map(str, args)])


@pytest.fixture(autouse=True, scope="module")
def _marked_once():
    """Start only one process for each source, and reuse its marks; each test prints the marks."""
    marks, mark = {}, check_file

    def once(file, task, **options):
        key = Path(file).read_bytes(), task, options["seconds"], options["seed"]
        if key not in marks:
            marks[key] = mark(file, task, **options)
        return marks[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("qkv_marking.check_file", once)
        yield


@pytest.fixture
def file(tmp_path):
    def write(source, name="mine.py"):
        path = tmp_path / name
        path.write_text(source)
        return path

    return write


def test_a_passing_file_exits_with_0(file):
    path = file(RIGHT)
    result = run(path)
    assert result.exit_code == 0
    first, second, *_ = result.stdout.splitlines()
    assert first == f"{path}, softmax: passed, 10 of 10 points"
    assert second == "  softmax is right."
    assert result.stderr == ""


def test_a_failing_file_exits_with_1_and_reports_tasks_and_total(file):
    path = file(RIGHT + WRONG)
    result = run(path)
    assert result.exit_code == 1
    assert f"{path}, softmax: passed, 10 of 10 points\n" in result.stdout
    assert f"\n\n{path}, attention: not passed, 5 of 10 points\n" in result.stdout
    assert result.stdout.endswith("\n1 of 2 passed, 15 of 20 points\n")


def test_hints_come_in_three_grades(file):
    path = file("def softmax(x):\n    return x / x.sum(axis=-1, keepdims=True)")
    line = "e = np.exp(scores)"
    where = "Hint 2, where to look: the lines that turn scores into weights"
    nudge = "Hint 1: Use a negative score"
    one, two, three = (run(path, "--hint", grade).stdout for grade in (1, 2, 3))
    assert run(path).stdout == one == run(path, "--hints", 1).stdout
    none = run(path, "--hints", 0).stdout
    assert "Hint" not in none
    assert "--hints 1 says what to try." in none
    assert [text in one for text in (nudge, where, line)] == [True, False, False]
    assert [text in two for text in (nudge, where, line)] == [True, True, False]
    assert line in three
    assert "--hints 2 says where to look." in one
    assert "--hints 3 shows the correct line." in two
    assert "--hints" not in three
    order = ("softmax: ", "It shows: ", "The smallest input that shows it:", nudge, where, line)
    places = [three.rindex(text) for text in order]
    assert places == sorted(places)


def test_json_of_one_file_and_a_task_is_a_list_too(file):
    path = file(RIGHT)
    result = run(path, "--task", "softmax", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == [
        {
            "file": str(path),
            "task": "softmax",
            "passed": True,
            "points": 10,
            "max_points": 10,
            "mistakes": [],
            "fragile": [],
            "conventions": [],
            "helped_by": [],
            "hint": [],
            "reason": "All results are right.",
            "text": check_file(path)[0].text(),
        }
    ]


def test_json_without_a_single_file_and_task_is_a_list(file):
    one, two = file(RIGHT + WRONG), file("def softmax(x:", "two.py")
    result = run(one, "--json")
    assert result.exit_code == 1
    assert [(row["task"], row["passed"]) for row in json.loads(result.stdout)] == [
        ("softmax", True),
        ("attention", False),
    ]
    rows = json.loads(run(one, two, "--task", "softmax", "--json").stdout)
    assert [(row["file"], row["task"], row["mistakes"]) for row in rows] == [
        (str(one), "softmax", []),
        (str(two), "softmax", ["syntax-error"]),
    ]
    assert all(row.keys() == KEYS for row in rows)
    assert len(rows[1]["hint"]) == 3
    (row,) = json.loads(run(two, "--json").stdout)
    assert row["task"] is None


def test_list_shows_each_task_with_its_signature():
    result = run("--list")
    assert result.exit_code == 0
    assert "softmax\n    softmax(x, axis=-1) -> weights" in result.stdout
    assert "\nattention\n    attention(query, key, value" in result.stdout
    rows = {row["task"]: row for row in json.loads(run("--list", "--json").stdout)}
    assert rows["softmax"]["looks_for"] == ["softmax"]
    assert rows["attention"]["signature"].startswith("attention(query, key, value")


def test_junit_is_written_beside_what_is_printed(file, tmp_path):
    target = tmp_path / "all.xml"
    result = run(file(RIGHT + WRONG), "--junit", target, "--json")
    assert result.exit_code == 1
    assert len(json.loads(result.stdout)) == 2
    root = ElementTree.parse(target).getroot()
    assert (root.get("tests"), root.get("failures")) == ("2", "1")


@pytest.fixture
def submissions(tmp_path):
    wrong = "def softmax(x):\n    return x / x.sum(axis=-1, keepdims=True)"
    handed_in = {
        "anna.py": RIGHT + WRONG,
        "=ben.py": wrong,
        "<c>/[b]softmax.py": wrong,
        ".hidden/d.py": wrong,
        "__pycache__/e.py": wrong,
        "f.txt": wrong,
    }
    for name, source in handed_in.items():
        path = tmp_path / "class" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return tmp_path / "class"


def test_a_folder_gives_a_table_of_the_class(submissions, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(submissions.parent)
    result = run("class")
    assert result.exit_code == 1
    lines = [line.split() for line in result.stdout.splitlines()]
    assert " ".join(lines[0]) == "file softmax (10) attention (10) points (20) mistakes"
    assert lines[1:4] == [
        ["class/<c>/[b]softmax.py", "4", "4", "no-exp"],
        ["class/=ben.py", "4", "4", "no-exp"],
        ["class/anna.py", "10", "5", "15", "no-softmax", "no-scaling"],
    ]
    assert lines[5] == ["Most", "common", "mistakes:"]
    assert lines[6] == ["2", "no-exp", "(softmax)"]
    assert len(json.loads(run("class", "--task", "softmax", "--json").stdout)) == 3


def test_the_table_is_written_as_csv_and_as_a_page(submissions, tmp_path, monkeypatch):
    monkeypatch.chdir(submissions)
    run("=ben.py", "<c>", "anna.py", "--csv", tmp_path / "all.csv", "--html", tmp_path / "all.html")
    with open(tmp_path / "all.csv", newline="") as lines:
        rows = list(csv.reader(lines))
    assert rows == [
        ["file", "softmax (10)", "attention (10)", "points (20)", "mistakes"],
        ["'=ben.py", "4", "", "4", "no-exp"],
        ["<c>/[b]softmax.py", "4", "", "4", "no-exp"],
        ["anna.py", "10", "5", "15", "no-softmax no-scaling"],
    ]
    page = (tmp_path / "all.html").read_text()
    assert "<h1>3 files, 1 of 4 passed</h1>" in page
    assert "&lt;c&gt;/[b]softmax.py" in page
    assert "<c>" not in page
    # the sentences are those that `qkv check` prints about the files
    says = "the scores are divided by their sum, but softmax first takes exp of each score."
    assert f"softmax: {says}" in " ".join(run("=ben.py").stdout.split())
    assert f"<td><p>softmax: {says}</p></td>" in page
    assert f'<td class="points">2</td><td>softmax</td><td>{says}</td>' in page
    assert "no-exp" not in page


def test_a_roster_gives_a_row_to_each_student(submissions, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(submissions)
    roster = tmp_path / "roster.csv"
    roster.write_text("id,name\nben,Ben\nanna,Anna\nc,Carla\nd,Dora\n")
    result = run(".", "--roster", roster, "--csv", tmp_path / "grades.csv")
    assert result.exit_code == 1
    with open(tmp_path / "grades.csv", newline="") as lines:
        rows = list(csv.reader(lines))
    assert [row[:2] for row in rows] == [
        ["id", "name"],
        ["ben", "Ben"],
        ["anna", "Anna"],
        ["c", "Carla"],
        ["d", "Dora"],
    ]
    assert [row[-2:] for row in rows[1::3]] == [["4", "no-exp"], ["0", "nothing-handed-in"]]
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[4] == ["d", "Dora", "0", "nothing-handed-in"]


def test_grades_by_hand_and_the_latest_file_are_chosen_by_options(tmp_path, file, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    for name, source, when in (("s1 a.py", RIGHT, 2), ("s1 b.py", WRONG, 1)):
        os.utime(file(source, name), (when, when))
    roster, manual = file("id,name\ns1,Ann\n", "roster.csv"), file("", "grades.csv")
    manual.write_text("id,task,points,comment\ns1,sentences,8,Good.\n")
    options = ("--task", "attention", "--task", "softmax", "--roster", roster, "--manual", manual)
    result = run(tmp_path / "s1 a.py", tmp_path / "s1 b.py", *options, "--take", "latest")
    words = " ".join(result.stdout.splitlines()[1].split())
    assert words == "s1 Ann 0 10 8 18 latest of 2: s1 a.py missing-function"
    rows = json.loads(run(tmp_path / "s1 a.py", *options, "--json").stdout)
    assert {row["task"]: (row["points"], row["text"]) for row in rows}["sentences"] == (8, "Good.")


def test_feedback_is_written_for_each_student_and_linked(submissions, tmp_path, monkeypatch):
    monkeypatch.chdir(submissions)
    (tmp_path / "out" / "pages").mkdir(parents=True)
    target, folder = tmp_path / "out" / "pages" / "all.html", tmp_path / "feed back"
    files = ("--html", target, "--feedback", folder, "--junit", tmp_path / "all.xml")
    rows = json.loads(run("anna.py", "=ben.py", *files, "--hints", 3, "--json").stdout)
    written = {one.name.partition("-")[0] for one in folder.iterdir()}
    assert written == {"anna.html", "ben", "labels.html"}  # ben's page has a hash after the name
    assert 'href="../../feed%20back/anna.html"' in target.read_text()
    texts = [test[1].text for test in ElementTree.parse(tmp_path / "all.xml").iter("testcase")]
    assert texts == [row["text"] for row in rows]
    assert "Hint 3, correction:" in texts[1]
    blocked = run("anna.py", "--feedback", submissions / "anna.py" / "x")
    assert blocked.exit_code == 2
    assert "is not a writable folder" in blocked.stderr


def test_the_gradescope_file_holds_the_score_of_one_submission(submissions, tmp_path, monkeypatch):
    monkeypatch.chdir(submissions)
    target = tmp_path / "results.json"
    run("anna.py", "--gradescope", target)
    assert json.loads(target.read_text())["score"] == 15
    target.unlink()
    roster = tmp_path / "roster.csv"
    roster.write_text("id,name\nben,Ben\nanna,Anna\n")
    result = run(".", "--roster", roster, "--gradescope", target)
    assert result.exit_code == 2
    assert "these files are from 3 students" in result.stderr
    assert not target.exists()


def test_a_file_that_hangs_or_exits_early_fails_with_1(file):
    for source in ("while True: pass", "import sys; sys.exit(0)", "import os; os._exit(0)"):
        result = run(file(RIGHT + source), "--seconds", "1")
        assert result.exit_code == 1, source
        assert "not passed, 0 of 10 points" in result.stdout


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "pass the files to mark, or --list"),
        (("none.py",), "none.py: No such file"),
        (("mine.py", "none.py"), "none.py: No such file"),
        (("mine.py", "--csv", "all.txt"), "all.txt: the name must end in .csv"),
        (("mine.py", "--html", "all.txt"), "all.txt: the name must end in .html"),
        (("mine.py", "--task", "softmacks"), "task 'softmacks' is unknown: choose from"),
        (("mine.py", "--hint", "4"), "--hint"),
        (("mine.py", "--seconds", "0"), "--seconds"),
        (("mine.py", "--junit", "all.txt"), "all.txt: the name must end in .xml"),
        (("mine.py", "--junit", "no/all.xml"), "no/all.xml cannot be written"),
        (("mine.py", "--roster", "no.csv"), "no.csv"),
        (("mine.py", "--roster", "mine.py"), "mine.py has no column id"),
        (("mine.py", "--manual", "mine.py"), "mine.py has no column id and no column task"),
        (("mine.py", "--take", "worst"), "--take"),
    ],
)
def test_a_bad_request_prints_one_line_and_exits_with_2(file, tmp_path, monkeypatch, args, words):
    file(RIGHT)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    result = run(*args)
    assert result.exit_code == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("qkv check: ")
    assert words in line
    assert {one.name for one in tmp_path.iterdir()} == {"mine.py", "empty"}


@pytest.mark.attack
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has another Ctrl-C")
@pytest.mark.parametrize("one", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_check_and_the_process_of_the_file(file, tmp_path, one):
    note = tmp_path / "child"
    source = f"import os\nopen({str(note)!r}, 'w').write(str(os.getpid()))\nwhile True: pass"
    program = "from qkv.cli import main; main()"
    target = tmp_path / "all.xml"
    command = [sys.executable, "-c", program, "check", file(RIGHT + source), "--seconds", "600"]
    process = subprocess.Popen(
        [*map(str, command), "--junit", str(target)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    child = child_of(process, note)
    process.send_signal(one)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + one
    assert out == err.strip() == b""
    assert ends(child)
    assert not target.exists()

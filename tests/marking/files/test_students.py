"""Tests of the owners of files, by roster or by folder, and of grades for CSV and Gradescope."""

import csv
import json

import pytest

from qkv_marking import (
    CheckResult,
    ClassTable,
    by_file,
    by_roster,
    check_file,
    read_roster,
    write_gradescope,
    write_junit,
)

ROSTER = [("s1", "Anna Berg"), ("s12", "Ben"), ("s-3", "Carl Orff"), ("s4", "Dora")]


def owners(*files, folders=("class",), roster=ROSTER):
    rows = by_roster(roster, files, folders).rows
    return {file: row.names[0] for row in rows for file in row.files}


@pytest.mark.parametrize(
    ("file", "owner"),
    [
        ("class/s1/lesson3.ipynb", "s1"),
        ("class/s12.py", "s12"),
        ("class/S12_late_3-one-function-student.ipynb", "s12"),
        ("class/S_3/a.py", "s-3"),
        ("class/Carl Orff_884_assignsubmission_file/a.py", "s-3"),
        ("class/anna-berg.py", "s1"),
        ("class/week1/ben/deep/a.py", "s12"),
        ("class/s123.py", ""),
        ("class/bengt.py", ""),
        ("class/s1_s4.py", ""),  # two ids of equal length: no owner
    ],
)
def test_a_file_belongs_to_whom_it_is_named_after(file, owner):
    assert owners(file) == {file: owner}


def test_an_id_wins_over_a_name_and_a_longer_id_over_a_shorter_one():
    roster = [("7", "Anna"), ("7-8", "Ben"), ("9", "7")]
    assert owners("class/7-8.py", roster=roster) == {"class/7-8.py": "7-8"}
    assert owners("class/7_ben.py", roster=roster) == {"class/7_ben.py": "7"}


def test_files_passed_alone_are_owned_by_name_or_folder():
    assert owners("in/s1.py", "in/s4/a.py", folders=()) == {"in/s1.py": "s1", "in/s4/a.py": "s4"}


def test_rows_follow_the_roster_with_stray_files_last():
    students = by_roster(ROSTER, ["class/x.py", "class/s4.py", "class/s1.py"], ["class"])
    assert students.columns == ("id", "name")
    assert [(row.names, row.files) for row in students.rows] == [
        (("s1", "Anna Berg"), ("class/s1.py",)),
        (("s12", "Ben"), ()),
        (("s-3", "Carl Orff"), ()),
        (("s4", "Dora"), ("class/s4.py",)),
        (("", "class/x.py"), ("class/x.py",)),
    ]


def test_rows_are_folders_only_if_every_file_is_in_one():
    files = ["class/a/1.py", "class/a/deep/2.py", "class/b/1.py"]
    students = by_file(files, ["class"])
    assert students.columns == ("student",)
    assert [(row.names, row.files) for row in students.rows] == [
        (("class/a",), ("class/a/1.py", "class/a/deep/2.py")),
        (("class/b",), ("class/b/1.py",)),
    ]
    for mixed in ([*files, "class/c.py"], [*files, "other.py"]):
        assert by_file(mixed, ["class"]).columns == ("file",)
    assert by_file(files).columns == ("file",)


def test_a_roster_is_read_by_its_columns(tmp_path):
    path = tmp_path / "roster.csv"
    path.write_text("\ufeffgroup, Name ,ID\n1, Zoë ,s2\n1,Anna,s1\n,,\n", encoding="utf-8")
    assert read_roster(path) == [("s2", "Zoë"), ("s1", "Anna")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "no column id and no column name"),
        (b"id,email\n1,a@b\n", r"no column name.*its columns are id, email"),
        (b"id,name\n1,A\n1,B\n", "the id 1 twice"),
        (b"id,name\n1,\xe9\n", "not a CSV file in UTF-8"),
    ],
)
def test_an_invalid_roster_is_refused(tmp_path, text, words):
    path = tmp_path / "roster.csv"
    path.write_bytes(text)
    with pytest.raises(ValueError, match=words):
        read_roster(path)


def verdict(task, points, *mistakes):
    return CheckResult("", mistakes, points=points, task=task)


def test_the_best_file_of_a_student_counts_per_task(tmp_path):
    marked = [
        ("class/s1/a.py", (verdict("softmax", 6, "no-exp"), verdict("attention", 10))),
        ("class/s1/b.py", (verdict("softmax", 10), verdict("attention", 2, "no-scaling"))),
        # two functions of one task: the one with fewer points counts
        ("class/s4/c.py", (verdict("attention", 10), verdict("attention", 6, "no-scaling"))),
    ]
    table = ClassTable(marked, by_roster(ROSTER, [file for file, _ in marked], ["class"]))
    table.write_csv(tmp_path / "grades.csv")
    with open(tmp_path / "grades.csv", newline="") as lines:
        assert [*csv.reader(lines)] == [
            ["id", "name", "softmax (10)", "attention (10)", "points (20)", "mistakes"],
            ["s1", "Anna Berg", "10", "10", "20", ""],
            ["s12", "Ben", "", "", "0", "nothing-handed-in"],
            ["s-3", "Carl Orff", "", "", "0", "nothing-handed-in"],
            ["s4", "Dora", "", "6", "6", "no-scaling"],
        ]
    table.write_html(tmp_path / "grades.html")
    page = (tmp_path / "grades.html").read_text()
    assert '<th scope="row">s12</th><th scope="row">Ben</th>' in page
    assert "<h1>4 students, " in page
    write_junit(tmp_path / "grades.xml", table.marked)
    assert 'name="s12"' in (tmp_path / "grades.xml").read_text()


def test_gradescope_gets_a_test_for_each_task(tmp_path):
    softmax, attention = verdict("softmax", 6, "no-exp"), verdict("attention", 10)
    write_gradescope(tmp_path / "results.json", [("in/a.py", (softmax, attention))])
    told = json.loads((tmp_path / "results.json").read_text())
    assert told["score"] == 16
    assert [(test["name"], test["score"], test["status"]) for test in told["tests"]] == [
        ("softmax", 6, "failed"),
        ("attention", 10, "passed"),
    ]
    assert {test["max_score"] for test in told["tests"]} == {10}
    two = [("in/a.py", (softmax,)), ("in/b.py", (attention, verdict(None, 0, "exits")))]
    write_gradescope(tmp_path / "results.json", two)
    tests = json.loads((tmp_path / "results.json").read_text())["tests"]
    assert [test["name"] for test in tests] == ["a.py: softmax", "b.py: attention", "b.py: file"]


ZIP = b"PK\x03\x04 and more"


def test_what_was_handed_in_instead_is_told(tmp_path):
    handed_in = {
        "s1/work.zip": ZIP,
        "s12/report.docx": ZIP,
        "s-3/notes.txt": b"words",
        "s4/a.py": b"",
    }
    for name, content in handed_in.items():
        path = tmp_path / "class" / name
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
    (tmp_path / "class" / "s5").mkdir()
    roster = [*ROSTER, ("s5", "Eva"), ("s6", "Finn")]
    files, folders = [str(tmp_path / "class/s4/a.py")], [str(tmp_path / "class")]
    marked = [(files[0], (verdict("softmax", 10),))]
    told = {
        "s1": "this was found: work.zip, which is an archive: unpack it.",
        "s12": "this was found: report.docx, which is a document of a word processor.",
        "s-3": "this was found: notes.txt.",
        "s5": "this was found: the folder s5 is empty.",
        "s6": "no file or folder is named after s6 or Finn.",
    }
    for students in (by_roster(roster, files, folders), by_file(files, folders)):
        table = ClassTable(marked, students)
        said = {name.rpartition("/")[2]: results[0] for name, results in table.marked}
        said.pop("a.py")
        assert len(said) >= 4
        for name, result in said.items():
            assert result.mistakes == ("nothing-handed-in",)
            assert told[name] in result.message


@pytest.mark.parametrize(
    ("name", "content"), [("a.zip", ZIP), ("a.docx", ZIP), ("a.py", ZIP), ("a.pdf", b"%PDF-1.7")]
)
def test_an_archive_or_a_document_is_no_broken_python(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    (result,) = check_file(tmp_path / name, "softmax")
    assert (result.mistakes, result.task) == (("nothing-handed-in",), "softmax")
    assert f"this was found: {name}, which is a" in result.message

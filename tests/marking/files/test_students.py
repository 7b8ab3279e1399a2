"""Tests of the owners of files, by roster or by folder, and of grades for CSV and Gradescope."""

import json
import os

import pytest

from qkv_marking import (
    CheckResult,
    ClassTable,
    add_grades,
    by_file,
    by_roster,
    check_file,
    plan_tasks,
    read_roster,
    write_feedback,
    write_gradescope,
    write_junit,
)

from .test_plan import rows, verdict

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


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("Berg, Anna", "class/anna-berg.py"),
        ("Berg, Anna", "class/Berg Anna_884_assignsubmission_file/a.py"),
        ("Anna Berg", "class/Berg, Anna.py"),
        ("Anna Maria Berg", "class/Berg, Anna Maria.py"),
        ("van der Berg, Jan", "class/jan_van_der_berg.py"),
        ("Zoë Núñez", "class/nunezzoe_LATE_1234_5678_mine.py"),
        ("Zoë", "class/zoe\u0308.py"),  # the name as macOS stores it
        ("李 小龙", "class/李小龙.py"),
    ],
)
def test_a_name_has_its_last_name_at_either_end(name, file):
    assert owners(file, roster=[("1", "Ben Lee"), ("7", name)]) == {file: "7"}


def test_a_name_as_it_is_written_wins_over_other_spellings():
    roster = [("1", "Lee Ben"), ("2", "Ben Lee"), ("3", "Zoe"), ("4", "Zoë")]
    files = ["ben_lee.py", "lee_ben.py", "zoë.py", "zoe.py"]
    found = owners(*(f"class/{file}" for file in files), roster=roster)
    assert [found[f"class/{file}"] for file in files] == ["2", "1", "4", "3"]
    twins = [("1", "Anna Berg"), ("2", "Berg, Anna")]
    assert owners("class/annaberg.py", roster=twins) == {"class/annaberg.py": ""}


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


def test_the_best_file_of_a_student_counts_per_task(tmp_path):
    marked = [
        ("class/s1/a.py", (verdict("softmax", 6, "no-exp"), verdict("attention", 10))),
        ("class/s1/b.py", (verdict("softmax", 10), verdict("attention", 2, "no-scaling"))),
        # two functions of one task: the one with fewer points counts
        ("class/s4/c.py", (verdict("attention", 10), verdict("attention", 6, "no-scaling"))),
    ]
    table = ClassTable(marked, by_roster(ROSTER, [file for file, _ in marked], ["class"]))
    table.write_csv(tmp_path / "grades.csv")
    assert rows(tmp_path / "grades.csv") == [
        ["id", "name", "softmax (10)", "attention (10)", "points (20)", "files", "mistakes"],
        ["s1", "Anna Berg", "10", "10", "20", "best of 2: b.py, a.py", ""],
        ["s12", "Ben", "", "", "0", "", "nothing-handed-in"],
        ["s-3", "Carl Orff", "", "", "0", "", "nothing-handed-in"],
        ["s4", "Dora", "", "6", "6", "", "no-scaling"],
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


def handed_in(folder, *names):
    for number, name in enumerate(names):
        (folder / name).touch()
        os.utime(folder / name, (number, number))
    return [str(folder / name) for name in names]


def test_the_latest_file_of_a_student_counts_if_it_has_a_task(tmp_path):
    names = ("s1 b.py", "s1 a.py", "s1 helper.py", "s4.py")
    first, latest, helper, other = handed_in(tmp_path, *names)
    marked = [
        (first, (verdict("softmax", 10), verdict("attention", 10))),
        (latest, (verdict("softmax", 4, "no-exp"), verdict("attention", 0, "missing-function"))),
        (helper, (verdict("softmax", 0, "missing-function"),)),
        (other, (verdict("softmax", 10),)),
    ]
    students = by_roster([ROSTER[0], ROSTER[3]], [file for file, _ in marked])
    told = {}
    for take in ("best", "latest"):
        table = ClassTable(marked, students, take=take)
        table.write_html(tmp_path / "all.html")
        first_row, other_row = table.rows
        told[take] = first_row.points, first_row.note, first_row.mistakes
        assert f"<td>{told[take][1]}</td>" in (tmp_path / "all.html").read_text()
        assert other_row.note == ""
        write_gradescope(tmp_path / "results.json", marked[:3], plan_tasks(["softmax"]), take=take)
        score = json.loads((tmp_path / "results.json").read_text())["score"]
        assert score == told[take][0][0]
    assert told == {
        "best": ([10, 10], "best of 3: s1 b.py", ""),
        "latest": ([4, 0], "latest of 3: s1 a.py", "no-exp missing-function"),
    }


def test_a_latest_file_that_cannot_be_read_counts(tmp_path):
    good, broken = handed_in(tmp_path, "s1 a.py", "s1 b.py")
    marked = [(good, (verdict("softmax", 10),)), (broken, (verdict(None, 0, "syntax-error"),))]
    students, plan = by_roster(ROSTER[:1], [good, broken]), plan_tasks(["softmax"])
    (best,) = ClassTable(marked, students, plan).rows
    (latest,) = ClassTable(marked, students, plan, "latest").rows
    assert (best.points, latest.points, latest.mistakes) == ([10], [0], "syntax-error")
    assert latest.note == "latest of 2: s1 b.py"


def test_files_of_one_time_are_ordered_by_the_numbers_in_their_names(tmp_path):
    names = ("s1 (10).py", "s1.py", "s1 (9).py", "s1 (1).py")
    files = handed_in(tmp_path, *names)
    for file in files:
        os.utime(file, (1, 1))
    marked = [(file, (verdict("softmax", n, "no-exp"),)) for n, file in enumerate(files)]
    (row,) = ClassTable(marked, by_roster(ROSTER[:1], files), take="latest").rows
    assert row.counted == [files[0]]


def grades(tmp_path, text):
    path = tmp_path / "grades.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_grades_by_hand_are_in_every_output(tmp_path):
    (tmp_path / "points.csv").write_text("task,points\nsentences,5\nsoftmax,4\n")
    plan = plan_tasks(["softmax"], points=tmp_path / "points.csv")
    (file,) = handed_in(tmp_path, "s1.py")
    path = grades(tmp_path, "\ufeffID,task,points,comment,more\ns1,sentences,3.5,Say <why>.,x\n"
                  "s12,3.2,10,,\ns12,sentences,,to do,\ns1,softmax,3,Nearly right.\n")  # fmt: skip
    students, plan = add_grades(path, by_roster(ROSTER[:2], [file]), plan)
    wrong = CheckResult("Not by hand.", ("no-exp",), points=5, task="softmax")
    table = ClassTable([(file, (wrong,))], students, plan)
    table.write_csv(tmp_path / "all.csv")
    assert rows(tmp_path / "all.csv") == [
        ["id", "name", "softmax (4)", "sentences (5)", "3.2 (10)", "points (19)", "mistakes"],
        ["s1", "Anna Berg", "3", "3.5", "0", "6.5", "no-exp"],
        ["s12", "Ben", "0", "0", "10", "10", "nothing-handed-in"],
    ]
    table.write_html(tmp_path / "all.html")
    assert '<td class="points">3.5</td>' in (tmp_path / "all.html").read_text()
    assert "0 of 2 passed" in (tmp_path / "all.html").read_text()
    write_junit(tmp_path / "all.xml", table.marked)
    assert 'name="sentences"' in (tmp_path / "all.xml").read_text()
    page, _ = write_feedback(tmp_path / "out", table)
    text = page.read_text()
    for words in ("sentences: 3.5 of 5 points", "Say &lt;why&gt;.", "softmax: 3 of 4 points",
                  "Nearly right.", "Not by hand.", "Points: Your teacher gave these points.",
                  "3.2: 0 of 10 points"):  # fmt: skip
        assert words in text, words
    write_gradescope(
        tmp_path / "results.json", [m for m in table.marked if "s12" not in m[0]], plan
    )
    told = json.loads((tmp_path / "results.json").read_text())["tests"]
    assert [(t["name"], t["score"], t["max_score"], t["status"]) for t in told] == [
        ("softmax", 3, 4, "failed"),
        ("sentences", 3.5, 5, "failed"),
        ("3.2", 0, 10, "failed"),
    ]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("s9,sentences,1", "line 2: the id s9 is unknown: use an id from the table"),
        (
            "s1,sentence,1",
            "line 2: check: task 'sentence' is unknown: .*, sentences, or a question",
        ),
        ("s1,99.1,1", "line 2: check: task '99.1' is unknown"),
        ("s1,1.4,1", "line 2: check: task '1.4' is unknown"),
        ("s1,1.1,eleven", "line 2: could not convert"),
        ("s1,1.1,11", "line 2: points is 11; choose a number from 0 to 10"),
        ("s1,1.1,nan", "line 2: points is nan"),
        ("s1,1.1,1\ns1,1.1,2", "line 3: s1 has a second grade for 1.1: remove one"),
    ],
)
def test_a_bad_grade_is_refused(tmp_path, lines, words):
    path = grades(tmp_path, f"id,task,points\n{lines}\n")
    with pytest.raises(ValueError, match=words):
        add_grades(path, by_roster(ROSTER, []), plan_tasks())
    with pytest.raises(ValueError, match="has no column task and no column points"):
        add_grades(grades(tmp_path, "id\n"), by_roster(ROSTER, []), plan_tasks())


def test_without_a_roster_a_grade_names_a_folder_or_a_file(tmp_path):
    students = by_file(["class/ann/a.py", "class/ben/a.py"], ["class"])
    students, plan = add_grades(
        grades(tmp_path, "id,task,points\nben,1.1,4\n"), students, plan_tasks()
    )
    marked = [(file, (verdict("softmax", 10),)) for row in students.rows for file in row.files]
    table = ClassTable(marked, students, plan)
    assert table.headings == ["softmax (10)", "1.1 (10)", "points (20)"]
    assert [row.points for row in table.rows] == [[10, None], [10, 4]]


ZIP = b"PK\x03\x04 and more"


def test_what_was_handed_in_instead_is_told(tmp_path):
    handed_in = {"s1/work.zip": ZIP, "s12/report.docx": ZIP}
    handed_in |= {"s-3/notes.txt": b"words", "s4/a.py": b""}
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

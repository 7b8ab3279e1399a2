"""Tests of the tasks that a teacher chooses, and of their points."""

import csv
import json

import pytest
from click.testing import CliRunner

from qkv.cli import main
from qkv_marking import CheckResult, ClassTable, plan_tasks, write_gradescope
from qkv_marking.files._plan import find_lesson

from .test_check_file import ATTENTION, SOFTMAX

pytestmark = pytest.mark.usefixtures("quick")

IDS = "def to_ids(sentence, vocabulary):\n"
IDS += "    return [vocabulary.get(word, vocabulary['[UNK]']) for word in sentence.split()]\n"
SECOND = ["ids", "projections", "batched-attention", "calm-query"]
THIRD = ["softmax", "batched-attention"]


def run(*args):
    return CliRunner().invoke(main, ["check", *map(str, args)], env={"COLUMNS": "300"})


def rows(path):
    with open(path, newline="", encoding="utf-8") as lines:
        return [*csv.reader(lines)]


def verdict(task, points, *mistakes):
    return CheckResult("", mistakes, points=points, task=task)


@pytest.fixture
def handed_in(tmp_path, book):
    def write(name, *cells, tasks=None):
        path = tmp_path / "class" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return book(*cells, tasks=tasks).rename(path)

    return write


def test_the_tasks_in_a_students_notebook_do_not_choose_the_tasks(handed_in, tmp_path):
    handed_in("honest/3.ipynb", SOFTMAX + ATTENTION, tasks=THIRD)
    handed_in("without metadata/3.ipynb", SOFTMAX + ATTENTION)
    handed_in("edited/3.ipynb", SOFTMAX + IDS, tasks=["ids"])
    handed_in("broken/3.py", "def (")
    released = handed_in("../released.ipynb", tasks=THIRD)
    for option in (("--lesson", "3"), ("--released", released)):
        run(tmp_path / "class", *option, "--csv", tmp_path / "all.csv")
        heads, *lines = rows(tmp_path / "all.csv")
        assert heads[1:] == ["softmax (10)", "batched-attention (10)", "points (20)", "mistakes"]
        assert {line[0].rpartition("/")[2]: line[1:4] for line in lines} == {
            "honest": ["10", "10", "20"],
            "without metadata": ["10", "10", "20"],
            "edited": ["10", "0", "10"],
            "broken": ["0", "0", "0"],
        }


def test_several_tasks_are_marked(handed_in):
    path = handed_in("a.ipynb", SOFTMAX + ATTENTION + IDS)
    told = json.loads(run(path, "--task", "softmax", "--task", "ids", "--json").stdout)
    assert [row["task"] for row in told] == ["softmax", "ids"]


def test_a_shared_task_counts_for_the_lesson_of_its_file(handed_in, tmp_path):
    wrong = "\ndef attention(q, k, v): ..."
    handed_in("ann/a.ipynb", SOFTMAX + ATTENTION, tasks=SECOND)
    handed_in("ann/b.ipynb", SOFTMAX + wrong, tasks=THIRD)
    handed_in("ben/2-by-hand-student.ipynb", SOFTMAX + ATTENTION)
    run(tmp_path / "class", "--lesson", 2, "--lesson", 3, "--csv", tmp_path / "all.csv")
    heads, ann, ben = rows(tmp_path / "all.csv")
    second, third = (heads.index(f"{n} batched-attention (10)") for n in (2, 3))
    assert ann[second] == ben[second] == "10"
    assert ann[third] == ben[third] == "0"
    run(tmp_path / "class", "--lesson", 3, "--csv", tmp_path / "all.csv")
    heads, ann, _ = rows(tmp_path / "all.csv")
    assert ann[heads.index("softmax (10)")] == "10"
    assert ann[heads.index("batched-attention (10)")] == "0"


@pytest.mark.parametrize(
    ("name", "lesson"),
    [
        ("3-one-function.ipynb", 3),
        ("s12_3-one-function-student (1).ipynb", 3),
        ("13-one-function.ipynb", None),
        ("Lesson_05.py", 5),
        ("lesson55.py", None),
        ("order.ipynb", None),
        ("s3.ipynb", None),
    ],
)
def test_a_files_name_tells_its_lesson(name, lesson):
    assert find_lesson(name) == lesson


def test_weights_hold_in_each_table(tmp_path):
    (tmp_path / "points.csv").write_text("task,points\nsoftmax,5\n")
    plan = plan_tasks(lessons=[3], points=tmp_path / "points.csv")
    marked = [
        ("a", (verdict("softmax", 9), verdict("batched-attention", 6, "no-exp"))),
        ("b", (verdict(None, 0, "syntax-error"),)),
    ]
    table = ClassTable(marked, plan=plan)
    table.write_csv(tmp_path / "all.csv")
    assert rows(tmp_path / "all.csv") == [
        ["file", "softmax (5)", "batched-attention (10)", "points (15)", "mistakes"],
        ["a", "4.5", "6", "10.5", "no-exp"],
        ["b", "0", "0", "0", "syntax-error"],
    ]
    table.write_html(tmp_path / "all.html")
    page = (tmp_path / "all.html").read_text()
    assert '<th scope="col" class="points">softmax (5)</th>' in page
    assert '<td class="points">10.5</td>' in page
    for file, scores in zip(marked, ([4.5, 6], [0, 0]), strict=True):
        write_gradescope(tmp_path / "results.json", [file], plan)
        told = json.loads((tmp_path / "results.json").read_text())
        found = [(test["score"], test["max_score"]) for test in told["tests"]]
        assert found == [*zip(scores, (5, 10), strict=True)]
        assert told["score"] == sum(scores)


def test_weights_hold_in_the_printed_verdicts(handed_in, tmp_path):
    (tmp_path / "points.csv").write_text("task,points,lesson\nsoftmax,5,3\nids,7,\n")
    path = handed_in("a.ipynb", SOFTMAX)
    told = run(path, "--lesson", 3, "--points", tmp_path / "points.csv").stdout
    assert "softmax: passed, 5 of 5 points" in told
    assert told.endswith("1 of 2 passed, 5 of 15 points\n")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("softmax,5\n", "must begin with the line task,points"),
        ("task,points\nsoftmacks,5\n", "line 2: check: task 'softmacks' is unknown"),
        ("task,points\nsoftmax,-1\n", "points is -1"),
        ("task,points\nsoftmax,many\n", "line 2: could not convert"),
    ],
)
def test_a_bad_file_of_points_is_a_bad_request(tmp_path, text, words):
    path = tmp_path / "points.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=words):
        plan_tasks(points=path)


def test_a_bad_choice_is_a_bad_request(book):
    with pytest.raises(ValueError, match="lesson 14 does not exist"):
        plan_tasks(lessons=[14])
    with pytest.raises(ValueError, match="lists no tasks"):
        plan_tasks(released=book(SOFTMAX))
    with pytest.raises(ValueError, match="task 'x' is unknown"):
        plan_tasks(["x"])

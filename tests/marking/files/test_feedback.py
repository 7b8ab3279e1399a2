"""Tests of the files of feedback: pages, notebooks with cells of feedback, and their names."""

import json
import re
from html import unescape

import pytest

from qkv_marking import (
    TASKS,
    CheckResult,
    ClassTable,
    by_file,
    by_roster,
    check,
    plan_tasks,
    write_feedback,
)

SOFTMAX = "def softmax(x):\n    return x / x.sum(axis=-1, keepdims=True)"
CHECK = 'qkv.check(softmax, task="softmax")'


def no_exp(x):
    return x / x.sum(axis=-1, keepdims=True)


def table_of(files, roster, marks=None, **chosen):
    marked = [(str(file), (marks or {}).get(file.stem, ())) for file in files]
    students = by_roster(roster, [file for file, _ in marked]) if roster else None
    return ClassTable(marked, students, plan_tasks(**chosen))


def text_of(page):
    return unescape(re.sub("<[^>]+>", "", page.read_text("utf-8").partition("<main>")[2]))


def notebook(path, *cells, minor=5):
    made = [{"cell_type": "markdown", "metadata": {}, "source": ["# Lesson"]}]
    for source in cells:
        lines = source.splitlines(keepends=True)
        code = {"cell_type": "code", "metadata": {}, "execution_count": None, "outputs": []}
        made.append({**code, "source": lines})
    if minor >= 5:
        made = [{**cell, "id": f"cell-{number}"} for number, cell in enumerate(made)]
    book = {"cells": made, "metadata": {"mine": 1}, "nbformat": 4, "nbformat_minor": minor}
    path.write_text(json.dumps(book))
    return path


def test_a_page_has_everything_about_a_task_and_as_many_hints_as_allowed(tmp_path):
    file = tmp_path / "ann.py"
    file.write_text(SOFTMAX)
    result = check(no_exp, task="softmax")
    right = "+ e = np.exp(scores)"
    for hints in range(4):
        table = table_of([file], [("ann", "Ann")], {"ann": (result,)}, lessons=[3])
        (page,) = write_feedback(tmp_path / "out", table, hints)
        text = text_of(page)
        assert "4 of 20 points.\nHanded in: ann.py." in text
        assert f"Asked: {TASKS['softmax'].signature}: {TASKS['softmax'].asks}." in text
        assert "the scores are divided by their sum, but softmax first takes exp" in text
        assert "x = [[1. 0.]" in text
        assert "your output = [[1.   0.  ]\n" in text  # 1 / (1 + 0); 3 / (3 + 1)
        assert "should be = [[0.7311 0.2689]\n" in text  # 1 / (1 + 1 / e)
        assert "- e = scores" in text
        assert (right in text) == (hints == 3)
        assert text.count("Hint ") == hints
        assert "Points: The right solution with this one mistake gives all your results" in text
        assert "batched-attention: 0 of 10 points" in text
        assert "Nothing was handed in for this task." in text
    assert '<a href="labels.html#no-exp">no-exp</a>' in page.read_text()


def test_labels_explain_every_mistake_of_every_task(tmp_path):
    write_feedback(tmp_path, ClassTable([]))
    page = (tmp_path / "labels.html").read_text()
    for key in ("no-exp", "no-scaling", "nothing-handed-in", "answered-by-library", "returns-none"):
        assert (f'<h3 id="{key}">' in page) == (key != "returns-none")
    assert page.count("<h3 id=") > 300
    assert not re.search(r"\{\w+\}", page.partition("<main>")[2])


def test_the_function_that_computed_the_answer_is_named(tmp_path):
    helped = CheckResult("Not yours.", ("answered-by-library",), points=0, task="softmax",
                         helped_by=("scipy.softmax",), reason="Because of scipy.")  # fmt: skip
    (tmp_path / "a.py").touch()
    (page,) = write_feedback(tmp_path, table_of([tmp_path / "a.py"], [], {"a": (helped,)}))
    assert "Computed by: scipy.softmax." in text_of(page)
    assert "Points: Because of scipy." in text_of(page)


def result_for(task, words="It is wrong."):
    return CheckResult(words, ("k",), says={"k": words}, points=4, task=task, hint=("a", "b", "c"))


@pytest.mark.parametrize("minor", [4, 5])
def test_a_notebook_gets_a_cell_under_each_task_and_stays_valid(tmp_path, minor):
    nbformat = pytest.importorskip("nbformat", reason="nbformat validates the notebooks")
    other = "def attention(q, k, v): return q\nweights = 3"
    path = notebook(
        tmp_path / "s1.ipynb", "import qkv", SOFTMAX, CHECK, other, "print(1)", minor=minor
    )
    marks = (
        result_for(None, "The file is odd."),
        result_for("softmax", "odd *words* <b>\n```\n$x$"),
        result_for("batched-attention"),
        result_for("kv-cache"),
    )
    for _ in range(2):  # the second time, the notebook already has cells of feedback
        out = tmp_path / "out"
        write_feedback(out, table_of([path], [("s1", "Ann")], {"s1": marks}))
        book = nbformat.read(out / "s1.ipynb", as_version=4)
        nbformat.validate(json.loads((out / "s1.ipynb").read_text()))
        heads = [cell.source.partition("\n")[0] for cell in book.cells]
        assert heads == [
            "#### Feedback: The file",
            "# Lesson",
            "import qkv",
            "def softmax(x):",
            CHECK,
            "#### Feedback: softmax: 4 of 10 points",
            "def attention(q, k, v): return q",
            "#### Feedback: batched-attention: 4 of 10 points",
            "print(1)",
            "#### Feedback: kv-cache: 4 of 10 points",
        ]
        assert book.metadata.mine == 1
        assert r"odd \*words\* \<b\>" in book.cells[5].source
        assert r"\`\`\`" in book.cells[5].source
        assert r"\$x\$" in book.cells[5].source
        path.write_bytes((out / "s1.ipynb").read_bytes())


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"cells": 3}', b'{"cells": [3]}', b"\xff\x00", b'{"cells": [{}]}'],
)
def test_a_notebook_that_does_not_parse_gets_only_a_page(tmp_path, content):
    path = tmp_path / "s1.ipynb"
    path.write_bytes(content)
    table = table_of([path], [("s1", "Ann")], {"s1": (result_for(None),)}, lessons=[3])
    (page,) = write_feedback(tmp_path / "out", table)
    assert "It is wrong." in text_of(page)
    assert text_of(page).count("This task was not marked") == 2
    assert {one.name for one in (tmp_path / "out").iterdir()} == {"labels.html", "s1.html"}


@pytest.mark.parametrize(
    "book",
    [
        {"cells": [{"cell_type": "code", "source": SOFTMAX}]},
        {"cells": [{"cell_type": "raw"}, {"cell_type": "code", "source": [], "metadata": None}]},
        {"cells": [], "nbformat_minor": "5"},
        {"cells": [{"cell_type": "code", "source": "\ud800(", "metadata": {"tags": None}}]},
    ],
)
def test_an_odd_notebook_is_annotated(tmp_path, book):
    path = tmp_path / "s1.ipynb"
    path.write_text(json.dumps(book))
    write_feedback(tmp_path / "out", table_of([path], [], {"s1": (result_for("softmax"),)}))
    cells = json.loads((tmp_path / "out" / "s1.ipynb").read_text())["cells"]
    assert len(cells) == len(book["cells"]) + 1
    assert cells[-1]["source"].startswith("#### Feedback: softmax")


ODD = [
    "../../up", "..", ".", "/etc/passwd", "a/b", "a\\b", "a:b", "a b", "A b", "a-b", "CON", "nul.x",
    "labels", "LABELS", "é", "e\u0301", "\u202ex", "x" * 400, "x" * 401, "=1+1", "<b>", "-", ".h",
    "s1", "S1", "straße", "STRASSE", "\udce9", "😀" * 90, "日本語", "a\nb", "%2e%2e", "~", "#?&",
]  # fmt: skip


def test_odd_ids_neither_leave_the_folder_nor_collide(tmp_path):
    roster = [(identity, f"name {number}") for number, identity in enumerate(ODD)]
    pages = write_feedback(tmp_path / "out", ClassTable([], by_roster(roster, [])))
    names = [page.name for page in pages]
    assert len({name.casefold() for name in names} | {"labels.html"}) == len(ODD) + 1
    assert all(page.parent == tmp_path / "out" and page.is_file() for page in pages)
    for name in names:
        assert re.fullmatch(r"[\w][\w.-]*\.html", name), name
        assert len(name.encode()) < 256
    assert dict(zip(ODD, names, strict=True))["s1"] == "s1.html"
    assert {one.name for one in tmp_path.iterdir()} == {"out"}
    assert len([*(tmp_path / "out").iterdir()]) == len(ODD) + 1


def test_several_files_of_a_student_and_files_of_one_name_have_names_of_their_own(tmp_path):
    files = []
    for name in ("x/a.ipynb", "x/b.ipynb", "y/a.ipynb"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        files.append(notebook(tmp_path / name, SOFTMAX))
    marked = [(str(file), (result_for("softmax"),)) for file in files]
    table = ClassTable(marked, by_roster([("x", "X"), ("y", "Y")], [file for file, _ in marked]))
    pages = write_feedback(tmp_path / "out", table)
    written = {one.name for one in (tmp_path / "out").iterdir()}
    assert written == {"labels.html", "x.html", "x.ipynb", "x-b.ipynb", "y.html", "y.ipynb"}
    assert "a.ipynb with feedback, b.ipynb with feedback (does not count)." in text_of(pages[0])
    pages = write_feedback(tmp_path / "files", ClassTable(marked, by_file([f for f, _ in marked])))
    assert len(set(pages)) == 3


def test_the_table_of_the_class_links_to_the_pages(tmp_path):
    table = ClassTable([], by_roster([("s 1", "Ann"), ("s2", "")], []))
    table.write_html(tmp_path / "all.html", ["fb/s%201.html", "fb/s2.html"])
    page = (tmp_path / "all.html").read_text()
    assert '<th scope="row"><a href="fb/s%201.html">Ann</a></th>' in page
    assert '<th scope="row"><a href="fb/s2.html">s2</a></th>' in page

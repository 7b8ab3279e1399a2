"""Tests of a class's verdicts as a table, CSV, HTML and JUnit XML, from hand-made verdicts."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from qkv_marking import CheckResult, ClassTable, files_in, write_junit

from .test_plan import rows

RIGHT = CheckResult("softmax is right.", task="softmax")
FRAGILE = CheckResult("no max", fragile=("no-max",), conventions=("prints",), points=9)
WRONG = CheckResult("no scale", ("b", "a"), points=2)
BROKEN = CheckResult("not Python", ("syntax-error",), points=0, task=None)


def test_the_commonest_mistakes_are_counted_by_task_and_name():
    table = ClassTable([("x", (WRONG, BROKEN)), ("y", (WRONG, FRAGILE)), ("z", (BROKEN,) * 3)])
    assert table.commonest == [
        (4, "file", "syntax-error"),
        (2, "attention", "a"),
        (2, "attention", "b"),  # "a" and "b" are equally frequent: sorted by name
        (1, "attention", "no-max"),
    ]


def test_a_file_verdict_counts_only_in_the_sum():
    table = ClassTable([("x", (BROKEN,)), ("y", (WRONG, RIGHT))])
    assert table.headings == ["softmax (10)", "attention (10)", "points (20)"]
    assert [(row.names, row.points, row.total, row.mistakes) for row in table.rows] == [
        (("x",), [None, None], 0, "syntax-error"),
        (("y",), [10, 2], 12, "b a"),
    ]


@pytest.mark.parametrize("sign", ["=", "+", "-", "@", "\t", "\r"])
def test_csv_escapes_names_that_look_like_formulas(tmp_path, sign):
    ClassTable([(f"{sign}1+1.py", (RIGHT,)), (f"a{sign}.py", (RIGHT,))]).write_csv(tmp_path / "c")
    assert [row[0] for row in rows(tmp_path / "c")] == ["file", f"'{sign}1+1.py", f"a{sign}.py"]


@pytest.mark.parametrize(
    ("name", "written"),
    [
        *((f"{sign}1+1", f"'{sign}1+1") for sign in "\uff1d\uff0b\uff0d\uff20"),
        *((f"Ann;{sign}1+1", f"Ann;'{sign}1+1") for sign in "=+-@\uff1d\uff0b\uff0d\uff20"),
        ("=1;=2; \uff1d3", "'=1;'=2;' \uff1d3"),
        ("Ann\t=1\n=2", "Ann\t'=1\n'=2"),
        ("Ann; Bob-Lee", "Ann; Bob-Lee"),
        ("a\uff1db", "a\uff1db"),
    ],
)
def test_csv_escapes_formulas_of_any_spreadsheet(tmp_path, name, written):
    """Some spreadsheets separate cells at semicolons, and read full-width signs as formulas."""
    ClassTable([(name, (RIGHT,))]).write_csv(tmp_path / "c")
    assert rows(tmp_path / "c")[1][0] == written


def test_a_name_that_is_not_utf_8_is_written_all_the_same(tmp_path):
    name = b"caf\xe9.py".decode("utf-8", "surrogateescape")
    table = ClassTable([(name, (WRONG,))])
    table.write_csv(tmp_path / "all.csv")
    table.write_html(tmp_path / "all.html")
    write_junit(tmp_path / "all.xml", table.marked)
    assert rows(tmp_path / "all.csv")[1][0] == "caf?.py"
    assert '<th scope="row">caf?.py</th>' in (tmp_path / "all.html").read_text("utf-8")
    (suite,) = ElementTree.parse(tmp_path / "all.xml").getroot()
    assert suite.get("name") == suite[0].get("classname") == "caf\N{REPLACEMENT CHARACTER}.py"


def test_a_page_without_mistakes_says_none(tmp_path):
    ClassTable([("x", (RIGHT,))]).write_html(tmp_path / "all.html")
    page = (tmp_path / "all.html").read_text()
    assert "<h1>1 file, 1 of 1 passed</h1>" in page
    assert "<p>None.</p>" in page
    ClassTable([("x", (WRONG,))]).write_html(tmp_path / "all.html")
    assert "<p>None.</p>" not in (tmp_path / "all.html").read_text()


def test_a_page_shows_sentences_and_marks_one_that_differs_between_files(tmp_path):
    def verdict(says, task="softmax"):
        return CheckResult(says, ("k",), says={"k": says}, points=0, task=task)

    ann, ben = verdict("the name <a> is unknown."), verdict("the name b is unknown.")
    same = verdict("the file is empty.", None)
    table = ClassTable([("x", (ann, same)), ("y", (ben, same)), ("z", (ben, WRONG))])
    table.write_html(tmp_path / "all.html")
    page = (tmp_path / "all.html").read_text()
    assert "<p>softmax: the name &lt;a&gt; is unknown.</p><p>the file is empty.</p>" in page
    assert "<td>3</td><td>softmax</td><td>for example: the name b is unknown.</td>" in page.replace(
        ' class="points"', ""
    )
    assert "<td>file</td><td>the file is empty.</td>" in page
    assert "<p>attention: b</p>" in page  # this verdict has no sentence for its keys


@pytest.mark.parametrize("kind", ["csv", "html", "xml"])
def test_writing_replaces_an_old_file_atomically(tmp_path, kind):
    target = tmp_path / f"all.{kind}"
    target.write_text("old")
    table = ClassTable([("x", (WRONG,))])
    with open(target) as old:
        if kind == "xml":
            write_junit(target, table.marked)
        else:
            getattr(table, f"write_{kind}")(target)
        assert old.read() == "old"  # an open file keeps its old content
    assert "x" in target.read_text()
    assert [one.name for one in tmp_path.iterdir()] == [target.name]


def test_junit_has_points_fragility_and_conventions_as_properties(tmp_path):
    write_junit(tmp_path / "all.xml", [("x", (FRAGILE, BROKEN))])
    (suite,) = ElementTree.parse(tmp_path / "all.xml").getroot()
    assert [test.get("name") for test in suite] == ["attention", "file"]
    told = [{p.get("name"): p.get("value") for p in test.find("properties")} for test in suite]
    assert told == [
        {"points": "9", "mistakes": "", "fragile": "no-max", "conventions": "prints"},
        {"points": "0", "mistakes": "syntax-error", "fragile": "", "conventions": ""},
    ]


def test_files_in_lists_python_and_notebooks_at_any_depth_sorted(tmp_path):
    folder = tmp_path / ".hidden" / "__class__"
    for name in ("b.py", "a/c.py", "a/.d/e.py", "__f__/g.py", ".h.py", "i.txt", "k.ipynb"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    (folder / "j.py").mkdir()
    found = [Path(file).relative_to(folder).as_posix() for file in files_in(folder)]
    assert found == ["a/c.py", "b.py", "k.ipynb"]
    with pytest.raises(FileNotFoundError, match="has no Python files"):
        files_in(folder / "j.py")

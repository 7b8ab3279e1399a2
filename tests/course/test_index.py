"""Tests of the course's first page, and of the line at the top of each page's source."""

import re
import tomllib
from pathlib import Path

import notebooks
import pytest
from substitutions import filled

PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
INDEX = (notebooks.COURSE / "index.md").read_text(encoding="utf-8")
PAGES = notebooks.lessons()
IN_ORDER = sorted(PAGES, key=lambda page: "capstone" in page.stem)  # the project is the last
DOCS = notebooks.COURSE.parent
# Markdown that shows other text on the site: code cells, docstrings, included files
BUILT = r"^```\{(?:code-cell|eval-rst|include|literalinclude|raw|commands)\}"
SOURCES = [
    path
    for path in sorted([*DOCS.glob("*.md"), *DOCS.glob("*/*.md")])
    if path.name != "README.md" and path.parent.name != "findings"
    if path.parent == notebooks.COURSE or re.search(BUILT, path.read_text("utf-8"), re.MULTILINE)
]


def test_each_lesson_has_its_row_in_order() -> None:
    linked = re.findall(r"^\| \[[^]]+\]\(([\w-]+\.md)\) \|", INDEX, flags=re.MULTILINE)
    assert linked == [page.name for page in IN_ORDER]


def test_each_page_that_goes_deeper_has_its_line() -> None:
    linked = re.findall(r"^- \[([^]]+)\]\(([\w-]+\.md)\): ", INDEX, flags=re.MULTILINE)
    deeper = {}
    for page in notebooks.COURSE.glob("further-*.md"):
        text = page.read_text(encoding="utf-8")
        (deeper[page.name],) = re.findall(r"^# (.+)$", text.partition("```")[0], flags=re.MULTILINE)
    assert {name: title for title, name in linked} == deeper
    assert len(deeper) > 1


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_a_row_has_the_title_the_question_and_the_minutes(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    (title,) = re.findall(r"^# (.+)$", text.partition("```")[0], flags=re.MULTILINE)
    (minutes,) = re.findall(r"^\*\*Minutes\*\* about (\d+) \(estimate\)", text, flags=re.MULTILINE)
    question = re.search(r"^\*\*([^*]+(?:\*\w+\*[^*]+)*\?)\*\*$", text, flags=re.MULTILINE)
    assert question, "the one question stands in a paragraph of its own, in bold"
    row = f"| [{title}]({page.name}) | {' '.join(question[1].split())} | {minutes} |"
    assert row in INDEX, f"docs/course/index.md has no row\n{row}"


def test_the_plan_for_teachers_has_each_lesson_with_its_minutes() -> None:
    plan = (notebooks.COURSE / "teaching.md").read_text(encoding="utf-8")
    planned = re.findall(r"\[Lesson (\d+)\]\(([\w-]+\.md)\) \((\d+) minutes\)", plan)
    for row, page in zip(planned, IN_ORDER, strict=False):
        text = page.read_text(encoding="utf-8")
        (minutes,) = re.findall(r"^\*\*Minutes\*\* about (\d+)", text, flags=re.MULTILINE)
        assert row == (page.stem.partition("-")[0], page.name, minutes)
    assert len(planned) == len(PAGES)


@pytest.mark.parametrize("source", SOURCES, ids=[source.stem for source in SOURCES])
def test_a_source_begins_with_the_address_of_its_page(source: Path) -> None:
    site = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["urls"]["Documentation"]
    text = source.read_text(encoding="utf-8")
    branch = f" The branch `site` has it with all results: `course/{source.stem}.ipynb`."
    line = (
        "> Read this page at "
        f"<{site}/{source.relative_to(DOCS).with_suffix('').as_posix()}.html>"
        f", or build it with `make docs`.{branch if source in PAGES else ''}"
    )
    body = re.sub(r"\A---\n.*?\n---\n\n", "", text, flags=re.DOTALL)
    assert body.partition("\n\n# ")[0] == line
    shown = filled(text)
    assert "Read this page at" not in shown
    before, after = (part.partition("\n# ")[0].count("\n") for part in (text, shown))
    assert before == after  # warnings name the right lines


def test_notebooks_do_not_have_the_line_for_readers_of_the_repository() -> None:
    text = PAGES[0].read_text(encoding="utf-8")
    for make in notebooks.KINDS.values():
        first = make(text).cells[0].source
        assert first.startswith("# 1. Why attention")

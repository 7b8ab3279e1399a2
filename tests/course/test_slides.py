"""Test the slides that are made from each lesson's page."""

import re
from pathlib import Path

import notebooks
import pytest
from bs4 import BeautifulSoup, Tag

BUILT = Path(__file__).parents[2] / "docs" / "_build" / "html" / "course"
LESSONS = notebooks.lessons()


def soup_of(name: str) -> BeautifulSoup:
    path = BUILT / name
    assert path.is_file(), f"there is no {path}: make docs builds it"
    return BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")


@pytest.fixture(params=LESSONS, ids=[page.stem for page in LESSONS])
def lesson(request: pytest.FixtureRequest) -> tuple[str, BeautifulSoup, list[Tag]]:
    """Return the text of a lesson, its built page, and its slides."""
    page: Path = request.param
    slides = soup_of(f"{page.stem}-slides.html").select("main > section")
    return page.read_text(encoding="utf-8"), soup_of(f"{page.stem}.html"), slides


def test_each_slide_has_a_heading_and_at_most_one_thing_to_look_at(lesson) -> None:
    _, page, slides = lesson
    headings = [tag.get_text().rstrip("¶") for tag in page.select("article :is(h1, h2, h3)")]
    shown = [slide.find(re.compile("^h[1-3]$")).get_text() for slide in slides]
    assert list(dict.fromkeys(shown)) == headings
    for slide in slides:
        things = slide.find_all(
            class_=["cell", "math-wrapper", "table-wrapper", "live"], recursive=False
        )
        assert len(things) <= 1
        assert len(slide.get_text().strip()) > len(slide.find(re.compile("^h")).get_text())


def test_slides_ask_and_do_not_tell(lesson) -> None:
    text, _, slides = lesson
    told = "\n".join(slide.get_text() for slide in slides)
    for question in re.findall(r"\*\*(Before you run this):\*\*", text):
        assert question in told
    stubs = text.count("tags: [stub]")
    assert sum("tag_stub" in str(slide) for slide in slides) == stubs
    everything = "".join(map(str, slides))
    for secret in ("tag_solution", "For the teacher", "Hint 1"):
        assert secret not in everything
    for details in (tag for slide in slides for tag in slide.find_all("details")):
        assert not details.has_attr("open")


def test_pictures_of_the_lesson_are_on_its_slides(lesson) -> None:
    _, page, slides = lesson
    kept = [
        image["src"]
        for image in page.select("article .cell_output img")
        if not image.find_parent(class_=["tag_solution", "teacher", "hint"])
        # slides leave out the cells that mark an answer
        and not re.search(r"^qkv\.check\(", image.find_parent(class_="cell").get_text(), re.M)
    ]
    assert [tag["src"] for slide in slides for tag in slide.select(".cell_output img")] == kept

"""Make the slides of a lesson from its built page, as one page for a projector.

A slide has a heading, the first sentence of each paragraph (and every sentence with a bold word),
and at most one exhibit: a picture, a formula, a cell, a table or a live view. The text below an
exhibit is on the same slide as the exhibit. A paragraph below an exhibit begins a new slide if it
begins in bold or ends with a colon. Answers stay folded; hints, solutions and notes for teachers
are left out.
"""

import re
from collections.abc import Iterator
from copy import copy
from pathlib import Path

from bs4 import BeautifulSoup, Tag

LEFT_OUT = {"teacher", "hint", "tag_solution", "notebooks", "headerlink"}
SHOWN = {"cell", "math-wrapper", "math", "table-wrapper", "live"}
SCRIPTS = re.compile(r"documentation_options|doctools|sphinx_highlight|furo\.js", re.IGNORECASE)
# Matches the space between two sentences, even if tags end or begin a sentence.
END = re.compile(r"(?:(?<=[.?!])|(?<=[.?!]</strong>)|(?<=[.?!]</em>))\s+(?=(?:<[^>]+>)*[A-Z0-9*])")


def write(page: Path) -> Path:
    """Write the slides of a built page beside it: `3-one-function-slides.html`."""
    path = page.with_name(f"{page.stem}-slides.html")
    path.write_text(slides(page.read_text(encoding="utf-8")), encoding="utf-8")
    return path


def slides(page: str) -> str:
    """Return the page of slides for the built page of a lesson."""
    soup = BeautifulSoup(page, "html.parser")
    for script in soup.head("script") + soup.body("script"):
        if SCRIPTS.search(script.get("src", script.text)):
            script.extract()
    scripts = soup.body("script")  # of formulas
    top = soup.select_one("article section")
    for tag in top.find_all(class_=[*LEFT_OUT]):
        tag.decompose()
    for link in top.find_all("a", class_="internal"):
        link.unwrap()
    title = top.h1.get_text()
    made = [*_of_section(top)]
    main = soup.new_tag("main")
    for number, parts in enumerate(made, 1):
        slide = soup.new_tag("section", id=f"slide-{number}", tabindex="-1")
        slide.extend(parts)
        main.append(slide)
    soup.body.clear()
    soup.body["class"] = "slides"
    soup.body.append(main)
    soup.body.extend(scripts)
    soup.title.string = f"{title}: slides"
    for name, attributes in {
        "link": {"rel": "stylesheet", "href": "../_static/slides.css"},
        "script": {"src": "../_static/slides.js", "defer": ""},
    }.items():
        soup.head.append(soup.new_tag(name, attrs=attributes))
    return str(soup)


def _of_section(section: Tag) -> Iterator[list[Tag]]:
    """Return the slides of a section and its subsections, each as a list of its elements."""
    heading = section.find(re.compile("^h[1-6]$"), recursive=False)
    is_task = "task" in section["id"]  # the text that states the task is shown in full
    slide: list[Tag] = []
    shown = False  # whether the current slide has an exhibit
    for tag in section.find_all(True, recursive=False):
        if tag is heading or tag.name in ("span", "script") or _says_nothing(tag):
            continue
        if tag.name == "section":
            if slide:
                yield [copy(heading), *slide]
            slide, shown = [], False
            yield from _of_section(tag)
            continue
        is_shown = bool({*tag.get("class", [])} & SHOWN)
        if (shown and is_shown) or (slide and _begins_anew(tag, shown)):
            yield [copy(heading), *slide]
            slide, shown = [], False
        slide.append(_seen(tag) if is_shown else copy(tag) if is_task else _shortened(tag))
        shown = shown or is_shown
    if slide:
        yield [copy(heading), *slide]


def _says_nothing(tag: Tag) -> bool:
    """Return whether a cell calls `qkv.check`, or has folded code and no output."""
    if "cell" not in tag.get("class", []):
        return False
    code = tag.select_one(".cell_input pre")
    is_check = code is not None and re.search(r"^qkv\.check\(", code.get_text(), re.MULTILINE)
    return bool(is_check) or (not _seen(tag).get_text(strip=True) and not tag.find("img"))


def _begins_anew(tag: Tag, shown: bool) -> bool:
    """Return whether a paragraph begins a new slide.

    `shown` is True if the current slide already has an exhibit.
    """
    if tag.name != "p":
        return False
    starts_bold = getattr(next(iter(tag.contents), None), "name", None) == "strong"
    text = tag.get_text().rstrip()
    leads = starts_bold or text.endswith(":") or "Before you run this" in text
    return _is_question(tag) or text.startswith("From memory.") or (shown and leads)


def _is_question(tag: Tag) -> bool:
    """Return whether a paragraph is all bold, like the question of a lesson."""
    return tag.name == "p" and [getattr(one, "name", "") for one in tag.contents] == ["strong"]


def _seen(tag: Tag) -> Tag:
    """Return a cell as a slide shows it: without its code, if the code is folded."""
    tag = copy(tag)
    if "tag_hide-input" in tag.get("class", []):
        for folded in tag.select(":scope > details.above-input"):
            folded.decompose()
    return tag


def _shortened(tag: Tag) -> Tag:
    """Return a paragraph's first sentence, and those later sentences that contain bold words."""
    if tag.name != "p" or _is_question(tag):
        return copy(tag)
    first, *others = END.split(tag.decode_contents())
    if others and first.endswith("</strong>"):  # it is a heading: keep the next sentence too
        first = f"{first} {others.pop(0)}"
    if first.count("(") > first.count(")"):
        first = first[: first.rindex("(")]
    kept = [first, *(one for one in others if "<strong>" in one)]
    return BeautifulSoup(f"<p>{' '.join(kept)}</p>", "html.parser").p

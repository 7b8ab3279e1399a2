"""Tests of articles: Markdown as HTML, and the positions of findings."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from qkv.findings._finding_files import read_article

PIXEL = b"\x89PNG\r\n\x1a\n"


def parts_of(folder: Path, text: str | bytes) -> tuple[str, list]:
    path = folder / "article.md"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_article(path, lambda path, claim: (path.relative_to(folder).as_posix(), claim))


def test_findings_stand_where_they_are_placed(tmp_path: Path) -> None:
    title, parts = parts_of(
        tmp_path,
        "\ufeff# The *first* `head`\n\nWords.\n\n![One](a.json)\n\n## More\n\n"
        "![Two *b*](in/my%20b.json)\n![](c.json)\n\n![Four][d]\n\n"
        "| x | y |\n|---|---|\n| 1 | 2 |\n\n[d]: d.json\n",
    )
    assert title == "The first head"
    first, one, second, two, three, four, table = parts
    assert first == "<h2>The <em>first</em> <code>head</code></h2>\n<p>Words.</p>\n"
    assert second == "<h3>More</h3>\n"
    assert (one, two, three, four) == (
        ("a.json", "One"),
        ("in/my b.json", "Two *b*"),
        ("c.json", ""),
        ("d.json", "Four"),
    )
    assert "<td>1</td>" in table


def test_an_article_without_findings_and_headings(tmp_path: Path) -> None:
    assert parts_of(tmp_path, "Only words") == ("", ["<p>Only words</p>\n"])
    assert parts_of(tmp_path, "") == ("", [])


def test_nothing_in_an_article_runs(tmp_path: Path) -> None:
    _, parts = parts_of(
        tmp_path,
        "<script>alert(1)</script>\n\n<b onclick='x'>b</b> [a](javascript:alert(1)) "
        "[b](data:text/html,x) ![c](javascript:x)\n\n`</script>`\n",
    )
    [html] = parts
    assert "<script" not in html
    assert "<b" not in html
    assert "href" not in html
    assert "src=" not in html


def test_pictures_are_embedded_as_data_urls(tmp_path: Path) -> None:
    (tmp_path / "a b.png").write_bytes(PIXEL)
    (tmp_path / "c.svg").write_text("<svg/>")
    inside = "data:image/gif;base64,R0lGODlhAQABAAAAACw="
    _, [html] = parts_of(
        tmp_path, f'![one](a%20b.png) and ![two](c.svg "title")\n\n![three]({inside})'
    )
    assert f'<img src="data:image/png;base64,{base64.b64encode(PIXEL).decode()}" alt="one"' in html
    assert f"data:image/svg+xml;base64,{base64.b64encode(b'<svg/>').decode()}" in html
    assert inside in html


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("See ![a](a.json) here.", "a.json is inside other text: put"),
        ("- ![a](a.json)", "a.json is inside other text"),
        ("> ![a](a.json)", "a.json is inside other text"),
        ("# ![a](a.json)", "a.json is inside other text"),
        ("| ![a](a.json) |\n|---|\n| b |", "a.json is inside other text"),
        ("![a](https://example.org/a.png)", "the picture https://example.org/a.png is not a local"),
        ("![a](notes.txt)", "the picture notes.txt is not a local picture file"),
        (b"\xff", "is not UTF-8: invalid start byte at byte 0"),
    ],
)
def test_content_that_cannot_be_shown_is_refused(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"article\.md(: | ){said}") as raised:
        parts_of(tmp_path, text)
    assert "\n" not in str(raised.value)


def test_files_that_are_not_there_or_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FileNotFoundError):
        read_article(tmp_path / "none.md", lambda path, claim: claim)
    with pytest.raises(FileNotFoundError, match=r"b\.png"):
        parts_of(tmp_path, "![b](b.png)")
    monkeypatch.setattr("qkv.findings._finding_files._LARGEST_PICTURE", 3)
    (tmp_path / "b.png").write_bytes(PIXEL)
    with pytest.raises(ValueError, match=r"the picture b\.png has 8 bytes; use a picture of at.*3"):
        parts_of(tmp_path, "![b](b.png)")


@pytest.mark.parametrize("way", ["..", "absolute", "link", "folder"])
@pytest.mark.parametrize("name", ["b.png", "b.json"])
def test_files_outside_the_folder_are_refused(name: str, way: str, tmp_path: Path) -> None:
    folder, outside = tmp_path / "article", tmp_path / "private" / name
    folder.mkdir()
    outside.parent.mkdir()
    outside.write_bytes(PIXEL)
    (folder / name).symlink_to(outside)
    (folder / "inner").symlink_to(outside.parent)
    paths = {"..": f"../private/{name}", "absolute": f"{outside}", "link": name}
    source = paths.get(way, f"inner/{name}")
    with pytest.raises(ValueError, match=rf"article\.md: {source} is outside the folder of the"):
        parts_of(folder, f"![a]({source})")


def test_links_within_the_folder_are_followed(tmp_path: Path) -> None:
    (tmp_path / "article" / "inner").mkdir(parents=True)
    (tmp_path / "article" / "inner" / "b.png").write_bytes(PIXEL)
    (tmp_path / "article" / "a.png").symlink_to("inner/b.png")
    (tmp_path / "link").symlink_to("article")
    _, [html] = parts_of(tmp_path / "link", "![a](a.png) ![b](inner/b.png)")
    assert html.count(base64.b64encode(PIXEL).decode()) == 2

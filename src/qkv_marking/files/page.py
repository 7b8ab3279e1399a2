"""Write an HTML page that works offline, from elements with escaped text."""

from html import escape
from importlib.resources import files
from string import Template

from qkv.files import StrPath, replacing


def write_page(path: StrPath, title: str, *parts: str) -> None:
    """Write parts of HTML as a page; the title is also the first heading.

    Raises:
        OSError: the file cannot be written.
    """
    page = files(__package__).joinpath("page.html").read_text("utf-8")
    text = Template(page).substitute(title=escape(title), body="\n".join(parts))
    with replacing(path) as out:
        out.write(text.encode("utf-8", "replace"))


def element(tag: str, content: object, **attributes: str) -> str:
    """Write an element; the names of attributes may end in "_".

    >>> element("td", "a < b", class_="points")
    '<td class="points">a &lt; b</td>'
    """
    about = (f' {name.rstrip("_")}="{escape(value)}"' for name, value in attributes.items())
    return f"<{tag}{''.join(about)}>{escape(str(content))}</{tag}>"


def mark_diff(line: str) -> str:
    """Write a line of a function (minus), of the formula (plus), or any other line."""
    tag = {"- ": "del", "+ ": "ins"}.get(line[:2])
    return element(tag, line) if tag else escape(line)

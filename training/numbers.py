"""Compute the numbers of included models that the docs quote: `python -m training.numbers`.

`numbers.toml` contains a section for each page: the page's path, and named f-strings. The command
runs the cells of each page, evaluates the f-strings with the variables of the cells, and writes the
results to docs/data/numbers.json and into the pages, before the number's name, such as
`0.54<!-- lesson1.river -->`, or into the code block that ends before the name. If a page has no
cells, its section contains Python code (the entry `code`) instead of the page's path (the entry
`page`).

A page's other statements about the included weights are tested by asserts in a hidden cell
(`:tags: [remove-cell, raises-exception]`). If an assert fails, the command goes on, and lists the
assert under "untrue" in numbers.json: an author must then correct the statement.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import linecache
import re
import tomllib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qkv.files import replacing
from training import command, readme

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
FILE = DOCS / "data" / "numbers.json"
DATA = ROOT / "src" / "qkv" / "data"  # the folder of the models
AGAIN = "python -m training.numbers"
_CELL = re.compile(r"^```\{code-cell\}[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_OPTIONS = re.compile(r"\A(---\n.*?^---\n|(?::[^\n]*\n)+)?", re.MULTILINE | re.DOTALL)
_NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")


def sections() -> dict[str, dict[str, str]]:
    """Read numbers.toml; each section has named f-strings, and an entry `page` or `code`."""
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def cells(page: str) -> list[tuple[str, bool]]:
    r"""Return the code cells of a page's text, and whether each cell may fail.

    >>> cells('''```{code-cell} ipython3
    ... :tags: [remove-cell, raises-exception]
    ...
    ... assert 1 + 1 == 2
    ... ```''')
    [('assert 1 + 1 == 2\n', True)]
    """
    found = []
    for block in _CELL.findall(page):
        options = _OPTIONS.match(block)
        assert options is not None
        found.append((block[options.end() :].lstrip("\n"), "raises-exception" in options[0]))
    return found


def section(table: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Compute the values of one section, and the failing asserts of its page."""
    names: dict[str, Any] = {"__name__": "page"}
    if "page" not in table:
        exec(table["code"], names)
        return _values(table, names), []
    page = DOCS / table["page"]
    untrue: list[str] = []
    with _on_page(page.parent):
        for source, may_fail in cells(page.read_text(encoding="utf-8")):
            if may_fail:
                untrue += [f"{table['page']}: {one}" for one in _failing(source, names)]
            else:
                _run(source, table["page"], names)
        return _values(table, names), untrue


def numbers(only: Sequence[str] = ()) -> dict[str, Any]:
    """Compute all sections, or the named sections: {section: {name: value}, "untrue": [...]}."""
    found: dict[str, Any] = {}
    untrue: list[str] = []
    for name, table in sections().items():
        if not only or name in only:
            found[name], more = section(table)
            untrue += more
    return found | {"untrue": untrue}


def _values(table: Mapping[str, str], names: dict[str, Any]) -> dict[str, str]:
    """Evaluate each name's f-string with the variables of a page."""
    own = {name: form for name, form in table.items() if name not in ("page", "code")}
    found = {}
    for name, form in own.items():
        try:
            found[name] = str(eval(f"f'''{form}'''", names))
        except Exception as error:
            error.add_note(f"of {name} = '{form}' in numbers.toml")
            raise
    return found


def _run(source: str, page: str, names: dict[str, Any]) -> None:
    """Run a cell such that tracebacks and `inspect` find the cell's source."""
    name = f"<cell of {page}, {hash(source)}>"
    linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
    exec(compile(source, name, "exec"), names)


def _failing(source: str, names: dict[str, Any]) -> Iterator[str]:
    """Return the statements of a cell that raise an error."""
    for node in ast.parse(source).body:
        try:
            exec(compile(ast.Module([node], []), "cell", "exec"), names)
        except Exception:
            yield ast.unparse(node)


@contextlib.contextmanager
def _on_page(folder: Path) -> Iterator[None]:
    """Run cells as a notebook does, but show no output."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    quiet = contextlib.redirect_stdout(io.StringIO())
    with warnings.catch_warnings(), contextlib.chdir(folder), quiet, np.printoptions():
        warnings.simplefilter("ignore")
        with mpl.rc_context({"backend": "agg"}):
            yield
        plt.close("all")


def alike(one: str, other: str, rounded: bool = False) -> bool:
    """Return whether two values are equal up to rounding.

    On another processor, the last digit of a rounded number may differ by one. Values that are not
    rounded, such as a head's name or a count, must be equal.

    >>> alike("0.32", "0.33", rounded=True), alike("3.2", "3.3")
    (True, False)
    """
    if one == other or not rounded:
        return one == other
    if _NUMBER.sub("#", one) != _NUMBER.sub("#", other):
        return False
    pairs = zip(_NUMBER.findall(one), _NUMBER.findall(other), strict=True)
    return all(_near(a.replace(",", ""), b.replace(",", "")) for a, b in pairs)


def _near(one: str, other: str) -> bool:
    """Return whether two numbers have equally many decimals and differ by one in the last decimal.

    Numbers with many digits may differ by the rounding error of float32. Counts must be equal.
    """
    digits = [len(each.partition(".")[2]) for each in (one, other)]
    if digits[0] != digits[1] or not digits[0]:
        return one == other
    return abs(float(one) - float(other)) < max(1.5 * 10.0 ** -digits[0], 1e-5 * abs(float(one)))


def kept() -> dict[str, Any]:
    """Return the contents of numbers.json."""
    found: dict[str, Any] = json.loads(FILE.read_bytes())
    return found


def renewed(page: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    r"""Return a page's source with the numbers of `new` instead of those of `old`.

    >>> renewed("0.3, *0.3*<!-- a.b --> and ?<!-- a.c -->", {"a": {"b": "0.3"}},
    ...         {"a": {"b": "0.4", "c": "2"}})
    '0.3, *0.4*<!-- a.b --> and 2<!-- a.c -->'
    >>> renewed("```\n3 s\n```\n<!-- a.b -->", {"a": {"b": "3"}}, {"a": {"b": "4"}})
    '```\n4 s\n```\n<!-- a.b -->'
    """
    for section, name in set(re.findall(r"<!-- (\w+)\.(\w+) -->", page)):
        number = re.escape(old.get(section, {}).get(name, "?"))
        value = new.get(section, {}).get(name, "?")
        before_name = rf"(?=[*`]*([^`]*\n```\n)?<!-- {section}\.{name} -->)"
        page = re.sub(number + before_name, value.replace("\\", r"\\"), page)
    return page


def main(arguments: Sequence[str] | None = None) -> None:
    """Write numbers.json, the pages and README.md's outputs; report claims that became false."""
    parser = argparse.ArgumentParser(prog=AGAIN, description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.parse_args(arguments)
    old, found = kept(), numbers()
    texts = {
        page: renewed(page.read_text(encoding="utf-8"), old, found)
        for page in sorted(DOCS.rglob("*.md"))
    }
    texts[FILE] = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
    texts[readme.PLACE] = readme.written(readme.PLACE.read_text(encoding="utf-8"))
    for path, text in texts.items():
        with replacing(path) as file:
            file.write(text.encode())
    for one in found["untrue"]:
        print(f"numbers: no longer true: {one}")


if __name__ == "__main__":
    command(main)

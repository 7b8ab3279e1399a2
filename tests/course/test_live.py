"""Test the directive that embeds the live page: its addresses, its errors and its output."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import live
import notebooks
import pytest

import qkv
from qkv.edits import operations

TEXT = "the bank of the river"
ASSETS = Path(__file__).parents[2] / "src/qkv/see/page/assets"


def state(text: str = TEXT, **options: str) -> dict[str, object]:
    """Return the state in the address, parsed as the page parses it."""
    page, _, hash_ = live.address("../play.html", text, options).partition("#")
    assert page == "../play.html"
    return {
        name: value if name == "text" else json.loads(value)
        for name, value in parse_qsl(hash_, strict_parsing=True)
    }


def test_the_state_holds_the_options_of_the_directive() -> None:
    found = state(only="sentence head", layer="0", head="2", query="bank", inside="")
    assert found == {
        "text": TEXT,
        "only": ["sentence", "head"],
        "layer": 0,
        "head": 2,
        "query": 2,  # "bank" is at position 2: [CLS], "the", "bank"
        "inside": True,
    }


SECOND = "the bank gave a loan, & more"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"only": "sentence second", "second": SECOND}, {"second": SECOND}),
        ({"only": "sentence second", "colouring": "effect"}, {"colouring": "effect"}),
        # a query is a word or a position
        ({"only": "head", "query": "River"}, {"query": 5}),
        ({"only": "head", "query": "4"}, {"query": 4}),
        # the word "2" is at position 2: [CLS], "in", "2", "days"
        ({"text": "in 2 days", "only": "head", "query": "2"}, {"query": 2}),
        ({"text": "She [MASK].", "only": "head", "query": "[MASK]"}, {"query": 2}),
        # visible guesses are for the position of the query
        ({"only": "sentence outcome", "query": "river"}, {"position": 5}),
        ({"only": "headline map", "query": "river"}, {"position": 5}),
        ({"only": "sentence head", "query": "river"}, {"position": None}),
        # edits are shown beside the original if a head is visible
        ({"only": "sentence head", "edits": "causal, hide river"}, {"beside": True}),
        (
            {"only": "sentence head", "edits": "causal, hide river"},
            {"edits": [{"op": "causal"}, {"op": "hide", "token": 5}]},
        ),
        ({"only": "sentence outcome", "edits": "causal"}, {"beside": False}),
        ({"only": "head", "edits": "scale 0.5"}, {"edits": [{"op": "scale", "value": 0.5}]}),
    ],
)
def test_an_option_sets_a_part_of_the_state(options: dict[str, str], expected: Any) -> None:
    found = state(**options)
    assert {name: found.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({}, "the option `only` is missing: name some of sentence, changes, temperature"),
        ({"only": ""}, "no region is named: choose from sentence"),
        ({"only": "sentence heads"}, "no region 'heads': choose from sentence, changes"),
        ({"only": "head", "layer": "4"}, "layer: '4' is not one of 0 to 3"),
        ({"only": "head", "head": "-1"}, "head: '-1' is not one of 0 to 5"),
        ({"only": "head", "query": "loan"}, r"'loan' is not a token of 'the bank .* from \[CLS\]"),
        ({"only": "head", "query": "the"}, "more than once .* pass its position, 1 or 4"),
        ({"only": "head", "query": "7"}, "'7' is not a token of"),
        ({"only": "head", "edits": "hide loan"}, "'loan' is not a token of"),
        ({"only": "head", "edits": "hide"}, "'hide' is not an edit: write `causal`, `hide WORD`"),
        ({"only": "head", "edits": "scale down"}, "edits: 'scale down' is not an edit"),
        ({"only": "head", "edits": "scale 0"}, "edits: 'scale 0' is not an edit"),
        ({"only": "head", "edits": "turn it"}, "edits: 'turn it' is not an edit"),
        ({"only": "map", "colouring": "red"}, "colouring: 'red' is unknown.*effect"),
    ],
)
def test_invalid_options_are_named(options: dict[str, str], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        live.state_of(TEXT, options)


def test_the_directive_accepts_the_names_of_the_live_page() -> None:
    """The directive accepts the same names as the page's own tables."""
    store = (ASSETS / "store/state.js").read_text(encoding="utf-8")

    def listed(pattern: str) -> list[str]:
        (found,) = re.findall(pattern, store)
        return re.findall(r'"(\w+)"', found)

    (parts,) = re.findall(r"const PART_OF = \{(.*?)\};", store)
    of_parts = re.findall(r"(\w+):", parts)
    assert set(live.REGIONS) == {*listed(r"const ONLY = \[(.*?)\];"), *of_parts}
    assert list(live.COLOURINGS) == listed(r"colouring: \[(.*?)\]")
    assert {"causal", "hide", "scale"} <= operations().keys()
    menu = (ASSETS / "parts/map.js").read_text(encoding="utf-8")
    for name, said in live.COLOURINGS.items():
        assert f'["{name}", "{said}"]' in menu


VIEW = """# A page

````{live} the bank of the river
:only: sentence head
:query: bank
:height: 333
Click *river*.
````
"""


WRONG = {
    "region": (
        ("sentence head", "sentence tail"),
        "live: only: the live page has no region 'tail'",
    ),
    "empty": (
        ("Click *river*.", ""),
        "live: no text below the options: add a text that says what to try",
    ),
    "option": ((":height: 333", ":high: 333"), "high"),
}


def built(root: Path, pages: dict[str, str]) -> str:
    """Build a site in root/html, and return the warnings."""
    for name, text in pages.items():
        path = root / "docs" / f"{name}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    options = ["-Dextensions=myst_parser,live", f"-Droot_doc={min(pages)}", "--no-color"]
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-C", "-q", *options, root / "docs", root / "html"],
        env=os.environ | {"PYTHONPATH": str(notebooks.COURSE.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stderr


def test_a_page_has_a_link_to_the_live_page_and_what_to_try(tmp_path: Path) -> None:
    pages = {"page": "", "course/page": "../"}
    orphan = "---\norphan: true\n---\n\n"
    assert built(tmp_path, dict.fromkeys(pages, orphan + VIEW)) == ""
    for name, up in pages.items():
        html = (tmp_path / "html" / f"{name}.html").read_text(encoding="utf-8")
        ((height, href, said),) = re.findall(
            r'<p class="live-view" data-height="(\d+)"><a href="([^"]+)">([^<]+)</a></p>', html
        )
        assert height == "333"
        address = live.address(f"{up}play.html", TEXT, {"only": "sentence head", "query": "bank"})
        assert href == address.replace("&", "&amp;")
        assert said == f"Open a trained model on “{TEXT}”: the words and one head"
        assert "<p>Click <em>river</em>.</p>" in html
        assert "live.js" in html
        assert "<iframe" not in html  # without scripts, the page shows only the link


def test_an_invalid_directive_is_reported_in_the_build(tmp_path: Path) -> None:
    said = built(tmp_path, {name: VIEW.replace(*change) for name, (change, _) in WRONG.items()})
    for name, (_, complaint) in WRONG.items():
        assert re.search(rf"{name}\.md:\d+: .*{complaint}", said), said


def test_a_notebook_cell_opens_the_same_live_view() -> None:
    page = """---
kernelspec: {display_name: Python 3, language: python, name: python3}
---

# 9. A lesson

Before.

````{live} the bank of the river
:only: sentence second head
:second: the bank gave a loan
:layer: 1
:head: 2
:query: 2
:edits: causal, hide river, scale 1
:inside:

Click *river*.
````

After.

```{code-cell} ipython3
x = 1
```
"""
    heading, install, call, after, _ = notebooks.student(page).cells[:5]
    assert heading.source.endswith("Before.")
    assert notebooks.cell_tags(install) == {"install"}
    assert (call.cell_type, notebooks.cell_tags(call)) == ("code", {"live"})
    view = eval(call.source, {"qkv": qkv})
    assert view.text == "the bank of the river"
    state = dict(parse_qsl(view.state[1:]))
    assert (state["layer"], state["head"], state["query"]) == ("1", "2", "2")
    assert json.loads(state["edits"])[1] == {"op": "hide", "token": 5}
    assert after.source == "Click *river*.\n\nAfter."

"""The script's source: it parses, keeps to its rules, and stays small."""

import re
import subprocess
from pathlib import Path

import pytest
from playwright._impl._driver import compute_driver_executable

import qkv.see
from qkv.see.page.html import SCRIPTS as OF_KIND
from qkv.see.page.html import asset

ASSETS = Path(qkv.see.__file__).parent / "page" / "assets"
SCRIPTS = sorted(str(path.relative_to(ASSETS)) for path in ASSETS.rglob("*.js"))
_OWN = ("gaps", "wordpiece", "edits", "engine", "worker", "door")
ENGINE = [f"engine/{name}.js" for name in _OWN]  # a script of their own
SERVER = "engine/server.js"  # of a page that a server shows, which it asks
KINDS = {kind: [f"{name}.js" for name in names] for kind, names in OF_KIND.items()}
FORBIDDEN = [
    *(r"\binnerHTML\b", r"\bouterHTML\b", r"insertAdjacentHTML", r"document\.write", r"\beval\b"),
    *(r"new Function", r"\bfetch\(", r"XMLHttpRequest", r"WebSocket", r"sendBeacon"),
    r"\bimport\b(?! (numpy|qkv)\b)",  # the page writes Python
    *(
        r"https?://(?!www\.w3\.org/2000/svg)",
        r"\bvar\s+\w",
        r"[^=!]==[^=]",
        r"!=[^=]",
        r"console\.",
    ),
    *("</script", "<!--", r"\bdebugger\b", r"localStorage", r"document\.cookie"),
]


@pytest.mark.parametrize("name", SCRIPTS)
def test_source_keeps_to_the_rules(name: str) -> None:
    source = (ASSETS / name).read_text("utf-8")
    code = re.sub(r"^\s*(//|/?\*).*", "", source, flags=re.MULTILINE)
    for rule in FORBIDDEN:
        if (name, rule) == (SERVER, r"\bfetch\("):
            assert re.findall(r"\bfetch\((.*?),", code) == ['"v1/trace"']
            continue
        assert not re.search(rule, code), rule
    for number, line in enumerate(source.split("\n"), 1):
        before = re.split(r" // ", line)[0]  # what follows is left out of pages
        assert not any(before.count(quote) % 2 for quote in '"`'), f"{name}:{number}"
        assert len(line) <= 140 or '"' in line or "`" in line, f"{name}:{number} is too long"
        assert line == line.rstrip(), f"{name}:{number} ends on a blank"
        assert line.count("`") % 2 == 0, f"{name}:{number}: a template of several lines"


def test_every_script_is_part_of_a_page() -> None:
    of_kinds = {name for kind in KINDS.values() for name in kind}
    assert set(SCRIPTS) == {"view.js", *ENGINE, SERVER, *of_kinds}


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name != "view.js"])
def test_what_is_declared_is_used(name: str) -> None:
    own = (ASSETS / name).read_text("utf-8")
    pages = [files for files in (ENGINE, [SERVER], *KINDS.values()) if name in files]
    others = {"view.js"}.union(*pages)
    code = "".join((ASSETS / other).read_text("utf-8") for other in others)
    code += "openDoor(onmessage);openServer();"  # what the pages and the browser call
    for declared in re.findall(r"^(?:function|const|let) (\w+)", own, flags=re.MULTILINE):
        assert len(re.findall(rf"\b{declared}\b", code)) > 1, f"{declared} is never used"


@pytest.mark.parametrize("kind", KINDS)
def test_no_two_files_of_a_page_declare_the_same(kind: str) -> None:
    code = "\n".join((ASSETS / name).read_text("utf-8") for name in ["view.js", *KINDS[kind]])
    found = re.findall(r"^(?:async )?(?:function|const|let|class) (\w+)", code, flags=re.MULTILINE)
    for several in re.findall(r"^(?:const|let) [\[{](.*?)[\]}] =", code, flags=re.MULTILINE):
        found += several.split(", ")
    assert len(found) > 20
    assert {name for name in found if found.count(name) > 1} == set()


@pytest.mark.parametrize("kind", KINDS)
def test_the_script_of_a_page_parses_and_stays_small(kind: str, tmp_path: Path) -> None:
    body = "\n".join(map(asset, ["view.js", *KINDS[kind]]))
    code = f'(() => {{ "use strict";\n{body}\n}})();\n'
    assert len(code.encode()) < (290_000 if kind == "play" else 100_000)
    check_syntax(code, tmp_path)


def test_the_script_of_the_engine_parses_and_stays_under_30_kb(tmp_path: Path) -> None:
    *compute, door = (asset(name) for name in ENGINE)
    code = f'"use strict";\nfunction compute() {{\n{"".join(compute)}}}\n{door}'
    assert len(code.encode()) < 30_000
    check_syntax(code, tmp_path)


def check_syntax(code: str, tmp_path: Path) -> None:
    (tmp_path / "page.js").write_text(code, encoding="utf-8")
    node = str(compute_driver_executable()[0])
    done = subprocess.run([node, "--check", tmp_path / "page.js"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

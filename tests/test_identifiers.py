"""Tests of names: no part of a house, and no function that a participle alone names."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CODE = [ROOT / name for name in (".ci", "benchmarks", "docs", "src", "tests", "training")]
# Words that do not say what a thing is or what it limits. For example, name an interface `api`, a
# package `package`, and a limit after its quantity, such as MAX_TOKENS.
VAGUE = {"corridor", "door", "face", "floor", "room"}
# Comments, strings and properties in JavaScript. A name is none of these.
OTHER = re.compile(r"/\*.*?\*/|//[^\n]*|\"[^\"\n]*\"|'[^'\n]*'|\.\w+", re.DOTALL)


def vague(path: str, source: str) -> set[str]:
    """Return the names in a file that are one of the words in `VAGUE`, or the name MOST."""
    names = {Path(path).stem}
    if path.endswith(".py"):
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.arg):
                names.add(node.arg)
            elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.add(node.id if isinstance(node, ast.Name) else node.attr)
    elif path.endswith(".js"):
        names |= set(re.findall(r"\w+", OTHER.sub(" ", source)))
    else:
        names |= set(re.findall(r"\.([a-z][\w-]*)", source))
    return {name for name in names if name.strip("_").lower() in VAGUE or name.strip("_") == "MOST"}


def test_no_name_is_a_part_of_a_house() -> None:
    files = [
        path
        for folder in CODE
        for path in sorted(folder.rglob("*"))
        if path.suffix in {".py", ".js", ".css"} and not {"bundles", "_build"} & set(path.parts)
    ]
    assert len(files) > 900
    found = {
        path.relative_to(ROOT).as_posix(): vague(path.name, path.read_text("utf-8"))
        for path in files
    }
    assert not {path: names for path, names in found.items() if names}, (
        "name each thing after what it is, and each limit after what it limits"
    )


def test_a_vague_name_is_seen() -> None:
    assert vague("door.py", "") == {"door"}
    assert vague("a.py", "MOST = 3\ndef face(room): self.floor = np.floor(room)") == {
        *("MOST", "face", "floor", "room")
    }
    assert vague("a.js", 'const room = Math.floor(x); // the door\nlet a = "face";') == {"room"}
    assert vague("a.css", ".play .room > p { color: red }") == {"room"}


# Functions that may be named by a participle: public names, and the name in saved pickles.
PARTICIPLES = {"_unpickled", "fused", "lowercased", "packed", "scaled", "unpacked", "weighted"}
# Participles without -ed that once named functions.
IRREGULAR = {"drawn", "found", "given", "held", "kept", "known", "lost", "said", "seen", "shown"}
IRREGULAR |= {"begun", "bound", "made", "spelt", "taken", "told", "thrown", "worn", "written"}


def participles(source: str) -> set[str]:
    """Return the functions of a Python file, except properties, named by a participle alone."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            name = node.name.strip("_")
            alone = name in IRREGULAR or re.fullmatch(r"[a-z]*[^e]ed", name)
            is_property = any("property" in ast.unparse(one) for one in node.decorator_list)
            if alone and not is_property:
                found.add(node.name)
    return found - {"embed", "unembed"}


def test_a_function_is_named_by_a_verb() -> None:
    files = sorted((ROOT / "src").rglob("*.py"))
    found = {
        path.relative_to(ROOT).as_posix(): names
        for path in files
        if (names := participles(path.read_text("utf-8")) - PARTICIPLES)
    }
    assert not found, "begin with a verb: check_shape, not checked"


def test_a_participle_is_seen() -> None:
    source = "def _checked(): pass\ndef embed(): pass\ndef check_shape(): pass\ndef shown(): pass"
    assert participles(source) == {"_checked", "shown"}
    assert not participles("class A:\n    @property\n    def changed(self): pass")

"""Tests of docs/reference/: every public name has an entry, on one page."""

import re
from importlib import import_module
from pathlib import Path

import qkv

PAGES = sorted((Path(__file__).parent.parent / "docs" / "reference").glob("*.md"))
PACKAGES = (
    "attend",
    "circuits",
    "embed",
    "findings",
    "layers",
    "learn",
    "models",
    "scale",
    "see",
)
PACKAGES += ("text", "trace")


def found(path: str) -> object:
    """Return the object or the module that a dotted name refers to."""
    module, _, name = path.rpartition(".")
    try:
        return getattr(import_module(module), name)
    except AttributeError:
        return import_module(path)


def entries(text: str) -> dict[str, object]:
    """Return the objects that Sphinx documents, keyed by name.

    If the page lists members of a module, Sphinx documents the listed members. If the page has no
    such list, Sphinx documents every name in the module's `__all__`, except the names that the page
    excludes.
    """
    given: dict[str, object] = {}
    for directive in re.split(r"^\.\. ", text, flags=re.MULTILINE)[1:]:
        kind, _, rest = directive.partition(":: ")
        path = rest.split("\n", 1)[0].strip()
        options = dict(re.findall(r"^   :([\w-]+): ?(.*)$", rest, flags=re.MULTILINE))
        if kind != "automodule":
            given[path] = found(path)
            continue
        module = import_module(path)
        listed = [name for name in options.get("members", "").split(", ") if name]
        left_out = options.get("exclude-members", "").split(", ")
        for name in listed or module.__all__:
            if name not in left_out:
                given[f"{path}.{name}"] = getattr(module, name)
    return given


def test_no_public_name_is_left_out() -> None:
    listed = [entries(page.read_text(encoding="utf-8")) for page in PAGES]
    assert sum(map(len, listed)) == len({name for page in listed for name in page})
    known = {id(one) for page in listed for one in page.values()}
    public = [(qkv, name) for name in qkv.__all__]
    for package in [*(f"qkv.{name}" for name in PACKAGES), "qkv_marking"]:
        module = import_module(package)
        public += [(module, name) for name in module.__all__]
    missing = sorted(
        f"{module.__name__}.{name}"
        for module, name in public
        if callable(getattr(module, name)) and id(getattr(module, name)) not in known
    )
    assert not missing


def test_entries_follow_the_members_options_of_automodule() -> None:
    some = entries(".. automodule:: qkv.circuits\n   :members: patch, rollout\n")
    assert list(some) == ["qkv.circuits.patch", "qkv.circuits.rollout"]
    rest = entries(".. automodule:: qkv.scale\n   :members:\n   :exclude-members: encode\n")
    assert "qkv.scale.encode" not in rest
    assert "qkv.scale.attention" in rest

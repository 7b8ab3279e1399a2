"""The students' answers of the folder `trial`, each put together from the lines that are its own.

A line that begins with #= holds what is known of an answer, and its text follows. An answer that
uses names without a definition takes the definitions from `prelude.txt`: from the section "every",
and from the section named by "with". The text of an answer with "of" is a list of changes to the
answer named there, separated by blank lines. A change is a line "old => new", with \\n for the end
of a line, or a piece of a diff: lines that begin with a space, - or +. An answer of the kind "base"
is right, and is there only to be changed.
"""

import ast
import json
import re
import symtable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "trial"


def definitions() -> dict[str, dict[str, str]]:
    """Return the definitions of the prelude: section -> name -> text."""
    sections = {}
    for part in (FOLDER / "prelude.txt").read_text("utf-8").split("#: ")[1:]:
        section, _, code = part.partition("\n")
        sections[section] = {}
        for node in ast.parse(code).body:
            if isinstance(node, ast.Import):
                name = node.names[0].asname or node.names[0].name
            else:
                name = node.targets[0].id if isinstance(node, ast.Assign) else node.name
            sections[section][name] = f"{ast.get_source_segment(code, node)}\n"
    return sections


def undefined(code: str) -> set[str]:
    """Return the global names that a program reads and does not define."""
    tables = [symtable.symtable(code, "answer", "exec")]
    defined = {
        symbol.get_name()
        for symbol in tables[0].get_symbols()
        if symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()
    }
    found = set()
    for table in tables:
        tables += table.get_children()
        for symbol in table.get_symbols():
            if symbol.is_referenced() and (table is tables[0] or symbol.is_global()):
                found.add(symbol.get_name())
    return found - defined


def completed(code: str, known: dict[str, str]) -> str:
    """Add the definitions that a program lacks, in the order of the prelude."""
    chosen: set[str] = set()
    while lacking := undefined("".join(known[name] for name in chosen) + code) & set(known):
        chosen |= lacking
    return "\n".join([*(known[name] for name in known if name in chosen), code])


def changed(code: str, changes: str) -> str:
    """Apply the changes, each of which must fit exactly one place."""
    for change in re.split(r"\n\s*\n", changes.strip("\n")):
        if " =>" in change:
            old, new = change.replace("\\n", "\n").split(" =>")
            new = new.removeprefix(" ")
        else:
            lines = change.splitlines()
            old, new = (
                "".join(f"{line[1:]}\n" for line in lines if line[0] in kept)
                for kept in (" -", " +")
            )
        assert code.count(old) == 1, (change, code.count(old))
        code = code.replace(old, new)
    return code


def answers() -> list[dict[str, Any]]:
    """Return what is known of each answer, with its task and its whole code."""
    known = definitions()
    found: dict[str, dict[str, Any]] = {}
    for file in sorted(FOLDER.glob("*.txt")):
        for text in file.read_text("utf-8").split("#= ")[1:]:
            head, _, code = text.partition("\n")
            answer = {**json.loads(head), "task": file.stem, "code": code.rstrip("\n") + "\n"}
            found[answer["file"]] = answer

    def own(answer: dict[str, Any]) -> tuple[str, str]:
        if "of" not in answer:
            return answer["code"], answer.get("with", "every")
        code, section = own(found[answer["of"]])
        return changed(code, answer["code"]), section

    whole = []
    for answer in found.values():
        code, section = own(answer)
        if not answer["file"].endswith(".ipynb"):
            code = completed(code, known["every"] | known[section])
        whole.append({**answer, "code": code})
    return whole

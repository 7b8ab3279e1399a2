"""Two notebooks of each lesson, from the text of its page: the student's and the teacher's.

Tags of code cells say what goes where:

    stub                    the empty cell of a task: a signature and `...`
    solution, hide-input    the answer to the stub before it; folded on the site
    hide-output             the answer to "Before you run this" is in the output; folded on the site
    remove-cell             what holds the page to its numbers; on the site it runs unseen

and so do directives: an admonition of the class `teacher` is for teachers, one of the class
`dropdown` (a hint) folds, a raw one is for the site alone, and a live view becomes a cell that
opens it. The first cell of code looks whether qkv is there.

    python docs/notebooks.py student build/student    # or teacher
"""

import ast
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import live
import nbformat
from markdown_it import MarkdownIt
from myst_nb.core.read import read_myst_markdown_notebook
from substitutions import filled

COURSE = Path(__file__).parent / "course"
NOTES = {
    "student": "*This is the student's notebook. Write where `...` stands, then run the cell that "
    "marks it; hints fold out.",
    "teacher": "*This is the teacher's notebook, with solutions, times, and what goes wrong in "
    "class.",
}
NEEDS = " It needs qkv with the extra `plot` (in a clone: `pip install '.[plot]'`), no more.*"
LIVE = "\0live: "  # begins the line of a call that has a cell of its own
INSTALL = """import importlib.util

if importlib.util.find_spec("qkv") is None:
    print("qkv is missing. In a clone of qkv, run: pip install '.[plot]'")
else:
    import qkv

    print(f"qkv {qkv.__version__} is ready")"""
BOXES = {"admonition", "note", "tip", "hint", "important", "warning"}


def lessons() -> list[Path]:
    """The pages of the course that are lessons: their names begin with a number."""
    return sorted(COURSE.glob("[0-9]*.md"), key=lambda page: int(page.name.partition("-")[0]))


def student(text: str) -> nbformat.NotebookNode:
    """The notebook with empty cells: no solution, no note for teachers, nothing unseen."""

    def kept(cell, answer):
        return None if cell_tags(cell) & {"solution", "remove-cell"} else cell.source

    return _notebook(text, "student", kept)


def teacher(text: str) -> nbformat.NotebookNode:
    """The notebook with solutions in place of empty cells, and the notes for teachers."""

    def kept(cell, answer):
        return None if answer is not None else cell.source

    return _notebook(text, "teacher", kept)


def answered(text: str) -> nbformat.NotebookNode:
    """The student's notebook with the teacher's answers put in, held to the page's numbers."""

    def kept(cell, answer):
        return None if "solution" in cell_tags(cell) else cell.source if answer is None else answer

    return _notebook(text, "student", kept)


KINDS = {"student": student, "teacher": teacher}


def write(page: Path, folder: Path, kinds: Iterable[str] = KINDS) -> list[Path]:
    """Write the notebooks of a lesson: `2-by-hand-student.ipynb`, `2-by-hand-teacher.ipynb`."""
    written = []
    for kind in kinds:
        path = folder / f"{page.stem}-{kind}.ipynb"
        nbformat.write(KINDS[kind](page.read_text(encoding="utf-8")), path)
        written.append(path)
    return written


def cell_tags(cell: nbformat.NotebookNode) -> set[str]:
    """The tags of a cell."""
    return set(cell.metadata.get("tags", []))


def for_notebook(text: str, *, notes: bool = False) -> str:
    """Markdown as a notebook shows it: without what only the site can follow.

    Links between pages become their words and directives become Markdown. With `notes` those for
    teachers are kept.

    Raises:
        ValueError: a directive or a role that a notebook cannot show.
    """
    lines = text.splitlines()
    blocks = [token for token in MarkdownIt().parse(text) if token.type == "fence"]
    done, at = [], 0
    for block in blocks:
        start, end = block.map
        directive = re.fullmatch(r"\{([\w-]+)\}\s*(.*)", block.info.strip())
        done.append(_plain("\n".join(lines[at:start])))
        if directive:
            done.append(_directive(*directive.groups(), block.content, notes))
        else:
            done.append("\n".join(lines[start:end]))
        at = end
    done.append(_plain("\n".join(lines[at:])))
    return "\n\n".join(part.strip("\n") for part in done if part.strip())


def _plain(text: str) -> str:
    """Return the text without links to pages and to downloads."""
    text = re.sub(r"^.*\{nb-download\}.*\n?", "", text, flags=re.MULTILINE)
    text = re.sub(r"\[([^\]]+)\]\([\w./-]+\.(?:md|html)[^)]*\)", r"\1", text)
    role = re.search(r"\{[\w:-]+\}`", text)
    if role:
        raise ValueError(f"a notebook cannot show the role {role.group()[:-1]}")
    if re.search(r"^:::", text, flags=re.MULTILINE):
        raise ValueError("a notebook cannot show what stands between :::, write ``` instead")
    return text


def _directive(name: str, title: str, content: str, notes: bool) -> str:
    """Return the text that a notebook shows in place of a directive."""
    options = dict(re.findall(r"^:([\w-]+): *(.*)$", content.partition("\n\n")[0], re.MULTILINE))
    body = re.sub(r"\A(:[\w-]+:.*\n+)+", "", content)
    classes = options.get("class", "").split()
    if name == "raw" or ("teacher" in classes and not notes):
        return ""
    if name == "live":
        return f"{LIVE}{live.in_notebook(title, options)}\n\n{body.strip()}"
    if name == "math":
        return f"$$\n{body.strip()}\n$$"
    if name not in BOXES:
        raise ValueError(f"a notebook cannot show the directive {{{name}}}")
    title, body = title or name.capitalize(), for_notebook(body, notes=notes)
    if "dropdown" in classes and "teacher" not in classes:
        return f"<details><summary>{title}</summary>\n\n{body}\n\n</details>"
    return "\n".join(f"> {line}".rstrip() for line in [f"**{title}**", "", *body.splitlines()])


def _notebook(text: str, kind: str, kept: Callable) -> nbformat.NotebookNode:
    """The cells for which `kept(cell, answer)` gives a source; the answer of a stub, else None."""
    page = read_myst_markdown_notebook(filled(text))
    answers = _answers(page.cells)
    cells = []
    for number, cell in enumerate(page.cells):
        if cell.cell_type == "markdown":
            source = for_notebook(cell.source, notes=kind == "teacher")
            if number == 0:
                heading, _, rest = source.partition("\n")
                source = f"{heading}\n\n{NOTES[kind]}{NEEDS}\n{rest}"
            before, live_view, after = source.partition(LIVE)
            if live_view:  # one at most between two cells
                call, _, after = after.partition("\n")
                cells += [_cell("markdown", before, f"{number}-before"), _live(call, number)]
            source = (after if live_view else before).strip()
            made = nbformat.v4.new_markdown_cell(source) if source else None
        else:
            source = kept(cell, answers.get(number))
            made = None if source is None else nbformat.v4.new_code_cell(source)
        if made is None:
            continue
        tags = cell_tags(cell)
        if tags:
            made.metadata["tags"] = sorted(tags)
        if tags & {"hide-input", "remove-input", "remove-cell"} and "solution" not in tags:
            made.metadata["jupyter"] = {"source_hidden": True}
        made["id"] = f"cell-{number}"
        cells.append(made)
    cells.insert(1, _cell("code", INSTALL, "install", "install"))
    kernel = {"kernelspec": page.metadata["kernelspec"]} if "kernelspec" in page.metadata else {}
    metadata = kernel | {"qkv": {"tasks": tasks(page.cells)}}
    return nbformat.v4.new_notebook(cells=cells, metadata=metadata)


def _cell(kind: str, source: str, name: str, *tags: str) -> nbformat.NotebookNode:
    """A cell that the page does not have."""
    make = {"code": nbformat.v4.new_code_cell, "markdown": nbformat.v4.new_markdown_cell}[kind]
    made = make(source.strip())
    made["id"] = f"cell-{name}"
    if tags:
        made.metadata["tags"] = [*tags]
    return made


def _live(call: str, number: int) -> nbformat.NotebookNode:
    """The cell of a live view, which `qkv check` leaves out."""
    return _cell("code", call, f"{number}-live", "live")


def tasks(cells: list[nbformat.NotebookNode]) -> list[str]:
    """Return the tasks of the stubs that `qkv.check` marks, in order: `qkv check` takes these."""
    code = [cell for cell in cells if cell.cell_type == "code"]
    trees = [(cell_tags(cell), ast.parse(cell.source)) for cell in code]
    asked = {
        name
        for tags, tree in trees
        if "stub" in tags
        for node in tree.body
        for name in _defined(node)
    }
    marked = [
        (_names(call.args[0]), {one.arg: one.value for one in call.keywords})
        for tags, tree in trees
        if "remove-cell" not in tags
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "qkv.check"
    ]
    found = [ast.literal_eval(options["task"]) for names, options in marked if names & asked]
    return [*dict.fromkeys(found)]


def _defined(node: ast.stmt) -> set[str]:
    """Return the names that a statement assigns."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    return _names(*node.targets) if isinstance(node, ast.Assign) else set()


def _names(*trees: ast.AST) -> set[str]:
    """The names in an expression."""
    return {node.id for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _answers(cells: list[nbformat.NotebookNode]) -> dict[int, str]:
    """The solution of each stub, by the number of the stub's cell.

    Raises:
        ValueError: a stub without a solution after it or without `...`, a solution without a
            stub before it, or one that lies open on the site.
    """
    answers, stub = {}, None
    for number, cell in enumerate(cells):
        tags = cell_tags(cell)
        first = cell.source.partition("\n")[0]
        if "stub" in tags:
            if stub is not None:
                break
            if "..." not in cell.source:
                raise ValueError(f"the stub {first!r} has no `...` where the student writes")
            stub = number
        elif "solution" in tags:
            if stub is None:
                raise ValueError(f"the solution {first!r} has no stub before it")
            if "hide-input" not in tags:
                raise ValueError(f"the solution {first!r} lies open: tag it hide-input as well")
            answers[stub], stub = cell.source, None
    if stub is not None:
        first = cells[stub].source.partition("\n")[0]
        raise ValueError(f"the stub {first!r} has no solution after it")
    return answers


def main() -> None:
    """Write the notebooks of one kind into a folder of their own."""
    kind, folder = sys.argv[1], Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for page in lessons():
        write(page, folder, [kind])
    print(f"{folder}: {len(lessons())} notebooks")


if __name__ == "__main__":
    main()

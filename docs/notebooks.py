"""Make two notebooks from the page of each lesson: the student's and the teacher's.

The tags of a code cell decide where the cell appears, and how:

    stub                    the empty cell of a task: a signature and `...`
    solution, hide-input    the answer to the stub before it; folded on the site
    hide-output             the output answers "Before you run this"; folded on the site
    remove-cell             asserts about the numbers of the page; runs unseen on the site
    training                needs a training run or its text; `qkv check` omits the cell

The kind of a directive decides where its text appears. An admonition of the class `teacher` appears
only in the teacher's notebook, and `raw` only on the site. An admonition of the class `dropdown` (a
hint) can be folded. A live view becomes a cell that opens the view. The first code cell checks that
qkv is installed. The alternative text of a picture becomes the field `alt` of its cell, which
nbconvert reads, and a folded text below the cell, because Jupyter shows no alternative texts.

    python docs/notebooks.py student build/student    # or teacher
"""

import ast
import re
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import live
import nbformat
from markdown_it import MarkdownIt
from myst_nb.core.read import read_myst_markdown_notebook
from substitutions import filled

COURSE = Path(__file__).parent / "course"
BOOK = COURSE.parent / "data" / "oz.txt"  # the text of lesson 13, which its notebooks read
NOTES = {
    "student": "*This is the student's notebook. Replace each `...` by your code, then run the "
    "cell that marks it; open the hints if you need help.",
    "teacher": "*This is the teacher's notebook, with solutions, times, and notes on what goes "
    "wrong in class.",
}
PIP = "pip install '.[plot]' jupyter"
NEEDS = f" It needs only qkv with the extra `plot`, and Jupyter (in a clone: `{PIP}`).*"
IN_WORDS = "The picture in words"
LIVE = "\0live: "  # marks a call that gets its own cell
INSTALL = f"""import importlib.util

if importlib.util.find_spec("qkv") is None:
    print("qkv is missing. In a clone of qkv, run: {PIP}")
else:
    import qkv

    print(f"qkv {{qkv.__version__}} is ready")"""
BOXES = {"admonition", "note", "tip", "hint", "important", "warning"}


def lessons() -> list[Path]:
    """Return the pages of the lessons, whose names begin with a number."""
    return sorted(COURSE.glob("[0-9]*.md"), key=lambda page: int(page.name.partition("-")[0]))


def student(text: str) -> nbformat.NotebookNode:
    """Make the notebook with empty cells, without solutions, teachers' notes and hidden cells."""

    def kept(cell, answer):
        return None if cell_tags(cell) & {"solution", "remove-cell"} else cell.source

    return _notebook(text, "student", kept)


def teacher(text: str) -> nbformat.NotebookNode:
    """Make the notebook with solutions in place of empty cells, and with teachers' notes."""

    def kept(cell, answer):
        return None if answer is not None else cell.source

    return _notebook(text, "teacher", kept)


def answered(text: str) -> nbformat.NotebookNode:
    """Make the student's notebook with answers in its stubs, and with the page's hidden cells."""

    def kept(cell, answer):
        return None if "solution" in cell_tags(cell) else cell.source if answer is None else answer

    return _notebook(text, "student", kept)


KINDS = {"student": student, "teacher": teacher}


def executed(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Convert an executed page to a notebook with results and without solutions."""
    skipped = {"solution", "remove-cell"}
    cells = [cell for cell in notebook.cells if not skipped & cell_tags(cell)]
    for cell in cells:
        if cell.cell_type == "markdown":
            cell.source = for_notebook(cell.source)
    return nbformat.v4.new_notebook(cells=cells, metadata=notebook.metadata)


def write(page: Path, folder: Path, kinds: Iterable[str] = KINDS) -> list[Path]:
    """Write the notebooks of a lesson: `2-by-hand-student.ipynb`, `2-by-hand-teacher.ipynb`.

    The files that the lesson's cells read are copied into the same folder.
    """
    written = []
    if BOOK.name in page.read_text(encoding="utf-8"):
        shutil.copyfile(BOOK, folder / BOOK.name)
    for kind in kinds:
        path = folder / f"{page.stem}-{kind}.ipynb"
        nbformat.write(KINDS[kind](page.read_text(encoding="utf-8")), path)
        written.append(path)
    return written


def cell_tags(cell: nbformat.NotebookNode) -> set[str]:
    """Return the tags of a cell."""
    return set(cell.metadata.get("tags", []))


def for_notebook(text: str, *, notes: bool = False) -> str:
    """Convert the Markdown of a page for a notebook.

    Links between pages become plain words, and directives become Markdown. If `notes` is True, keep
    the notes for teachers.

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
    text = re.sub(r"\[([^\]]+)\]\([\w./-]+\.(?:md|html|txt)[^)]*\)", r"\1", text)
    role = re.search(r"\{[\w:-]+\}`", text)
    if role:
        raise ValueError(f"a notebook cannot show the role {role.group()[:-1]}")
    if re.search(r"^:::", text, flags=re.MULTILINE):
        raise ValueError("a notebook cannot show a ::: directive: write it with ``` instead")
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
    """Make a notebook of the cells for which `kept(cell, answer)` returns a source.

    `answer` is the solution if the cell is a stub, and None otherwise.
    """
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
            if live_view:  # at most one blank line between two cells
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
        alt = cell.metadata.get("mystnb", {}).get("image", {}).get("alt")
        if alt:
            made.metadata["alt"] = alt
            folded = f"<details><summary>{IN_WORDS}</summary>\n\n{alt}\n\n</details>"
            cells.append(_cell("markdown", folded, f"{number}-words"))
    cells.insert(1, _cell("code", INSTALL, "install", "install"))
    kernel = {"kernelspec": page.metadata["kernelspec"]} if "kernelspec" in page.metadata else {}
    metadata = kernel | {"qkv": {"tasks": tasks(page.cells)}}
    return nbformat.v4.new_notebook(cells=cells, metadata=metadata)


def _cell(kind: str, source: str, name: str, *tags: str) -> nbformat.NotebookNode:
    """Make a cell that is not on the page."""
    make = {"code": nbformat.v4.new_code_cell, "markdown": nbformat.v4.new_markdown_cell}[kind]
    made = make(source.strip())
    made["id"] = f"cell-{name}"
    if tags:
        made.metadata["tags"] = [*tags]
    return made


def _live(call: str, number: int) -> nbformat.NotebookNode:
    """Make the cell of a live view; `qkv check` ignores this cell."""
    return _cell("code", call, f"{number}-live", "live")


def tasks(cells: list[nbformat.NotebookNode]) -> list[str]:
    """Return the task of each stub that `qkv.check` checks, in the order of the notebook."""
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
    """Return the names to which a statement assigns."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    return _names(*node.targets) if isinstance(node, ast.Assign) else set()


def _names(*trees: ast.AST) -> set[str]:
    """Return the names in an expression."""
    return {node.id for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _answers(cells: list[nbformat.NotebookNode]) -> dict[int, str]:
    """Return the solution of each stub, keyed by the number of the stub's cell.

    Raises:
        ValueError: a stub lacks `...`, a stub lacks a solution after it, a solution lacks a stub
            before it, or a solution is not folded on the site.
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
                raise ValueError(f"the solution {first!r} is not folded: tag it hide-input as well")
            answers[stub], stub = cell.source, None
    if stub is not None:
        first = cells[stub].source.partition("\n")[0]
        raise ValueError(f"the stub {first!r} has no solution after it")
    return answers


def main() -> None:
    """Write the notebooks of one kind into a folder."""
    kind, folder = sys.argv[1], Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for page in lessons():
        write(page, folder, [kind])
    print(f"{folder}: {len(lessons())} notebooks")


if __name__ == "__main__":
    main()

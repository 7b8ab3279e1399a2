"""Test the notebooks that are made from small lessons."""

import json
from pathlib import Path

import nbformat
import notebooks
import pytest

LESSON = """---
kernelspec:
  display_name: Python 3
  language: python
  name: python3
---

# 9. Doubling

**Minutes** 5. After [the first lesson](1-why-attention.md#words).

```{admonition} For the teacher
:class: teacher

Some will write `x ** 2`.
```

```{code-cell} ipython3
---
mystnb:
  image:
    alt: A line that rises
      evenly.
tags: [hide-input]
---
picture = 1
```

## Task

```{code-cell} ipython3
:tags: [stub]

def double(x):
    ...
```

```{admonition} Hint 1
:class: hint dropdown

What is *two times* x?
```

```{code-cell} ipython3
---
mystnb:
  code_prompt_show: Show a solution
tags: [solution, hide-input]
---
def double(x):
    return 2 * x
```

```{code-cell} ipython3
result = double(4)
result
```

```{code-cell} ipython3
:tags: [remove-cell]

assert result == 8
```

```{raw} html
<iframe src="live.html"></iframe>
```

The end.
"""
STUB = "def double(x):\n    ..."
SOLUTION = "def double(x):\n    return 2 * x"


def code(notebook: nbformat.NotebookNode) -> list[str]:
    """Return the code cells, without the first cell, which looks for qkv."""
    first, *others = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    assert first == notebooks.INSTALL
    return others


def prose(notebook: nbformat.NotebookNode) -> str:
    return "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")


@pytest.mark.parametrize("kind", ["student", "teacher", "answered"])
def test_students_get_stubs_and_teachers_solutions_and_asserts(kind: str) -> None:
    own = [STUB] if kind == "student" else [SOLUTION]
    asserts = [] if kind == "student" else ["assert result == 8"]
    made = getattr(notebooks, kind)(LESSON)
    assert code(made) == ["picture = 1", *own, "result = double(4)\nresult", *asserts]


def test_the_answered_notebook_has_solutions_in_the_stub_cells() -> None:
    student, answered = notebooks.student(LESSON), notebooks.answered(LESSON)
    # the rest equals the student's notebook: hints come after the cell
    assert prose(answered) == prose(student)
    place = next(n for n, cell in enumerate(answered.cells) if cell.source == SOLUTION)
    assert "stub" in notebooks.cell_tags(answered.cells[place])
    assert "Hint 1" in answered.cells[place + 1].source


def test_hints_fold_for_both_and_notes_are_for_teachers() -> None:
    for make in (notebooks.student, notebooks.teacher):
        text = prose(make(LESSON))
        assert "<details><summary>Hint 1</summary>\n\nWhat is *two times* x?\n\n</details>" in text
    note = "> **For the teacher**\n>\n> Some will write `x ** 2`."
    assert note in prose(notebooks.teacher(LESSON))
    assert "teacher" not in prose(notebooks.student(LESSON)).casefold()


def test_what_only_the_site_can_follow_is_left_out() -> None:
    text = prose(notebooks.teacher(LESSON))
    assert "After the first lesson." in text
    assert "The end." in text
    for left in ("iframe", "{", ".md", ":class:"):
        assert left not in text


def test_the_title_comes_first_and_then_the_kind_of_notebook() -> None:
    for kind, make in notebooks.KINDS.items():
        lines = make(LESSON).cells[0].source.splitlines()
        assert lines[0] == "# 9. Doubling"
        assert f"the {kind}'s notebook" in lines[2]


def test_code_of_pictures_and_asserts_is_folded_and_a_solution_is_not() -> None:
    folded = {
        cell.source: cell.metadata.get("jupyter", {}).get("source_hidden", False)
        for cell in notebooks.teacher(LESSON).cells
        if cell.cell_type == "code" and "install" not in notebooks.cell_tags(cell)
    }
    assert folded == {
        "picture = 1": True,
        SOLUTION: False,
        "result = double(4)\nresult": False,
        "assert result == 8": True,
    }


def test_a_picture_has_its_alternative_text_for_exports_and_below_its_cell() -> None:
    for make in notebooks.KINDS.values():
        cells = make(LESSON).cells
        (at,) = (n for n, cell in enumerate(cells) if cell.source == "picture = 1")
        assert cells[at].metadata["alt"] == "A line that rises evenly."
        words = "<summary>The picture in words</summary>\n\nA line that rises evenly.\n\n</details>"
        assert cells[at + 1].source == f"<details>{words}"
        assert sum("alt" in cell.metadata for cell in cells) == 1


def test_each_picture_of_a_lesson_has_an_alternative_text() -> None:
    for page in notebooks.lessons():
        cells = notebooks.answered(page.read_text(encoding="utf-8")).cells
        drawn = [cell for cell in cells if "plt.show()" in cell.source]
        assert [cell.source for cell in drawn if "alt" not in cell.metadata] == []


def test_writing_the_notebooks_is_deterministic(tmp_path: Path) -> None:
    page = tmp_path / "9-doubling.md"
    page.write_text(LESSON, encoding="utf-8")
    paths = notebooks.write(page, tmp_path)
    assert [path.name for path in paths] == [
        *("9-doubling-student.ipynb", "9-doubling-teacher.ipynb")
    ]
    first = [path.read_bytes() for path in paths]
    assert first == [path.read_bytes() for path in notebooks.write(page, tmp_path)]
    for path in paths:
        nbformat.validate(nbformat.read(path, as_version=4))
        assert json.loads(path.read_text("utf-8"))["metadata"]["kernelspec"]["name"] == "python3"


def test_unfolded_admonitions_are_quoted_and_code_blocks_stay() -> None:
    note, block = "```{note}\nTwo\nlines\n```", "```python\na = 1\n\n\nb = 2\n```"
    text = notebooks.for_notebook(f"Before\n{note}\nAfter\n{block}\n```{{math}}\nx^2\n```")
    quoted = "> **Note**\n>\n> Two\n> lines"
    assert text == f"Before\n\n{quoted}\n\nAfter\n\n{block}\n\n$$\nx^2\n$$"
    hint = f"````{{admonition}} Hint 3\n:class: hint dropdown\n\nTry\n\n{block}\n````"
    shown = f"<details><summary>Hint 3</summary>\n\nTry\n\n{block}\n\n</details>"
    assert notebooks.for_notebook(hint) == shown


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("```{figure} a.png\n```", r"directive \{figure\}"),
        ("See {doc}`other`.", r"role \{doc\}"),
        (":::{note}\nA\n:::", "cannot show a ::: directive"),
    ],
)
def test_markup_that_a_notebook_cannot_show_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        notebooks.for_notebook(text)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("[stub]", "[other]"), "the solution 'def double.* has no stub before it"),
        (("[solution, hide-input]", "[other]"), "the stub 'def double.* has no solution after it"),
        (("[solution, hide-input]", "[solution]"), "the solution 'def double.* is not folded"),
        (("    ...\n", "    pass\n"), "the stub 'def double.* has no `...`"),
        (("[solution, hide-input]", "[stub]"), "has no solution after it"),
    ],
)
def test_invalid_stubs_and_solutions_are_refused(change: tuple[str, str], complaint: str) -> None:
    text = LESSON.replace(*change)
    assert text != LESSON
    for make in (*notebooks.KINDS.values(), notebooks.answered):
        with pytest.raises(ValueError, match=complaint):
            make(text)


def test_the_folder_for_students_has_no_solution(tmp_path: Path, monkeypatch) -> None:
    for kind in notebooks.KINDS:
        monkeypatch.setattr("sys.argv", ["notebooks.py", kind, str(tmp_path / kind)])
        notebooks.main()
    students, teachers = ([*(tmp_path / kind).glob("*.ipynb")] for kind in notebooks.KINDS)
    for kind in notebooks.KINDS:  # the file that the lesson on real text reads
        assert (tmp_path / kind / "oz.txt").read_bytes() == notebooks.BOOK.read_bytes()
    assert len(students) == len(teachers) == len(notebooks.lessons())
    cells = [cell for path in students for cell in nbformat.read(path, as_version=4).cells]
    handed_out = "\n".join(cell.source for cell in cells)
    solutions = [
        cell.source
        for page in notebooks.lessons()
        for cell in notebooks.teacher(page.read_text(encoding="utf-8")).cells
        if "solution" in notebooks.cell_tags(cell)
    ]
    assert len(solutions) > 20
    for solution in solutions:
        assert solution not in handed_out
    assert not any({"solution", "remove-cell"} & notebooks.cell_tags(cell) for cell in cells)


def test_an_executed_page_has_results_and_no_solutions() -> None:
    cell = nbformat.v4.new_code_cell
    result = nbformat.v4.new_output("execute_result", {"text/plain": "4"})
    page = nbformat.v4.new_notebook(
        cells=[
            nbformat.v4.new_markdown_cell(
                LESSON[LESSON.index("# 9.") : LESSON.index("```{code-cell}")]
            ),
            cell("2 + 2", outputs=[result]),
            cell("def double(x):\n    return 2 * x", metadata={"tags": ["solution"]}),
            cell("assert double(2) == 4", metadata={"tags": ["remove-cell"]}),
        ]
    )
    text, sums = notebooks.executed(page).cells
    assert "After the first lesson." in text.source
    assert "x ** 2" not in text.source
    assert sums.outputs[0].data == {"text/plain": "4"}

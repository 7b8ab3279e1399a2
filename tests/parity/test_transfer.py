"""Tests that the cells of docs/course/further-transfer.md agree with torch and transformers."""

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "course" / "further-transfer.md"


def test_the_page_agrees_with_torch_and_transformers(capsys: Any) -> None:
    text = PAGE.read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    for cell in re.findall(r"```\{code-cell\} ipython3\n(.*?)```", text, flags=re.DOTALL):
        exec(cell.removeprefix(":tags: [remove-cell]\n"), names)
    printed = capsys.readouterr().out.splitlines()
    assert len(names["differences"]) == 4
    assert max(names["differences"]) < 1e-5
    assert [line.rpartition(", ")[2] for line in printed] == ["right"] * 4

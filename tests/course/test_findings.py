"""The findings in the documentation hold, and its articles place each of them."""

from pathlib import Path

import pytest

import qkv
from qkv.findings.measured import view_of

FOLDER = Path(__file__).parents[2] / "docs" / "findings"
FILES = sorted(FOLDER.glob("*.json"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_finding_holds(path: Path) -> None:
    found = qkv.Finding.load(path)
    holds, differences = found.verify()
    assert holds, (
        f"{differences}: read the claim again, and if it is still true measure it again: "
        "qkv.finding(model, found.text, position=found.position, edit=found.edits, "
        "claim=found.claim).save(path)"
    )
    assert found.claim


def test_each_finding_is_in_an_article() -> None:
    placed = [one for path in FOLDER.glob("*.md") for one in view_of([], article=path).findings]
    assert len(placed) >= 5
    for path in FILES:
        assert qkv.Finding.load(path).to_dict() in placed

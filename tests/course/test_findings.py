"""Tests that each finding in the documentation holds and appears in an article."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qkv
from qkv.circuits._residual import Wiring
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


def test_the_calls_in_the_article_find_its_heads() -> None:
    """Run the calls of the article, and check the results that the article states."""
    text = (FOLDER / "repeating-a-name.md").read_text(encoding="utf-8")
    code = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    names: dict[str, Any] = {"model": qkv.load("books-decoder")}
    given = []
    for line in code:
        if line.startswith("circuits."):
            given.append(eval(line, names))
        else:
            exec(line, names)
    copied, finding, circuit = given
    layers, heads = np.unravel_index(np.argsort(-copied, axis=None)[:2], copied.shape)
    assert sorted(zip(layers.tolist(), heads.tolist(), strict=True)) == [(2, 4), (2, 5)]
    assert np.unravel_index(finding.argmax(), finding.shape) == (1, 0)
    most = sum(one.senders for one in Wiring(names["model"].layers).receivers.values())
    assert f"keeps {len(circuit.edges)} of {most:,} edges" in " ".join(text.split())
    assert f"restore {circuit.faithfulness:.0%} of" in text

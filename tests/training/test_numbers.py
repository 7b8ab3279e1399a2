"""Tests of computing and comparing the numbers of the documentation."""

from pathlib import Path

import pytest
from substitutions import NAME, NUMBERS, filled

from training import numbers

TABLE = numbers.sections()
KEPT = numbers.kept()


def test_the_file_has_no_other_sections() -> None:
    assert list(KEPT) == [*TABLE, "untrue"], f"regenerate: {numbers.AGAIN}"


def test_each_number_stands_on_a_page() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in numbers.DOCS.rglob("*.md"))
    used = {f"{section}.{name}" for section, name in NAME.findall(pages)}
    assert used == {f"{name}.{one}" for name in TABLE for one in KEPT[name]}


def test_a_number_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match=r"has no lesson1\.rivers"):
        filled("It gives 0.5<!-- lesson1.rivers -->.")


@pytest.mark.parametrize("page", sorted(numbers.DOCS.rglob("*.md")), ids=lambda page: page.stem)
def test_a_page_has_the_numbers_of_the_file(page: Path) -> None:
    assert "<!-- " not in filled(page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("number", ["0.37", "10.36", "*0.37*"])
def test_another_number_on_a_page_is_an_error(number: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NUMBERS, "lesson2", {"most": "0.36"})
    assert filled("Or *0.36*<!-- lesson2.most -->.") == "Or *0.36*."
    block = f"```\nIt is {number} s.\n```\n"
    assert filled(f"{block.replace(number, '0.36')}<!-- lesson2.most -->")[-4:] == "```\n"
    with pytest.raises(ValueError, match=r"has '0\.36' for lesson2\.most, and the page"):
        filled(f"It is {number}<!-- lesson2.most -->.")
    with pytest.raises(ValueError, match=r"has '0\.36' for lesson2\.most, and the page"):
        filled(f"{block}<!-- lesson2.most -->")


def test_failing_asserts_of_a_cell_are_listed_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = """```{code-cell} ipython3
x = 0.25
```

```{code-cell} ipython3
:tags: [remove-cell, raises-exception]

assert x > 1
assert x < 1
```
"""
    (tmp_path / "page.md").write_text(page, encoding="utf-8")
    monkeypatch.setattr(numbers, "DOCS", tmp_path)
    found = numbers.section({"page": "page.md", "quarter": "{x:.2f} of {1}"})
    assert found == ({"quarter": "0.25 of 1"}, ["page.md: assert x > 1"])


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("1,234 steps", "1,234 steps", True),
        ("1,234 steps", "1,235 steps", False),  # counts must be equal
        ("0.36 tree", "0.37 tree", True),  # one unit of the last digit
        ("0.36 tree", "0.38 tree", False),
        ("0.36 tree", "0.36 man", False),
        ("12.8%", "13%", False),  # different numbers of decimals
        ("0.39430714", "0.39430799", True),  # the rounding error of float32
    ],
)
def test_numbers_are_alike_but_for_rounding(one: str, other: str, same: bool) -> None:
    assert numbers.alike(one, other, rounded=True) is same
    assert numbers.alike(one, other) is (one == other)

"""Test the numbers in docs/data/numbers.json and README.md with the shipped weights."""

import pytest

from training import numbers, readme

TABLE = numbers.sections()
KEPT = numbers.kept()


@pytest.mark.parametrize("name", TABLE)
def test_a_section_has_the_numbers_of_the_weights(name: str) -> None:
    found = numbers.numbers([name])
    page = TABLE[name].get("page", "there is no such page")
    kept = KEPT.get(name, {})
    apart = {
        one: (kept.get(one), value)
        for one, value in found[name].items()
        if not numbers.alike(kept.get(one, ""), value, rounded=":." in TABLE[name][one])
    }
    assert not apart, f"numbers.json has, and the weights give: regenerate: {numbers.AGAIN}"
    untrue = [one for one in KEPT["untrue"] if one.startswith(f"{page}:")]
    assert found["untrue"] == untrue, f"regenerate: {numbers.AGAIN}"


def test_the_readme_shows_what_its_commands_print() -> None:
    text = readme.PLACE.read_text(encoding="utf-8")
    assert numbers.alike(readme.written(text), text, rounded=True), f"regenerate: {numbers.AGAIN}"

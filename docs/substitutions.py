"""The numbers of the shipped models in pages: `{{ lesson1.river }}` becomes what numbers.json has.

It is written as MyST's substitutions are, and stands wherever a page has text: in code, in options
of directives and in what pictures say, too. `python -m training.numbers` writes the file.
"""

import json
import re
from pathlib import Path

NUMBERS = json.loads(Path(__file__).with_name("data").joinpath("numbers.json").read_bytes())


def filled(text: str) -> str:
    """Return a text with its numbers filled in.

    Raises:
        ValueError: the file has no such number.
    """

    def number(found: re.Match) -> str:
        try:
            return NUMBERS[found[1]][found[2]]
        except KeyError:
            raise ValueError(f"numbers.json has no {found[1]}.{found[2]}") from None

    return re.sub(r"\{\{ *(\w+)\.(\w+) *\}\}", number, text)

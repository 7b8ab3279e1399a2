"""Fill the numbers of the included models into pages: `{{ lesson1.river }}` becomes a number.

The names look like MyST's substitutions, and may occur anywhere on a page, also in code, in options
of directives and in the text of pictures. `python -m training.numbers` writes the numbers to
docs/data/numbers.json.
"""

import json
import re
from pathlib import Path

NUMBERS = json.loads(Path(__file__).with_name("data").joinpath("numbers.json").read_bytes())


def filled(text: str) -> str:
    """Return a text with its numbers filled in.

    Raises:
        ValueError: a placeholder of the text is not in numbers.json.
    """

    def number(found: re.Match) -> str:
        try:
            return NUMBERS[found[1]][found[2]]
        except KeyError:
            raise ValueError(f"numbers.json has no {found[1]}.{found[2]}") from None

    return re.sub(r"\{\{ *(\w+)\.(\w+) *\}\}", number, text)

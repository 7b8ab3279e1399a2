"""Make a page's text from its source.

Numbers of the included models are filled in: `{{ lesson1.river }}` becomes a number.

The names look like MyST's substitutions, and may occur anywhere on a page, also in code, in options
of directives and in the text of pictures. `python -m training.numbers` writes the numbers to
docs/data/numbers.json.

The sources of the course begin with a line for readers of the repository, which gives the address
of the page. The site and the notebooks do not show this line.
"""

import json
import re
from pathlib import Path

NUMBERS = json.loads(Path(__file__).with_name("data").joinpath("numbers.json").read_bytes())
NOTE = re.compile(r"^> This file is the source of a page: .*$", re.MULTILINE)


def filled(text: str) -> str:
    """Return a text with its numbers filled in, and without the line for readers of the repository.

    Raises:
        ValueError: a placeholder of the text is not in numbers.json.
    """

    def number(found: re.Match) -> str:
        try:
            return NUMBERS[found[1]][found[2]]
        except KeyError:
            raise ValueError(f"numbers.json has no {found[1]}.{found[2]}") from None

    return re.sub(r"\{\{ *(\w+)\.(\w+) *\}\}", number, NOTE.sub("", text))

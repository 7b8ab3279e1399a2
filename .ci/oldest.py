"""Print the oldest versions that pyproject.toml allows, as constraints for pip.

    python .ci/oldest.py EXTRA...

The output has a line such as `numpy==2.0` for each requirement of qkv and of the extras.
"""

import re
import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"


def constraints(project: dict, extras: list[str]) -> list[str]:
    """Return a constraint for each requirement, which must begin with `name>=version`."""
    requirements = [*project["dependencies"]]
    for extra in extras:
        requirements += project["optional-dependencies"][extra]
    return [re.sub(r"^([\w.-]+)>=([\w.]+)[^;]*", r"\1==\2", each) for each in requirements]


if __name__ == "__main__":
    table = tomllib.loads(PROJECT.read_text(encoding="utf-8"))
    print(*constraints(table["project"], sys.argv[1:]), sep="\n")

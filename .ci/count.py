"""Count the lines of code for which CONTRIBUTING.md sets budgets: `python .ci/count.py`.

A line counts if it has code: blank lines, comments and Python's docstrings do not count. Every line
of TOML and JSON counts, and every line that is not blank of the `.txt` files with cases of tests.
"""

import ast
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
ASSETS, BUNDLES = "src/qkv/see/page/assets/", "src/qkv/see/page/bundles/"
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def python(text: str) -> int:
    """Count the lines of Python that are neither blank nor a comment nor a docstring."""
    strings: set[int] = set()
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        first = node.body[0] if isinstance(node, DOCUMENTED) and node.body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            if isinstance(first.value.value, str):
                docstrings.update(range(first.lineno, (first.end_lineno or 0) + 1))
        elif isinstance(node, (ast.Constant, ast.JoinedStr)) and node.end_lineno != node.lineno:
            strings.update(range(node.lineno, (node.end_lineno or 0) + 1))
    lines = enumerate(map(str.strip, text.splitlines()), 1)
    code = {number for number, line in lines if line and not line.startswith("#")}
    return len((code | strings) - docstrings)


def javascript(text: str) -> int:
    """Count the lines that are neither blank nor only a comment."""
    count, inside = 0, False
    for line in text.splitlines():
        line = line.strip()
        inside = inside or line.startswith("/*")
        if inside:
            inside = "*/" not in line
        elif line and not line.startswith("//"):
            count += 1
    return count


def written(text: str) -> int:
    """Count the lines that are not blank."""
    return len(re.findall(r"^.*\S", text, re.MULTILINE))


def count(paths: Iterable[str], lines: object = python) -> int:
    """Add the lines of the files."""
    assert callable(lines)
    return sum(lines((ROOT / path).read_text(encoding="utf-8")) for path in paths)


def budgets() -> dict[str, int]:
    """Return the lines of each part of the repository that has a budget, and the files of `src`."""
    listed = subprocess.check_output(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, text=True
    )
    files = [path for path in listed.splitlines() if (ROOT / path).is_file()]
    src = [path for path in files if path.startswith("src/")]
    ours = [path for path in src if path.endswith(".py")]
    marking = [path for path in ours if path.startswith("src/qkv_marking/")]
    tests = [path for path in files if path.startswith("tests/")]
    tests_py = [path for path in tests if path.endswith(".py")]
    data = [path for path in src if path.endswith((".toml", ".json"))]
    data = [path for path in data if not path.startswith(("src/qkv/data/", BUNDLES))]
    of_marking = [path for path in data if path.startswith("src/qkv_marking/")]
    cases = [path for path in tests if path.endswith(".txt")]
    return {
        "Python in src": count(ours),
        "Python in src/qkv_marking": count(marking),
        "JavaScript in assets": count(
            [path for path in src if path.startswith(ASSETS) and path.endswith(".js")], javascript
        ),
        "TOML and JSON in src, without data and marking": count(
            sorted({*data} - {*of_marking}), written
        ),
        "TOML in src/qkv_marking": count(of_marking, written),
        "Python in tests": count(tests_py),
        "cases of tests (.txt)": count(cases, written),
        "Python in tests/marking": count([path for path in tests_py if "/marking/" in path]),
        "Python files in src": len(ours),
    }


if __name__ == "__main__":
    for name, lines in budgets().items():
        print(f"{lines:8,} {name}")

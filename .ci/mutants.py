"""Change src in one place at a time, and say which tests notice: `make mutants`.

A mutant changes a comparison, an operator, a constant, a condition or a returned value of a
function. The seed draws the functions, from each package in turn, and the change in each function.
The mutants of the kernel are the lines of .ci/kernel_mutants.txt. `make test` kills a mutant, or it
stays alive; then, with --survivors, another target of `.ci/run` kills it, or only cases that
`.ci/run` leaves out; or it stays alive. The results are lines of build/mutants.jsonl.
"""

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "build/mutants.jsonl"
# without this, an editable install finds the modules of this clone first
OWN = "import sys; sys.meta_path[:] = [it for it in sys.meta_path if 'Inplace' not in repr(it)]"
COMPARE = {
    **{"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="},
    **{"in": "not in", "not in": "in", "is": "is not", "is not": "is"},
}
OPERATE = {"+": "-", "-": "+", "*": "+", "/": "*", "//": "/", "%": "//", "@": "*", "**": "*"}
OPERATE |= {"&": "|", "|": "&", "<<": ">>", ">>": "<<"}
ALIVE = "alive"
FIRST = "make test"  # kills most mutants
MINUTES = 10  # for the cases that .ci/run leaves out
sound: set[tuple] = set()  # the commands that are known to pass without a change


class Mutant(NamedTuple):
    """A change: the bytes from `start` to `end` of a file become `text`."""

    path: str
    line: int
    start: int
    end: int
    old: str
    text: str


def ignored(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what is not worth a change: annotations, and the check `strict=True` of `zip`."""
    for name in ("annotation", "returns"):
        if isinstance(annotation := getattr(node, name, None), ast.AST):
            yield from ast.walk(annotation)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "zip":
        for value in (it.value for it in node.keywords if it.arg == "strict"):
            if isinstance(value, ast.Constant) and value.value is True:
                yield value


def changes(source: str, function: ast.FunctionDef) -> Iterator[tuple[int, int, str]]:
    """Yield each change in a function: where the old text begins and ends, and the new text."""
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def at(node: ast.AST) -> tuple[int, int]:
        begin, end = starts[node.lineno - 1], starts[node.end_lineno - 1]
        return begin + node.col_offset, end + node.end_col_offset

    def between(left: ast.AST, right: ast.AST, table: dict[str, str]) -> Iterator[tuple]:
        begin, end = at(left)[1], at(right)[0]
        text = source.encode()[begin:end].decode()
        if (found := text.strip(" ()\n")) in table:
            yield begin, end, text.replace(found, table[found])

    inside = [it for statement in function.body for it in ast.walk(statement)]
    left_out = {it for node in inside for it in ignored(node)}
    for node in (it for it in inside if it not in left_out):
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            yield from between(node.left, node.comparators[0], COMPARE)
        elif isinstance(node, ast.BinOp):
            yield from between(node.left, node.right, OPERATE)
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
            value = not node.value if isinstance(node.value, bool) else node.value + 1
            yield *at(node), repr(value)
        elif isinstance(node, ast.If | ast.IfExp | ast.While):
            begin, end = at(node.test)
            yield begin, end, f"not ({source.encode()[begin:end].decode()})"
        elif isinstance(node, ast.Return) and node.value is not None:
            yield *at(node.value), "None"


def drawn(seed: int, count: int) -> list[Mutant]:
    """Draw mutants of Python code: one a function, from each package of src in turn.

    A function's lot depends on its file and name alone, so other changes leave its mutant as it is.
    """

    def lot(one: tuple[Path, ast.FunctionDef]) -> random.Random:
        return random.Random(f"{seed} {one[0].relative_to(ROOT)} {one[1].name}")

    functions: dict[str, list[tuple[Path, ast.FunctionDef]]] = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        package = path.relative_to(ROOT / "src").parts[:-1][:2]
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef):
                functions.setdefault("/".join(package), []).append((path, node))
    for found in functions.values():
        found.sort(key=lambda one: lot(one).random())
    mutants: list[Mutant] = []
    while len(mutants) < count:
        for found in functions.values():
            path, node = found.pop() if found else (None, None)
            possible = [*changes(path.read_text("utf-8"), node)] if path and node else []
            if possible and len(mutants) < count:
                start, end, text = lot((path, node)).choice(possible)
                source, name = path.read_bytes(), str(path.relative_to(ROOT))
                line = source[:start].count(b"\n") + 1
                mutants.append(Mutant(name, line, start, end, source[start:end].decode(), text))
    return mutants


def in_kernel() -> list[Mutant]:
    """Read the mutants of the kernel: each line has a file, the old text and the new text."""
    mutants = []
    for line in Path(__file__).with_name("kernel_mutants.txt").read_text("utf-8").splitlines():
        name, old, text = line.split("\t")
        source = (ROOT / name).read_text("utf-8")
        if source.count(old) != 1:
            sys.exit(f"mutants: {name} has {source.count(old)} times {old!r}, not once")
        before = source[: source.index(old)]
        start, number = len(before.encode()), before.count("\n") + 1
        mutants.append(Mutant(name, number, start, start + len(old.encode()), old, text))
    return mutants


def stages(mutant: Mutant, python: str, parity: str) -> Iterator[tuple[str, int, list[str]]]:
    """Yield who may notice, the sample, and the options of pytest; the likeliest first."""
    marking = ["tests/marking", "src/qkv_marking"]
    own = [f"tests/{name}" for name in Path(mutant.path).parts[2:-1][:1]]
    if mutant.path.startswith("native/"):
        own = ["tests/attend", "tests/ops", "tests/layers"]
    elif "qkv_marking" in mutant.path:
        own = marking
    if own and own != marking:
        yield FIRST, 2, [python, *own]
    yield FIRST, 2, [python]
    yield ".ci/run", 1, [python]
    if own == marking:
        yield ".ci/run", 2, [python, *marking]
    for options in (["-m", "slow and not attack"], ["-m", "attack"]):
        yield ".ci/run", 4, [python, *options, "src", "tests", *marking]
    yield ".ci/run", 4, [parity, "tests/parity"]
    for folder in ("serve", "browser", "scale", "course", "native"):
        yield ".ci/run", 4, [python, f"tests/{folder}"]
    yield "everything", 1, [python, "-m", "", *(own or ["tests"])]
    yield "everything", 1, [parity, "-m", "", "tests/parity"]


def judge(mutant: Mutant, clone: Path, python: str, parity: str, again: bool = False) -> str:
    """Apply a mutant to the clone, run `make test` or (again) the rest, and return who notices."""
    path, src = clone / mutant.path, clone / "src"
    before = path.read_bytes()
    path.write_bytes(before[: mutant.start] + mutant.text.encode() + before[mutant.end :])
    try:
        if mutant.path.startswith("native/"):
            build = ["cmake", "-S", "native", "-B", "build/kernel", "-DQKV_VARIANTS=own"]
            for command in (build, ["cmake", "--build", "build/kernel", "-j2"]):
                if subprocess.run(command, cwd=clone, capture_output=True).returncode:
                    return "the compiler"
            shutil.copy(clone / "build/kernel/_kernel.abi3.so", src / "qkv")
        for who, sample, (runner, *options) in stages(mutant, python, parity):
            if (who == FIRST) == again:
                continue
            command = [runner, "-m", "pytest", "-qx", "-n2", "-p", "no:cacheprovider", *options]
            if fails(command, sample, clone, who):
                if not mutant.path.startswith("native/") and (*command, sample) not in sound:
                    path.write_bytes(before)
                    if fails(command, sample, clone, who):
                        sys.exit(f"mutants: without a change too, a test fails: {command}")
                    sound.add((*command, sample))
                return who
        return ALIVE
    finally:
        path.write_bytes(before)


def fails(command: list[str], sample: int, clone: Path, who: str) -> bool:
    """Return whether a test fails in the clone, or a command hangs that `.ci/run` calls too."""
    limit = 60 * MINUTES if who == "everything" else 1200
    env = os.environ | {"PYTHONPATH": str(clone / "src"), "QKV_SAMPLE": str(sample)}
    try:
        done = subprocess.run(command, cwd=clone, env=env, capture_output=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return who != "everything"
    if done.returncode not in (0, 1, 2, 5):  # 2: a file cannot be imported; 5: no test is left
        sys.exit(f"mutants: pytest cannot run:\n{done.stderr.decode()}")
    return done.returncode in (1, 2)


def main() -> None:
    """Judge the mutants, print a line for each, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("python")
    parser.add_argument("parity")
    parser.add_argument("--seed", type=int, default=80)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--survivors", action="store_true")
    given = parser.parse_args()
    mutants = {mutant: "" for mutant in [*drawn(given.seed, given.count), *in_kernel()]}
    if given.survivors:
        lines = [json.loads(line) for line in RESULTS.read_text("utf-8").splitlines()]
        mutants = {Mutant(*line["mutant"]): line["killed by"] for line in lines}
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder, "qkv")
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        (clone / "src/sitecustomize.py").write_text(OWN)
        for kernel in (ROOT / "src/qkv").glob("_kernel.*.so"):
            shutil.copy(kernel, clone / "src/qkv")
        runners = [str(ROOT / it) for it in (given.python, given.parity)]
        for mutant in [it for it, who in mutants.items() if who in ("", ALIVE)]:
            begin = time.monotonic()
            who = mutants[mutant] = judge(mutant, clone, *runners, given.survivors)
            change = f"{mutant.old.strip()[:40]} -> {mutant.text.strip()[:40]}"
            seconds = time.monotonic() - begin
            print(f"{who:10} {seconds:5.0f} s {mutant.path}:{mutant.line} {change!r}", flush=True)
            RESULTS.parent.mkdir(exist_ok=True)
            rows = [{"mutant": it, "killed by": who} for it, who in mutants.items() if who]
            RESULTS.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    print(*(f"{n} {who}" for who, n in Counter(mutants.values()).items()), sep=", ")


if __name__ == "__main__":
    main()

"""Tests of the import rules of the package, and of the modules that `import qkv` loads."""

import ast
import functools
import itertools
import posixpath
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import seconds

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "qkv"
# The import packages of the wheel. `import qkv` does not load `qkv_marking`, which counts as one
# package in the tables below.
ROOTS = (SOURCE, SOURCE.with_name("qkv_marking"))

# The levels of the packages of `qkv`, from the lowest: a package may import only packages on lower
# levels. As in ARCHITECTURE.md, a single file of `src/qkv` is a package too.
LEVELS = [
    {"argument_errors"},
    {"arrays", "extras", "files", "progress", "signals", "suggest", "visible"},
    {"trace", "ops"},
    {"text", "embed", "attend", "edits"},
    {"layers"},
    {"models"},
    {"learn"},
    {"see"},  # reads the run folder that `qkv.learn` writes
    {"circuits"},  # shows its results with `see`
    {"compat", "findings", "integrations", "qkv_marking", "scale", "search", "serve"},
    {"cli"},
]
# These parts of `qkv` may import only the listed parts of `qkv`.
ONLY = {
    "qkv_marking": {"argument_errors", "arrays", "attend", "extras", "files", "signals"},
}
# The order of the files in a subpackage: a file must not import files from later sets. In the
# code, `step` means the index of a set.
STEPS = {
    "see": [
        {"analysis"},
        {"steps"},
        {"draw"},
        {"page"},
        {"views"},
        {""},
    ],
    "attend": [
        {"formula", "visibility", "softmax"},
        {"arguments", "cache"},
        {"grouped", "native"},
        {"tiled"},
        {"attention"},
        {"varlen"},
        {"gradient"},
        {""},  # its `__init__.py`
    ],
    "trace": [
        {"activations"},
        {"names", "recorder", "exports"},
        {"trace"},
        {""},
    ],
    "ops": [
        {"kernel", "threads"},
        {"activation", "lazy"},
        {"blocks", "int8_rows"},
        {"packing"},
        {"linear", "norm", "training"},
        {""},
    ],
    "layers": [
        {"base"},
        {"norm", "mlp", "convolution"},
        {"experts"},
        {"attention"},
        {"block"},
        {"stepping"},
        {""},
    ],
    "models": [
        {"network"},
        {"files"},
        {"families"},
        {"run"},
        {"other_libraries", "kinds"},
        {"model_base"},
        {"tasks"},
        {"sentence"},
        {"model"},
        {"vision", "cross_encoder"},
        {"untrained"},
        {"loading"},
        {"pool"},
        {""},  # its `__init__.py`
    ],
    "learn": [
        {"run_folder", "network", "corpus"},
        {"objectives", "optimizer", "tokenizer_process"},
        {"loop", "tokenizer"},
        {"on_text"},
        {""},
    ],
    "qkv_marking": [
        {"errors", "formula", "tiles"},
        {"mistake", "outcome", "result"},
        {"raised", "isolated", "points", "library_calls"},
        {"findings"},
        {"engine"},
        {"tasks"},
        {"check_function"},
        {"files"},
        {"conformance"},
        {"pytest_plugin"},
        {""},
    ],
    "scale": [
        {"sources", "workers", "manifest"},
        {"counting", "forward"},
        {"encoding", "head_sums"},
        {""},
    ],
    "serve": [
        {"key_file", "refusals"},
        {"settings", "memory"},
        {"waiting", "guard", "bodies", "protocol"},
        {"streams", "batches"},
        {"work"},
        {"routes"},
        {"app"},
        {""},
    ],
    "edits": [{"records"}, {""}],
    "findings": [{"finding_files"}, {"measured"}, {""}],
    "text": [
        {"gaps", "tokenizer_limits", "tokenized", "lines", "chat_template"},
        {"tokenizer"},
        {"words"},
        {""},
    ],
}
# A script of the pages may import scripts from its own folder and from earlier folders in the list
# `SCRIPT_LEVELS`.
SCRIPTS = SOURCE / "see" / "page" / "assets"
SCRIPT_LEVELS = ["base", "engine", "store", "parts", "screens", "pages"]
# Packages that `cli` and `serve` may import at the top of a file, because decorators of these
# packages declare the commands, the routes and the types of the routes' bodies. Only the `qkv`
# script imports `cli`; only `qkv serve` imports `serve`.
AT_THE_TOP = {
    "cli": {"click"},
    "serve": {
        "fastapi",
        "fastapi_offline",
        "httptools",
        "orjson",
        "prometheus_client",
        "pydantic",
        "starlette",
        "uvicorn",
    },
}
# The state of the process: names of modules whose values change after the import. In the code, a
# comment that begins with "# State:" gives the reason for each of them.
STATE = {
    "qkv.attend._tiled": {"_buffers"},
    "qkv.models.families._registry": {"FAMILIES"},
    "qkv.models._pool": {"_model"},
    "qkv.models.run.truncation": {"_counted"},
    "qkv.ops.kernel": {"_here", "_threads"},
    "qkv.ops.linear": {"_narrow"},
    "qkv.ops.packing": {"_packed"},
    "qkv.ops.threads": {"_helpers", "_here"},
    "qkv.scale.workers": {"_computing", "_loading", "_models"},
    "qkv_marking._engine": {"_SEED"},
}
# Calls that make objects which change, and methods that change containers.
CHANGEABLE = {
    *(
        "BoundedSemaphore",
        "Condition",
        "ContextVar",
        "Event",
        "Lock",
        "Queue",
        "RLock",
        "Semaphore",
    ),
    *("SimpleQueue", "WeakKeyDictionary", "WeakSet", "WeakValueDictionary", "bytearray", "count"),
    *("defaultdict", "deque", "local"),
}
CHANGES = {
    *("add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem"),
    *("popleft", "put", "remove", "reverse", "set", "setdefault", "sort", "update"),
}


parsed = functools.cache(ast.parse)  # several rules read each file


def level(package: str) -> int:
    """Return the level of a package of `qkv`: its index in `LEVELS`.

    An empty string means `qkv` itself (`from qkv import ...`), which has the highest level.
    """
    if package == "":
        return len(LEVELS)
    for number, packages in enumerate(LEVELS):
        if package in packages:
            return number
    raise AssertionError(f"qkv.{package} has no level: give it one in {Path(__file__).name}")


def package_of(module: str) -> str:
    """Return the package of a module: `attend` for `qkv.attend.formula`, empty for `qkv`."""
    top, _, rest = module.partition(".")
    return rest.partition(".")[0].removeprefix("_") if top == "qkv" else top


def imports(tree: ast.AST, module: str, is_package: bool) -> Iterator[tuple[str, bool]]:
    """Yield each module that a file imports, and whether this import runs when the file loads."""
    package = module if is_package else module.rpartition(".")[0]

    def visit(node: ast.AST, at_top: bool) -> Iterator[tuple[str, bool]]:
        if isinstance(node, ast.Import):
            yield from ((name.name, at_top) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parent = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parent, *filter(None, [base])])
            for name in node.names:
                # `from qkv import attend` counts as an import of `qkv.attend`, not of `qkv`
                whole = base == "qkv" and is_in_qkv(name.name)
                yield (f"{base}.{name.name}" if whole else base), at_top
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            at_top = False
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            at_top = False
        for child in ast.iter_child_nodes(node):
            yield from visit(child, at_top)

    yield from visit(tree, True)


def is_in_qkv(name: str) -> bool:
    return (SOURCE / name).is_dir() or (SOURCE / f"{name}.py").is_file() or name == "_kernel"


def broken_rules(module: str, source: str, *, is_package: bool = False) -> list[str]:
    """Return a message for each import of a module that breaks a rule."""
    broken = []
    package = package_of(module)
    for target, at_top in imports(parsed(source), module, is_package):
        top = target.partition(".")[0]
        if top in {root.name for root in ROOTS}:
            there = package_of(target)
            if target == "qkv._kernel":
                if module != "qkv.ops.kernel":
                    broken.append(f"{module}: only qkv.ops.kernel may import qkv._kernel")
            elif module == "qkv.attend.formula":
                broken.append(f"{module} imports {target}: the formula stands on its own")
            elif module != "qkv" and there != package:
                if level(there) >= level(package):
                    broken.append(f"{module} imports {target}: imports go downward only")
                elif there not in ONLY.get(package, {there}):
                    broken.append(f"{module} imports {target}: {package} may not")
        elif (
            at_top
            and top not in sys.stdlib_module_names
            and top not in {"numpy", *AT_THE_TOP.get(package, ())}
        ):
            broken.append(f"{module} imports {top} at the top: do it in the function that uses it")
    return broken


@functools.cache
def modules() -> dict[str, Path]:
    """Return the path of every Python file of the wheel, by module name."""
    found = {}
    for path in sorted(path for root in ROOTS for path in root.rglob("*.py")):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def test_imports_go_downward_and_stay_light() -> None:
    found = modules()
    assert len(found) > 200
    assert not [
        rule
        for module, path in found.items()
        for rule in broken_rules(
            module, path.read_text(encoding="utf-8"), is_package=path.name == "__init__.py"
        )
    ]


@pytest.mark.parametrize(
    ("module", "source", "complaint"),
    [
        ("qkv.attend._tiled", "from qkv.layers import Block", "downward"),
        ("qkv.attend._tiled", "from ..text import WordTokenizer", "downward"),
        ("qkv.attend._tiled", "from qkv import attention", "downward"),
        ("qkv.attend._tiled", "def f():\n    import qkv.models.model", "downward"),
        ("qkv.embed.rotary", "from qkv.attend._grouped import split", "downward"),
        ("qkv.learn._loop", "from qkv import see", "downward"),
        ("qkv.trace", "from qkv.ops.linear import linear", "downward"),
        ("qkv.attend.formula", "from qkv.attend._grouped import split", "on its own"),
        ("qkv.attend.formula", "from .grouped import split", "on its own"),
        ("qkv.attend._tiled", "from qkv._kernel import attention", "_kernel"),
        ("qkv.attend._tiled", "from qkv import _kernel", "_kernel"),
        ("qkv_marking._engine", "from qkv.layers import Block", "may not"),
        ("qkv_marking._engine", "from qkv import attention", "downward"),
        ("qkv_marking._engine", "import matplotlib", "at the top"),
        ("qkv.see.steps.walk", "def f():\n    from qkv_marking import check", "downward"),
        ("qkv.serve.app", "import qkv_marking.files", "downward"),
        ("qkv.text._words", "import tokenizers", "at the top"),
        ("qkv.text._words", "try:\n    import rich.table\nexcept OSError: pass", "at the top"),
        ("qkv.see.draw.terminal", "class A:\n    import click", "at the top"),
    ],
)
def test_a_broken_rule_is_seen(module: str, source: str, complaint: str) -> None:
    (message,) = broken_rules(module, source)
    assert complaint in message


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (
            "qkv.models.families._bert",
            "from qkv.layers import Block\nimport numpy as np\nimport json",
        ),
        ("qkv.attend._tiled", "from .heads import split\nfrom qkv.attend.formula import formula"),
        ("qkv.text._words", "def f():\n    import tokenizers"),
        ("qkv.text._words", "if TYPE_CHECKING:\n    import tokenizers"),
        ("qkv.ops.kernel", "from qkv import _kernel"),
        ("qkv.cli.show", "import click\nfrom qkv import see"),
        ("qkv", "from .attend import attention\nfrom .models import load"),
    ],
)
def test_what_is_allowed_passes(module: str, source: str) -> None:
    assert not broken_rules(module, source, is_package=module == "qkv")


def files_imported(source: str) -> set[str]:
    """Return the modules of the package that a file imports, also those imported only for types."""
    known, found = modules(), set()
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            whole = {f"{node.module}.{name.name}" for name in node.names}
            found |= whole if whole <= known.keys() else {node.module, *whole}
    return found & known.keys()


def wrong_steps(module: str, imported: set[str]) -> list[str]:
    """Return a message for each imported file that breaks the order in `STEPS`."""
    package = package_of(module)

    def step(name: str) -> int:
        inner = name.removeprefix("qkv.").removeprefix(package).lstrip(".")
        part = inner.partition(".")[0].removeprefix("_")
        for number, parts in enumerate(STEPS[package]):
            if part in parts:
                return number
        raise AssertionError(
            f"{part} has no place in the order of {package}: add it to STEPS[{package!r}] in "
            f"{Path(__file__).name}, after each file that it imports"
        )

    return [
        f"{module} imports {target}: imports go downward inside {package} too"
        for target in sorted(imported)
        if package in STEPS and package_of(target) == package and step(target) > step(module)
    ]


def test_a_file_without_a_place_in_the_order_is_seen() -> None:
    with pytest.raises(AssertionError, match=r"relu has no place in .* ops: add it to STEPS"):
        wrong_steps("qkv.ops.relu", {"qkv.ops.kernel"})


def circles(graph: dict[str, set[str]]) -> set[str]:
    """Return the files in import cycles and on paths between cycles; empty if there is no cycle."""
    left = {name: set(others) for name, others in graph.items()}
    while ends := {name for name, others in left.items() if not others & left.keys()}:
        left = {name: others for name, others in left.items() if name not in ends}
    while starts := left.keys() - set().union(*left.values()):
        left = {name: others for name, others in left.items() if name not in starts}
    return set(left)


@functools.cache
def files_and_imports() -> dict[str, set[str]]:
    """Return the imports of each file; omit the package itself, which imports from all parts."""
    return {
        module: files_imported(path.read_text(encoding="utf-8")) - {"qkv"}
        for module, path in modules().items()
        if module != "qkv"
    }


def test_no_files_import_each_other_in_a_circle() -> None:
    assert not circles(files_and_imports())


@pytest.mark.parametrize("package", STEPS)
def test_imports_inside_a_package_go_one_way(package: str) -> None:
    graph = {
        name: imported
        for name, imported in files_and_imports().items()
        if package_of(name) == package
    }
    assert not [line for module in graph for line in wrong_steps(module, graph[module])]


def test_a_wrong_step_and_a_circle_inside_a_package_are_seen() -> None:
    source = "if TYPE_CHECKING:\n    from qkv.models.sentence import encode"
    found = files_imported(source)
    assert found == {"qkv.models.sentence.encode"}
    assert len(wrong_steps("qkv.models.files.find", found)) == 1
    assert len(wrong_steps("qkv_marking._errors", {"qkv_marking._engine"})) == 1
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == {"b", "c"}


def scripts_imported(name: str, source: str) -> set[str]:
    """Return the paths in assets/ of the scripts that a script imports.

    Imports inside JSDoc comments, such as `@typedef {import("./spans.js").Piece} Piece`, do not
    count, because they import only types.
    """
    found = re.findall(
        r'^(?:import|export) (?:[^"]*? from )?"(\.[^"]+\.js)";$', source, re.MULTILINE
    )
    return {posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) for path in found}


def scripts_upward(name: str, imported: set[str]) -> list[str]:
    """Return a message for each import that breaks the order of folders in `SCRIPT_LEVELS`.

    The script `name` imports the scripts whose paths are in `imported`.
    """
    own, *others = (SCRIPT_LEVELS.index(path.partition("/")[0]) for path in (name, *imported))
    return [
        f"{name} imports {path}: imports go downward only"
        for path, there in zip(imported, others, strict=True)
        if there > own
    ]


@functools.cache
def scripts() -> dict[str, set[str]]:
    """Return the imports of each script of the pages."""
    paths = {path.relative_to(SCRIPTS).as_posix(): path for path in SCRIPTS.rglob("*.js")}
    return {name: scripts_imported(name, path.read_text("utf-8")) for name, path in paths.items()}


def test_scripts_import_downward_and_in_no_circle() -> None:
    assert len(scripts()) > 40
    assert set().union(*scripts().values()) <= scripts().keys()
    assert not [line for name, found in scripts().items() for line in scripts_upward(name, found)]
    assert not circles(scripts())


def test_every_script_is_part_of_a_page() -> None:
    left = [name for name in scripts() if name.startswith("pages/")]
    # loaded besides the page's own script
    left += [f"engine/{name}.js" for name in ("api", "server", "worker")]
    found: set[str] = set()
    while left:
        name = left.pop()
        left += scripts()[name] - found
        found |= {name}
    assert found == scripts().keys()


def test_a_script_that_imports_upward_is_seen() -> None:
    source = (
        'import { a,\n  b } from "../parts/map.js";\nimport "./x.css";\nimport "./edits.js";\n'
        '/** @typedef {import("../store/store.js").Now} Now */\n'
        'export * from "../base/format.js";\n'
    )
    found = scripts_imported("engine/engine.js", source)
    assert found == {"parts/map.js", "engine/edits.js", "base/format.js"}
    (line,) = scripts_upward("engine/engine.js", found)
    assert line == "engine/engine.js imports parts/map.js: imports go downward only"


def test_a_package_without_a_level_is_seen() -> None:
    with pytest.raises(AssertionError, match="has no level"):
        broken_rules("qkv.cellar", "from qkv.layers import Block")


def test_import_qkv_loads_numpy_and_the_standard_library_only() -> None:
    # The program counts only modules that are loaded after numpy. So modules that the environment
    # loads at start-up do not count.
    program = """if True:
        import sys
        import numpy
        before = set(sys.modules)
        import qkv
        print(*set(sys.modules) - before)
    """
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = answer.stdout.split()
    tops = {name.partition(".")[0] for name in loaded}
    assert tops - sys.stdlib_module_names - {"numpy"} == {"qkv"}
    # these modules load on first use, so that `import qkv` does not wait for them
    later = {"qkv.models", "qkv.see", "qkv.learn", "qkv.circuits", "tomllib"}
    assert not later & set(loaded)


def name_of(node: ast.expr) -> str:
    """Return the last name of an expression: `local` for `threading.local` and for `local`."""
    return getattr(node, "attr", getattr(node, "id", ""))


def owner(node: ast.expr) -> str:
    """Return the first name of an expression: `TABLE` for `TABLE["a"].b`."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return getattr(node, "id", "")


def is_changeable(value: ast.expr | None) -> bool:
    """Return whether a value at the top of a module exists to be changed later."""
    if isinstance(value, ast.Call):
        empty = name_of(value.func) in {"dict", "list", "set"} and not (value.args + value.keywords)
        return empty or name_of(value.func) in CHANGEABLE
    return value is not None and ast.unparse(value) in {"{}", "[]"}


def changed_in(function: ast.AST) -> Iterator[str]:
    """Yield the names of other scopes whose values a function changes or rebinds."""
    nodes = list(ast.walk(function))
    own = {node.arg for node in nodes if isinstance(node, ast.arg)}
    own |= {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    for node in nodes:
        if isinstance(node, ast.Global):
            yield from node.names
        changed = ""
        if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            changed = owner(node)
        elif isinstance(node, ast.Call) and name_of(node.func) in CHANGES:
            changed = owner(node.func) if isinstance(node.func, ast.Attribute) else ""
        if changed not in own:
            yield changed


def state_of(source: str, module: str) -> set[str]:
    """Return the full names, such as `qkv.ops.kernel._threads`, of the state that a file uses."""
    tree, places = parsed(source), {}
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("qkv"):
            places |= {n.asname or n.name: f"{node.module}.{n.name}" for n in node.names}
    bodies = [("", tree.body)]
    bodies += [(f"{n.name}.", n.body) for n in tree.body if isinstance(n, ast.ClassDef)]
    for prefix, body in bodies:
        for node in body:
            if isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
                places |= {} if prefix else {name: f"{module}.{name}" for name in names}
                several = any(isinstance(target, ast.Tuple) for target in targets)
                parts = getattr(node.value, "elts", []) if several else [node.value]
                if any(map(is_changeable, parts)):
                    found |= {f"{module}.{prefix}{name}" for name in names}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            found |= {places[name] for name in changed_in(node) if name in places}
    return found


def unbounded_caches(source: str) -> set[str]:
    """Return the names of functions with arguments whose caches can grow without a limit."""
    found = set()
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            takes_arguments = any(isinstance(part, ast.arg) for part in ast.walk(node.args))
            written = {ast.unparse(d).removeprefix("functools.") for d in node.decorator_list}
            endless = {"cache", "lru_cache(None)", "lru_cache(maxsize=None)"}
            if takes_arguments and written & endless:
                found.add(node.name)
    return found


def has_reason(source: str, name: str) -> bool:
    """Return whether a "# State:" comment stands above the line that first assigns `name`."""
    lines = source.splitlines()
    at = next(i for i, line in enumerate(lines) if re.match(rf"(\w+, )*{name}\b.* = ", line))
    above = list(itertools.takewhile(lambda line: line.startswith("# "), reversed(lines[:at])))
    return any(line.startswith("# State: ") for line in above)


def test_every_state_of_the_process_has_a_reason() -> None:
    sources = {module: path.read_text(encoding="utf-8") for module, path in modules().items()}
    found = set().union(*(state_of(source, module) for module, source in sources.items()))
    listed = {f"{module}.{name}" for module, names in STATE.items() for name in names}
    assert not [
        f"{name} changes after the import: pass the value as an argument, keep it in an object, or "
        f'add {name} to STATE in {Path(__file__).name}, and a comment "# State:" with the reason'
        for name in sorted(found - listed)
    ]
    assert not [f"{name} in STATE does not change: delete it there" for name in listed - found]
    assert not [
        f'{name} has no reason: write a comment "# State: ..." above it'
        for name in sorted(listed)
        if not has_reason(sources[name.rpartition(".")[0]], name.rpartition(".")[2])
    ]
    assert not [
        f"{module}.{name}: the cache can grow without a limit: write lru_cache with a limit"
        for module, source in sources.items()
        for name in unbounded_caches(source)
    ]


@pytest.mark.parametrize(
    "source",
    [
        "a = {}",
        "a: list[int] = []",
        "a = set()",
        "b, a = threading.Lock(), 0",
        'a: ContextVar[int] = ContextVar("a")',
        "class A:\n    a = []",
        "a = 0\ndef f():\n    global a\n    a = 1",
        "a = {1: 2}\ndef f():\n    a[1] = 3",
        "a = {1: 2}\ndef f():\n    del a[1]",
        "a = {1}\ndef f():\n    a.add(2)",
        "a = A()\ndef f():\n    a.b.c = 2",
        "from qkv.ops.kernel import a\ndef f():\n    a.clear()",
        "from qkv import a\ndef f():\n    a.b = 1",
    ],
)
def test_state_is_seen(source: str) -> None:
    (name,) = {name.rpartition(".")[2] for name in state_of(source, "qkv.x")} - {"b"}
    assert name == "a"


@pytest.mark.parametrize(
    "source",
    [
        "a = {1: 2}\na[3] = 4",
        "a = {1: 2}\ndef f():\n    return a[1]",
        "a = {1: 2}\ndef f(a):\n    a[1] = 3",
        "a = {1: 2}\ndef f():\n    a = {}\n    a[1] = 3",
        "def f():\n    a = []\n    a.append(1)",
    ],
)
def test_constants_are_no_state(source: str) -> None:
    assert not state_of(source, "qkv.x")


def test_an_endless_cache_and_a_missing_reason_are_seen() -> None:
    assert unbounded_caches("@functools.cache\ndef f(x): ...\n@cache\ndef g(): ...") == {"f"}
    assert unbounded_caches("@lru_cache(None)\ndef f(x): ...\n@lru_cache(9)\ndef g(x): ...") == {
        "f"
    }
    assert has_reason("# State: one\n# model.\na: int = 0", "a")
    assert not has_reason("# One model.\na: int = 0", "a")


TESTS = Path(__file__).parent
# Folders of tests that test no package of their own; CONTRIBUTING.md describes each of them.
OTHER_TESTS = {"browser", "course", "native", "parity", "real", "training"}


def sources() -> dict[str, set[str]]:
    """Return the folders in which a source file or folder of a name lies, by package and name.

    Folders are those of `tests/`: `src/qkv/ops` is `ops`, and `src/qkv_marking` is `marking`.
    """
    found: dict[str, set[str]] = {}
    for root, home in zip(ROOTS, ("", "marking"), strict=True):
        for path in root.rglob("*"):
            if path.suffix == ".py" or (path / "__init__.py").is_file():
                folder = (home / path.parent.relative_to(root)).as_posix().removeprefix(".")
                package = folder.partition("/")[0]
                name = path.stem.removeprefix("_")
                found.setdefault(f"{package} {name}", set()).add(folder)
    return found


def misplaced(test: str, known: dict[str, set[str]]) -> str:
    """Return why the path of a test file in `tests/` breaks the rule of CONTRIBUTING.md, or ""."""
    folder, _, name = test.rpartition("/")
    name = name.removeprefix("test_").removesuffix(".py")
    package = folder.partition("/")[0]
    if package in OTHER_TESTS:
        return ""
    if folder not in set().union(*known.values()):
        return f"{test}: src has no folder {folder}: add {package} to OTHER_TESTS, or move the file"
    there = known.get(f"{package} {name}", {folder})
    if folder in there:
        return ""
    return f"{test} has the name of a source in {min(there)}: move it there, or name a behaviour"


def test_tests_are_where_their_names_say() -> None:
    known, paths = sources(), sorted(TESTS.rglob("test_*.py"))
    assert len(paths) > 300
    assert not [
        wrong for path in paths if (wrong := misplaced(path.relative_to(TESTS).as_posix(), known))
    ]
    assert not [
        f"{path.name}: say in a docstring, at the top, what the file tests"
        for path in paths
        if not path.read_text(encoding="utf-8").startswith('"""')
    ]
    contributing = (TESTS.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert {f"`tests/{name}`" for name in OTHER_TESTS} <= set(re.findall("`[^`]+`", contributing))
    assert all((TESTS / name).is_dir() for name in OTHER_TESTS)


@pytest.mark.parametrize(
    ("test", "complaint"),
    [
        ("ops/test_norm.py", ""),
        ("ops/test_any_layout.py", ""),
        ("models/tasks/test_loading.py", "a source in models:"),
        ("marking/test_softmax.py", "a source in marking/tasks:"),
        ("norms/test_norm.py", "src has no folder norms"),
        ("parity/test_norm.py", ""),
        ("test_arrays.py", ""),
    ],
)
def test_a_misplaced_test_is_seen(test: str, complaint: str) -> None:
    wrong = misplaced(test, sources())
    assert complaint in wrong
    assert bool(complaint) == bool(wrong)


# Private names of other files that a file may read, each with the reason.
PRIVATE = {
    "_asdict": "a public method of named tuples, with a name that no field can have",
    "_fields": "as `_asdict`",
    "_replace": "as `_asdict`",
    "_exit": "`os._exit` is the documented way to end a process without its cleanup",
    "_getframe": "`sys._getframe` is documented, and only it finds a frame without the whole stack",
    "_ParameterKind": "`inspect` has no public name for the type of `Parameter.kind`",
}
# Files that read private names of torch because torch has no public names for the same things.
TORCH = {
    "qkv.integrations._tensors",
    "qkv.integrations.transformers",
}


def is_own(node: ast.Attribute) -> bool:
    """Return whether an attribute belongs to `self` or `cls`."""
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def names_defined(tree: ast.AST) -> set[str]:
    """Return the names of a file's functions, classes and variables, and of attributes it sets."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_own(node):
            names.add(node.attr)
    return names


def private_reads(source: str) -> set[str]:
    """Return the private attributes that a file reads or sets on objects of other files."""
    tree = ast.parse(source)
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and re.match("_(?!_)", node.attr):
            is_super = isinstance(node.value, ast.Call) and name_of(node.value.func) == "super"
            if not is_own(node) and not is_super:
                found.add(node.attr)
    return found - names_defined(tree)


def test_no_file_reads_private_attributes_of_another_file() -> None:
    used = set()
    for module, path in modules().items():
        found = private_reads(path.read_text("utf-8"))
        used |= found & set(PRIVATE)
        if module not in TORCH:
            assert not found - set(PRIVATE), f"{module}: give these attributes public names"
    assert used == set(PRIVATE), "remove the exceptions that no file uses"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def f(model):\n    return model._eos_ids", {"_eos_ids"}),
        ("def f(model):\n    model.network._made = 1", {"_made"}),
        ("class A:\n    def f(self):\n        return make(self)._x + self.of._y", {"_x", "_y"}),
        ("class A:\n    _x = 1\n    def f(self, other):\n        return other._x", set()),
        ("class A:\n    def f(self):\n        self._x = 1\n        return A()._x", set()),
        ("class A(B):\n    def f(cls):\n        return super()._y + cls._z", set()),
        ("x = module.__name__", set()),
    ],
)
def test_a_private_read_is_seen(source: str, found: set[str]) -> None:
    assert private_reads(source) == found


def home(module: str) -> str:
    """Return the package, which is the folder, that holds a module; a package is its own home."""
    path = modules().get(module)
    return module if path and path.name == "__init__.py" else module.rpartition(".")[0]


def wrong_privacy(imported: dict[str, set[str]]) -> list[str]:
    """Return a message for each file that has the wrong name, or that imports a private file.

    A file is private to its package and to the packages inside it; the `__init__.py` of packages
    around it may make its names public.
    """

    def is_inside(user: str, package: str) -> bool:
        if f"{home(user)}.".startswith(f"{package}."):
            return True
        return user == home(user) and f"{package}.".startswith(f"{user}.")

    wrong = []
    for module in sorted(imported):
        package, _, name = module.rpartition(".")
        users = {user for user in imported if module in imported[user]}
        others = sorted(user for user in users if not is_inside(user, package))
        if module == home(module):
            public = [
                file
                for file in imported
                if file.rpartition(".")[0] == module != file and file != home(file)
                if not file.rpartition(".")[2].startswith("_")
            ]
            if len(public) > MAX_PUBLIC:
                wrong.append(f"{module} has {len(public)} public files: lend names in __init__.py")
        elif name.startswith("_"):
            wrong += [f"{user} imports {module}: import from {package}" for user in others]
        elif not others and module not in USED_FROM_OUTSIDE:
            wrong.append(f"{module} is used by its package only: name the file _{name}.py")
    return wrong


# The maximum number of files of a package that other packages import.
MAX_PUBLIC = 5
# Files that users, benchmarks or pytest import, but no other package of the wheel.
USED_FROM_OUTSIDE = {
    "qkv.circuits.metrics",
    "qkv.integrations.transformers",
    "qkv_marking.pytest_plugin",
}


def test_other_packages_import_public_files_only() -> None:
    imported = {
        module: files_imported(path.read_text(encoding="utf-8"))
        for module, path in modules().items()
    }
    assert not wrong_privacy(imported)


@pytest.mark.parametrize(
    ("user", "target", "complaint"),
    [
        ("qkv.models.model", "qkv.attend._grouped", "import from qkv.attend"),
        ("qkv.attend.formula", "qkv.attend._grouped", ""),
        ("qkv.models.tasks.predict", "qkv.models._kinds", ""),
        ("qkv.models.model", "qkv.models.tasks._sampling", "import from qkv.models.tasks"),
        ("qkv.see", "qkv.see.views._show", ""),
        ("qkv.attend.formula", "qkv.attend.cache", "name the file _cache.py"),
        ("qkv.layers.base", "qkv.attend.cache", ""),
    ],
)
def test_a_wrong_import_of_a_private_file_is_seen(user: str, target: str, complaint: str) -> None:
    found = wrong_privacy({user: {target}, target: set()})
    wrong = [line for line in found if target in line]
    assert bool(wrong) == bool(complaint)
    assert all(complaint in line for line in wrong)


# Packages whose helpers still take the name of the public call for their errors. `scale` also names
# the tasks of its workers by the call; `arrays` and `argument_errors` pass the name on for `scale`.
# In `qkv_marking`, the process of `_isolated.py` names the call in errors about this process.
CARRY_NAMES = {"scale", "arrays", "argument_errors", "qkv_marking"}


def carriers(source: str) -> set[str]:
    """Return the functions and classes that take the name of the public call as `call: str`."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            arguments = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
            pairs = [(argument.arg, argument.annotation) for argument in arguments]
        elif isinstance(node, ast.ClassDef):
            fields = [field for field in node.body if isinstance(field, ast.AnnAssign)]
            pairs = [(name_of(field.target), field.annotation) for field in fields]
        else:
            continue
        if any(name == "call" and kind and ast.unparse(kind) == "str" for name, kind in pairs):
            found.add(node.name)
    return found


def test_helpers_do_not_carry_the_name_of_the_public_call() -> None:
    carrying = {
        package_of(module)
        for module, path in modules().items()
        if carriers(path.read_text(encoding="utf-8"))
    }
    assert carrying == CARRY_NAMES


def test_a_helper_that_carries_a_name_is_seen() -> None:
    assert carriers("def check(x, *, call: str): ...") == {"check"}
    assert carriers("class Inputs:\n    call: str = ''") == {"Inputs"}
    assert carriers("def run(call: Call): ...\ndef named(call): ...") == set()


def complaints_of_seconds(cases: dict[str, float]) -> list[str]:
    """Return the cases of .ci/seconds.txt that need no mark, or whose test does not exist."""
    complaints = []
    for case, taken in cases.items():
        path, _, test = case.partition("::")
        function = test.partition("[")[0].rpartition("::")[2]
        source = ROOT.joinpath(path).read_text("utf-8") if ROOT.joinpath(path).exists() else ""
        if not source or (path.startswith("tests/") and f"def {function}(" not in source):
            complaints.append(f"there is no {case}: run `make seconds`")
        elif taken < seconds.SLOW:
            complaints.append(f"{case} takes {taken} s, and needs no mark")
    return complaints


def test_the_slow_cases_exist_and_are_slow() -> None:
    assert complaints_of_seconds(seconds.slow_cases()) == []


def test_a_wrong_line_of_seconds_is_seen() -> None:
    here = "tests/test_house.py::test_a_wrong_line_of_seconds_is_seen"
    cases = {here: 0.31, f"{here}[3]": 0.09, f"{here}_too": 0.4, "tests/test_no.py::test_a": 0.4}
    assert len(complaints_of_seconds(cases)) == 3

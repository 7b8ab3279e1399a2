"""Read modules.json, which lists the sentence-transformers modules that process a text."""

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from qkv.models.files.read import CONFIG, MODULES, PROMPTS, ROUTER, ModelError, read_json

STEPS = ("Dense", "LayerNorm", "Normalize", "Dropout")  # The modules after the pooling.
READ = ("Transformer", "CLIPModel", "StaticEmbedding", "Pooling", *STEPS)
SPLADE, MASK = "SpladePooling", "MultiVectorMask"  # modules of SparseEncoder and MultiVectorEncoder
_OTHERS = {"MLMTransformer": "Transformer", SPLADE: SPLADE, MASK: MASK}
_PACKAGES = ("sentence_transformers.", "pylate.")
_ROUTER = ("Router", "Asym")  # The current and the old name of the class.
_TEXT = "text"  # The only kind of input that qkv supports.
Chosen = Mapping[tuple[Any, Any], str]  # Maps (task, kind of input) to a route; None matches all.


@dataclass(frozen=True)
class Module:
    """A sentence-transformers module.

    Attributes:
        kind: the name of the module's class.
        subfolder: the folder of the module's files, inside the model's folder.
    """

    kind: str
    subfolder: str


@dataclass(frozen=True)
class Routing:
    """The routes that a text may take through the modules; without a router, the only route is "".

    Attributes:
        ways: the modules of each route, in order.
        default: the route of texts without a task; None if no route accepts these texts.
        chosen: maps (task, kind of input), such as ("query", "text"), to the name of a route.
        files: the paths, inside the model's folder, of the files that define the routes.
    """

    ways: Mapping[str, tuple[Module, ...]]
    default: str | None = ""
    chosen: Chosen = field(default_factory=dict)
    files: tuple[str, ...] = ()

    @property
    def first(self) -> str:
        """The name of the default route, or of the first route if there is no default."""
        return next(iter(self.ways)) if self.default is None else self.default

    @property
    def is_choice(self) -> bool:
        """Whether the model has a router."""
        return "" not in self.ways

    def way(self, task: str | None) -> str | None:
        """Return the name of the route for texts with this task; None if no route accepts them.

        As in sentence-transformers, this function tries three sources in order:

        1. the dict `chosen`, at the keys (task, "text"), (task, None), (None, "text") and
           (None, None);
        2. the route with the task's name, then the route "text";
        3. the default route, if no task is given.
        """
        for key in ((task, _TEXT), (task, None), (None, _TEXT), (None, None)):
            if key in self.chosen:
                return self.chosen[key]
        named = next((name for name in (task, _TEXT) if name in self.ways), None)
        return self.default if named is None and task is None else named


def read_routing(folder: Path) -> Routing:
    """Return the routes in modules.json, or a single route without modules if the file is missing.

    Raises:
        ModelError: the file is broken; or qkv does not support a module or the order of the
            modules.
    """
    path = folder / MODULES
    if not path.is_file():
        return Routing({"": ()})
    listed = read_json(path, list)
    if not listed or not all(isinstance(module, dict) for module in listed):
        raise ModelError(f"{path} contains {listed!r:.80}: it must contain a list of modules")
    modules = [_module(path, module.get("type"), module.get("path", "")) for module in listed]
    routing = _read_routes(folder, modules)
    for way in routing.ways.values():
        _check_order(path, way)
    return routing


def _module(path: Path, kind: Any, subfolder: Any) -> Module:
    """Check the class and the folder of a module, and return the `Module`."""
    name = str(kind).rpartition(".")[2]
    name = _OTHERS.get(name, name)
    if not str(kind).startswith(_PACKAGES) or name not in (*READ, *_OTHERS, *_ROUTER):
        raise ModelError(
            f"{path}: qkv does not support the module {kind!s:.80}; the supported modules of "
            f"sentence-transformers are {', '.join(READ)} and Router"
        )
    return Module(name, _inside(path, subfolder))


def _inside(path: Path, inner: Any) -> str:
    """Return `inner` as a string; raise an error if it is a path outside the model's folder."""
    parts = PurePosixPath(inner).parts if isinstance(inner, str) else ("..",)
    if ".." in parts or str(inner).startswith("/") or "\\" in str(inner) or ":" in str(inner):
        raise ModelError(f"{path}: the path {inner!r:.80} is outside the model's folder")
    return str(inner)


def _read_routes(folder: Path, modules: list[Module]) -> Routing:
    """Return the routes through the modules; at most one module may be a router."""
    numbers = [number for number, module in enumerate(modules) if module.kind in _ROUTER]
    if not numbers:
        return Routing({"": tuple(modules)}, files=(MODULES,))
    if len(numbers) > 1:
        raise ModelError(
            f"{folder / MODULES} has {len(numbers)} routers, but qkv supports only one"
        )
    number, home = numbers[0], modules[numbers[0]].subfolder
    file = next((name for name in (ROUTER, CONFIG) if (folder / home / name).is_file()), ROUTER)
    path = folder / home / file
    values = read_json(path)
    kinds, ways, options = (values.get(name) for name in ("types", "structure", "parameters"))
    fine = isinstance(kinds, dict) and isinstance(ways, dict) and ways and "" not in ways
    if not fine or not all(
        isinstance(way, list) and way and all(name in kinds for name in way)
        for way in ways.values()
    ):
        raise ModelError(
            f"{path} must have `structure`, the modules of each route, and `types`, the class of "
            "each module"
        )
    routes = {
        name: tuple(
            _module(path, kinds[part], str(PurePosixPath(home, _inside(path, part))))
            for part in way
        )
        for name, way in ways.items()
    }
    for module in (module for way in routes.values() for module in way):
        if module.kind in _ROUTER:
            raise ModelError(f"{path} has a router inside a router, but qkv supports only one")
    before, after = tuple(modules[:number]), tuple(modules[number + 1 :])
    whole = {name: (*before, *way, *after) for name, way in routes.items()}
    inner = str(PurePosixPath(home, file))
    return Routing(whole, *_choice(path, options or {}, whole), files=(MODULES, inner))


def _choice(path: Path, options: Any, ways: Mapping[str, Any]) -> tuple[str | None, Chosen]:
    """Return `(default, chosen)`, two fields of `Routing`, from the parameters of a router."""
    options = options if isinstance(options, dict) else {}
    default, mappings = options.get("default_route"), options.get("route_mappings") or {}
    if default is None and options.get("allow_empty_key", True):
        default = next(iter(ways))
    chosen: dict[tuple[Any, Any], str] = {}
    for written, way in mappings.items() if isinstance(mappings, dict) else ():
        try:
            task, kind = ast.literal_eval(written)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            raise ModelError(
                f"{path}: route_mappings has the key {written!r:.80}; a key must be a task and a "
                "kind of input"
            ) from None
        # Skip keys such as ("query", ("text", "image")), which need a text together with an image.
        if isinstance(kind, str | None) and isinstance(task, str | None):
            chosen[task, kind] = way
    for way in (*chosen.values(), *(() if default is None else (default,))):
        if not isinstance(way, str) or way not in ways:
            raise ModelError(
                f"{path}: {way!r:.80} is not a route; the routes are {', '.join(ways)}"
            )
    return default, chosen


def _check_order(path: Path, modules: tuple[Module, ...]) -> None:
    """Raise an error unless qkv supports these modules in this order."""
    kinds = [module.kind for module in modules]
    if kinds == ["Transformer"] and is_cross_encoder(path.parent):
        return
    pools = "Pooling" not in kinds and _pools_itself(path.parent, modules[0])
    whole = pools or kinds[0] == "StaticEmbedding"
    multi = (MASK in kinds or is_pylate(path.parent)) and kinds[0] == "Transformer"
    first = 1 if whole or multi else 2
    fine = whole or multi or kinds[:2] in (["Transformer", "Pooling"], ["Transformer", SPLADE])
    if not fine or set(kinds[first:]) - {*STEPS, *[MASK] * multi}:
        raise ModelError(
            f"{path}: its modules are {', '.join(kinds)}, but qkv supports only Transformer and "
            f"Pooling, Transformer and {SPLADE}, Transformer and {MASK}, or StaticEmbedding, "
            f"optionally followed by any of {', '.join(STEPS)}"
        )


def _pools_itself(folder: Path, module: Module) -> bool:
    """Return whether a module is a CLIP model; CLIP does not need separate pooling."""
    config = folder / module.subfolder / CONFIG
    is_model = module.kind in ("Transformer", "CLIPModel") and config.is_file()
    return is_model and str(read_json(config).get("model_type")).startswith("clip")


def is_pylate(folder: Path) -> bool:
    """Return whether PyLate saved the folder: a multi-vector model (ColBERT) without a mask."""
    path = folder / PROMPTS
    return path.is_file() and read_json(path).get("model_type") == "ColBERT"


def is_cross_encoder(folder: Path) -> bool:
    """Return whether sentence-transformers' CrossEncoder saved the folder."""
    path = folder / PROMPTS
    return path.is_file() and read_json(path).get("model_type") == "CrossEncoder"

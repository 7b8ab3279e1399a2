"""Which modules of sentence-transformers a text goes through: modules.json, and routes in it."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from qkv.models.files.read import CONFIG, MODULES, PROMPTS, ROUTER, ModelError, read_json

STEPS = ("Dense", "LayerNorm", "Normalize", "Dropout")  # behind the pooling
READ = ("Transformer", "CLIPModel", "StaticEmbedding", "Pooling", *STEPS)
_PACKAGE = "sentence_transformers."
_ROUTER = ("Router", "Asym")  # by today's name and the old one
_TEXT = "text"  # what every input is to a router here


@dataclass(frozen=True)
class Module:
    """One of the modules that a text goes through.

    Attributes:
        kind: the name of its class.
        place: the folder of its files inside the model's folder.
    """

    kind: str
    place: str


@dataclass(frozen=True)
class Routing:
    """The ways that a text may take, by name; one without a name where there is no choice.

    Attributes:
        ways: the modules of each, in order.
        default: the way of a text that has no task, None where there is none.
        chosen: by task and kind of input, None for any, the way that is taken.
        files: those that said so, by their place in the model's folder.
    """

    ways: Mapping[str, tuple[Module, ...]]
    default: str | None = ""
    chosen: Mapping[tuple[Any, Any], str] = field(default_factory=dict)
    files: tuple[str, ...] = ()

    @property
    def first(self) -> str:
        """The way that stands for the model where nobody names one."""
        return next(iter(self.ways)) if self.default is None else self.default

    @property
    def is_choice(self) -> bool:
        """Whether there is a router, be it of one way."""
        return "" not in self.ways

    def way(self, task: str | None) -> str | None:
        """The name of the way of a text with this task, None where there is none.

        As in sentence-transformers: what is chosen for task and text, for the task, for text, for
        anything; then a way that is called as the task, or "text"; without a task the default.
        """
        for key in ((task, _TEXT), (task, None), (None, _TEXT), (None, None)):
            if key in self.chosen:
                return self.chosen[key]
        named = next((name for name in (task, _TEXT) if name in self.ways), None)
        return self.default if named is None and task is None else named


def read_routing(folder: Path) -> Routing:
    """Which modules a model has, by modules.json; none, in one way, where there is no such file.

    Raises:
        ModelError: the file is broken, or names modules that are not read, or in another order.
    """
    path = folder / MODULES
    if not path.is_file():
        return Routing({"": ()})
    listed = read_json(path, list)
    if not listed or not all(isinstance(module, dict) for module in listed):
        raise ModelError(f"{path}: it must be a list of modules")
    modules = [_module(path, one.get("type"), one.get("path", "")) for one in listed]
    routing = _routed(folder, modules)
    for way in routing.ways.values():
        _check_order(path, way)
    return routing


def _module(path: Path, kind: Any, place: Any) -> Module:
    """One of the modules that a file names."""
    name = str(kind).rpartition(".")[2]
    if not str(kind).startswith(_PACKAGE) or name not in (*READ, *_ROUTER):
        raise ModelError(
            f"{path}: qkv does not read the module {kind!s:.80}: of sentence-transformers it knows "
            f"{', '.join(READ)} and Router"
        )
    return Module(name, _inside(path, place))


def _inside(path: Path, place: Any) -> str:
    """A folder inside the one that a file is in."""
    parts = PurePosixPath(place).parts if isinstance(place, str) else ("..",)
    if ".." in parts or str(place).startswith("/") or "\\" in str(place) or ":" in str(place):
        raise ModelError(f"{path}: the path {place!r:.80} leads out of the model's folder")
    return str(place)


def _routed(folder: Path, modules: list[Module]) -> Routing:
    """The ways through modules, of which one may be a router, whose own then stand in its place."""
    numbers = [number for number, one in enumerate(modules) if one.kind in _ROUTER]
    if not numbers:
        return Routing({"": tuple(modules)}, files=(MODULES,))
    if len(numbers) > 1:
        raise ModelError(f"{folder / MODULES}: it has {len(numbers)} routers: qkv knows one")
    number, home = numbers[0], modules[numbers[0]].place
    file = next((name for name in (ROUTER, CONFIG) if (folder / home / name).is_file()), ROUTER)
    path = folder / home / file
    values = read_json(path)
    kinds, ways, said = (values.get(name) for name in ("types", "structure", "parameters"))
    fine = isinstance(kinds, dict) and isinstance(ways, dict) and ways and "" not in ways
    if not fine or not all(
        isinstance(way, list) and way and all(one in kinds for one in way) for way in ways.values()
    ):
        raise ModelError(f"{path}: it needs structure, ways of modules, and types, one for each")
    own = {
        name: tuple(
            _module(path, kinds[one], str(PurePosixPath(home, _inside(path, one)))) for one in way
        )
        for name, way in ways.items()
    }
    for module in (module for way in own.values() for module in way):
        if module.kind in _ROUTER:
            raise ModelError(f"{path}: it has a router in a router: qkv knows one")
    before, after = tuple(modules[:number]), tuple(modules[number + 1 :])
    whole = {name: (*before, *way, *after) for name, way in own.items()}
    place = str(PurePosixPath(home, file))
    return Routing(whole, *_choice(path, said or {}, whole), files=(MODULES, place))


def _choice(
    path: Path, said: Any, ways: Mapping[str, Any]
) -> tuple[str | None, dict[tuple[Any, Any], str]]:
    """The default way, and what is chosen for tasks and kinds of input."""
    said = said if isinstance(said, dict) else {}
    default, chosen = said.get("default_route"), said.get("route_mappings") or {}
    if default is None and said.get("allow_empty_key", True):
        default = next(iter(ways))
    found: dict[tuple[Any, Any], str] = {}
    for written, way in chosen.items() if isinstance(chosen, dict) else ():
        try:
            task, kind = ast.literal_eval(written)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            raise ModelError(
                f"{path}: route_mappings has {written!r:.80}: it must be a task and a kind of input"
            ) from None
        if isinstance(kind, str | None) and isinstance(task, str | None):
            found[task, kind] = way  # others are of images, sounds or several together
    for way in (*found.values(), *(() if default is None else (default,))):
        if not isinstance(way, str) or way not in ways:
            raise ModelError(f"{path}: there is no route {way!r:.80}: it has {', '.join(ways)}")
    return default, found


def _check_order(path: Path, modules: tuple[Module, ...]) -> None:
    """An error where modules follow each other in a way that is not computed."""
    kinds = [module.kind for module in modules]
    if kinds == ["Transformer"] and is_cross_encoder(path.parent):
        return
    own = "Pooling" not in kinds and _pools_itself(path.parent, modules[0])
    whole = own or kinds[0] == "StaticEmbedding"
    first = 1 if whole else 2
    fine = whole or kinds[:2] == ["Transformer", "Pooling"]
    if not fine or set(kinds[first:]) - {*STEPS}:
        raise ModelError(
            f"{path}: its modules are {', '.join(kinds)}: qkv knows Transformer and Pooling, or "
            f"StaticEmbedding, and then any of {', '.join(STEPS)}"
        )


def _pools_itself(folder: Path, module: Module) -> bool:
    """Whether it is a CLIP, whose own head makes a vector of a text, by its name of old or not."""
    config = folder / module.place / CONFIG
    is_model = module.kind in ("Transformer", "CLIPModel") and config.is_file()
    return is_model and str(read_json(config).get("model_type")).startswith("clip")


def is_cross_encoder(folder: Path) -> bool:
    """Whether it was saved by sentence-transformers' CrossEncoder, whose model has its own head."""
    path = folder / PROMPTS
    return path.is_file() and read_json(path).get("model_type") == "CrossEncoder"

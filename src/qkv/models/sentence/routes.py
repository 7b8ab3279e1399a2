"""Models whose texts take one of several routes, by what they are for."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from qkv.models.core import Core


def routes(model: Core) -> Mapping[str, Core]:
    """Return the models of all routes by name; empty for a model without routes."""
    if not model._routing.is_choice:
        return MappingProxyType({})
    own = {model._route: model}
    return MappingProxyType({name: (own | model._others)[name] for name in model._routing.ways})


def model_for(model: Core, task: str | None, call: str) -> Core:
    """Return the model of the route that a text with this task takes.

    Raises:
        TypeError: the task is not a string.
        ValueError: no route is for this task.
    """
    if task is not None and not isinstance(task, str):
        raise TypeError(f"{call}: task is {type(task).__name__}: give a string, or None")
    routing = model._routing
    if not routing.is_choice:
        return model
    route = routing.way(task)
    if route is None:
        tasks = {name for name, _ in routing.chosen if name is not None}
        known = ", ".join(dict.fromkeys([*routing.ways, *sorted(tasks)]))
        problem = f"no task is given, and {model.name} has no default route"
        if task is not None:
            problem = f"there is no route for the task {task!r:.80} in {model.name}"
        raise ValueError(
            f"{call}: {problem}: give task as one of {known}, or call encode_query or "
            "encode_document"
        )
    return routes(model)[route]

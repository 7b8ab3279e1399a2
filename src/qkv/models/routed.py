"""A model whose texts take one of several ways, by what they are for."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Self

from qkv.models.base import ModelBase
from qkv.models.files.modules import Routing


class RoutedModel(ModelBase):
    """A model of its own, or that of one route, which then knows the models of the others."""

    _routing: Routing | None = None
    _route = ""  # its own
    _others: Mapping[str, Self]

    def __repr__(self) -> str:
        about = super().__repr__()
        return f"{about[:-1]}, routes {', '.join(self.routes)}>" if self.routes else about

    @property
    def routes(self) -> Mapping[str, Self]:
        """The models of its routes by name, where its files have a `Router`; else none; read-only.

        All but `encode`, `encode_query` and `encode_document`, which choose, is of the default
        route, of which the model itself is one: of another, ask its model, as in
        `model.routes["query"].trace(text)`.

        >>> import qkv
        >>> dict(qkv.load("random").routes)
        {}
        """
        names = () if self._routing is None else self._routing.ways
        return MappingProxyType({name: self._of(name) for name in names})

    def _join(self, routing: Routing, models: Mapping[str, Self]) -> Self:
        """The same model as the one of the default route, with the models of all by their names."""
        self._routing, self._route = routing, routing.first
        self._others = {name: one for name, one in models.items() if name != self._route}
        return self

    def _of(self, route: str) -> Self:
        """The model of a route."""
        return self if route == self._route else self._others[route]

    def _ways(self) -> list[ModelBase]:
        return [self, *(self._others.values() if self._routing is not None else ())]

    def _by_task(self, task: str | None, call: str) -> Self:
        """The model of the route that a text with this task takes.

        Raises:
            TypeError: the task is not a string.
            ValueError: there is no route for it.
        """
        if task is not None and not isinstance(task, str):
            raise TypeError(f"{call}: task is {type(task).__name__}: give a string, or None")
        if self._routing is None:
            return self
        route = self._routing.way(task)
        if route is None:
            tasks = {one for one, _ in self._routing.chosen if one is not None}
            known = ", ".join(dict.fromkeys([*self._routing.ways, *sorted(tasks)]))
            said = f"no task is given, and {self.name} has no default route"
            if task is not None:
                said = f"there is no route for the task {task!r:.80} in {self.name}"
            raise ValueError(
                f"{call}: {said}: give task as one of {known}, or call encode_query or "
                "encode_document"
            )
        return self._of(route)

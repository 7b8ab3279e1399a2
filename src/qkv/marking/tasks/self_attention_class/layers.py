"""Layers of somebody's class: built, called with what they take, and their weights read."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from qkv.marking.functions import as_tensors, is_number, options_of
from qkv.marking.tasks.attention.learner import OPTIONS
from qkv.marking.tasks.self_attention_class.steps import Call
from qkv.marking.tasks.self_attention_class.weights import Projections, projections

_MASKS = {option: OPTIONS[option] for option in ("mask", "causal")}


class Layers:
    """One layer for each pair of sizes, built when it is first asked for.

    Args:
        built: the class.
        seed: what the weights are drawn from; None for what the class has of itself.

    Raises:
        TypeError: it cannot be built with an embed_dim and a number of heads.
    """

    def __init__(self, built: Callable[..., Any], seed: int | None = None) -> None:
        self.built = built
        known = {"causal": OPTIONS["causal"], "seed": ("seed",)}
        self.when_built, needed = options_of(built, ("embed_dim", "num_heads"), known)
        self.seed = 0 if seed is None and "seed" in needed else seed
        self.layers: dict[tuple[int, int, bool], Any] = {}
        self.batched = False  # it takes x (1, T, D) only
        self.adds_mask = False  # 0 and -inf, where others take True and False

    def of(self, case: Call) -> Any:
        """The layer of a case."""
        causal = case.causal and "causal" in self.when_built
        sizes = *case.built_with, causal
        if sizes not in self.layers:
            chosen = {"causal": causal} | ({} if self.seed is None else {"seed": self.seed})
            names = self.when_built
            options = {names[option]: it for option, it in chosen.items() if option in names}
            layer = self.built(*case.built_with, **options)
            if hasattr(layer, "state_dict"):  # torch: without dropout, and as exact as arrays
                layer = layer.eval().double()
            self.layers[sizes] = layer
        return self.layers[sizes]

    def drawn(self, case: Call, seed: int) -> Any:
        """What a layer whose weights are drawn from this seed returns for the words of a case."""
        others = Layers(self.built, seed)
        others.batched = self.batched
        return others(case)

    def number_as_mask(self, case: Call) -> bool:
        """Is a number the mask where none is given? Then it is one to add."""
        parameters = inspect.signature(_called(self.of(case))).parameters
        name = self.takes(case)[0].get("mask")
        return name is not None and is_number(parameters[name].default)

    def takes(self, case: Call) -> tuple[dict[str, str], frozenset[str]]:
        """Which masks the call takes, under what name, and which must be given.

        Raises:
            TypeError: it must be given something else.
        """
        return options_of(_called(self.of(case)), ("x",), _MASKS)

    def read(self, case: Call) -> Callable[[bool], Projections | None]:
        """Reads the weights of a case's layer as (in, out), or flipped as (out, in)."""
        return lambda flipped: projections(self.of(case), *case.built_with, flipped)

    def weighed(self, case: Call, flipped: bool) -> Call | None:
        """A case with the weights of its layer; None where they cannot be read so.

        Where there is no W_O it changes nothing.
        """
        read = self.read(case)(flipped)
        if read is None:
            return None
        width = read.matrices["v"].shape[1]
        return replace(case, matrices={"o": np.eye(width), **read.matrices}, biases=read.biases)

    def __call__(self, case: Call) -> Any:
        """What the layer of a case returns for its words."""
        layer = self.of(case)
        alone = self.batched and case.x.ndim == 2
        given = {name: a[None] if alone else a for name, a in self._arrays(case).items()}
        x = given.pop("x")
        options, _ = self.takes(case)
        if "causal" in options:
            given[options["causal"]] = case.causal
        if hasattr(layer, "state_dict"):
            x, given = as_tensors(x), as_tensors(given)
        returned = _called(layer)(x, **given)
        if not alone:
            return returned
        if isinstance(returned, tuple):
            return tuple(one if one is None else one[0] for one in returned)
        return returned[0]

    def _arrays(self, case: Call) -> dict[str, Any]:
        """The words, and their mask by the name that it has there."""
        options, needed = self.takes(case)
        mask = case.mask
        if mask is None and "mask" in needed:
            mask = np.ones((case.x.shape[-2],) * 2, dtype=bool)
        if mask is None:
            return {"x": case.x}
        shown = np.where(mask, 0.0, -np.inf) if self.adds_mask else mask
        return {"x": case.x, options["mask"]: shown}


def _called(layer: Any) -> Callable[..., Any]:
    """What is called of a layer; the parameters of a module of torch are those of its forward."""
    if hasattr(layer, "state_dict") or (not callable(layer) and hasattr(layer, "forward")):
        forward: Callable[..., Any] = layer.forward
        return forward
    called: Callable[..., Any] = layer
    return called

"""A model in training: one array holds all parameters, and another array all gradients."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from qkv.arrays import Array, Arrays
from qkv.models.model import Model
from qkv.models.network.batch import PackedIds
from qkv.models.network.design import Design

_OUTPUT, _TABLE = "head.out_proj.weight", "embed.weight"
_TRIED = 256  # the number of tokens with which `is_finite` runs the model


class Network:
    """A writable copy of a model's parameters, and layers that compute with this copy.

    Attributes:
        flat: (n,), all parameters, with the matrices first.
        gradient: (n,), the gradients in the same order.
        matrices: the number of entries of `flat` that belong to matrices.
        parameters: views of `flat`, keyed by parameter name.
        gradients: views of `gradient`, keyed by parameter name.
        slices: the slices of `flat`, keyed by parameter name.
        transformer: the transformer and its head, which use `parameters`.

    >>> from qkv.models.untrained import fresh_model
    >>> config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 50}
    >>> network = Network(fresh_model(config | {"n_embd": 16, "n_layer": 2, "n_head": 4}))
    >>> network.parameters["embed.weight"][3] = 1  # in place
    >>> network.model().parameters["embed.weight"][3].sum()
    np.float32(16.0)
    """

    def __init__(self, model: Model, *, dtype: Any = None) -> None:
        design = model.design
        if type(design) is not Design:
            raise TypeError(f"Network: {model.name} is not a single stack of blocks")
        self.source = model
        self.design = design
        arrays = model.parameters
        kind = np.dtype(dtype or arrays[_TABLE].dtype)
        if kind not in (np.float32, np.float64):
            raise TypeError(f"Network: {model.name} is {kind}: load it as float32 or float64")
        order = sorted(arrays, key=lambda name: arrays[name].ndim < 2)  # a stable sort
        self.flat = np.empty(sum(array.size for array in arrays.values()), kind)
        self.gradient = np.zeros_like(self.flat)
        self.matrices = sum(array.size for array in arrays.values() if array.ndim >= 2)
        self.parameters: dict[str, Array] = {}
        self.gradients: dict[str, Array] = {}
        self.slices: dict[str, slice] = {}
        self.weight = 1.0
        end = 0
        for name in order:
            array = arrays[name]
            begin, end = end, end + array.size
            self.slices[name] = slice(begin, end)
            for views, whole in ((self.parameters, self.flat), (self.gradients, self.gradient)):
                views[name] = whole[begin:end].reshape(array.shape)
            self.parameters[name][...] = array
        self.transformer = design.build(self.parameters)

    def __repr__(self) -> str:
        return f"<Network of {self.source!r}, {self.flat.size} numbers>"

    def add(self, gradients: Arrays) -> None:
        """Add gradients, keyed by parameter name, to `gradient`.

        If the output projection uses the token table as its weights, the gradient of the projection
        is added to the gradient of the token table.
        """
        weight = self.weight
        for name, gradient in gradients.items():
            if name == _OUTPUT and name not in self.gradients:
                name, gradient = _TABLE, gradient.T
            term = gradient if weight == 1 else gradient * gradient.dtype.type(weight)
            self.gradients[name] += term

    @contextmanager
    def weighted(self, weight: float) -> Iterator[None]:
        """Multiply each gradient that is added inside the `with` block by a weight."""
        before, self.weight = self.weight, self.weight * weight
        try:
            yield
        finally:
            self.weight = before

    def is_finite(self) -> bool:
        """Return whether all parameters, and the outputs for some tokens, are finite."""
        if not np.isfinite(self.flat).all():
            return False
        vocabulary, most = self.design.vocabulary, self.transformer.embedding.max_positions
        ids = np.unique(np.linspace(0, vocabulary - 1, _TRIED).astype(np.int64))
        length = min(len(ids), most or len(ids))
        cu_lengths = np.append(np.arange(0, len(ids), length), len(ids))
        with np.errstate(all="ignore"):
            batch = PackedIds(ids, cu_lengths, np.arange(len(ids)) % length)
            rows, _ = self.transformer.run(batch)  # (n, D)
            head = self.transformer.head
            if head is not None:
                rows = head(rows, cu_lengths)
        return bool(np.isfinite(rows).all())

    def model(self, dtype: Any = None) -> Model:
        """Return a model with a copy of the current parameters, converted to `dtype`."""
        return self.source.with_parameters(self.parameters, dtype)

"""What layers share: parameters, and the doors to what they compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from numpy.typing import ArrayLike

from qkv.arrays import Array
from qkv.layers.gradient import need_single
from qkv.layers.parameters import quiet, vectors_of
from qkv.trace import Recorder


class Layer:
    """A layer from vectors to vectors of the same size.

    Attributes:
        parameters: its arrays by their names.
        dim: D, the size of the vectors.
        hooks: the names that it gives a `Recorder`.
        run: the forward pass, unchecked; with `save` also what `backward` needs.
    """

    parameters: dict[str, Array]
    dim: int
    hooks: Sequence[str] = ()
    run: Callable[..., tuple[Array, Any]]
    _reads_texts: ClassVar[bool] = True  # (..., T, D), not any (..., D)

    @quiet
    def __call__(self, x: ArrayLike, *, record: Recorder | None = None) -> Array:
        """From `x` (..., D) to the same shape; `record` collects what is computed on the way."""
        return self.run(self._checked(x), record=record)[0]

    def forward(self, x: ArrayLike) -> Array:
        """The same as calling the layer."""
        return self(x)

    @quiet
    def training_forward(self, x: ArrayLike) -> tuple[Array, Any]:
        """What the layer gives, and what `backward` needs of it."""
        array = self._checked(x)
        need_single(array, self.parameters, call=type(self).__name__)
        return self.run(array, save=True)

    def _checked(self, x: ArrayLike) -> Array:
        """`x` as an array that the layer takes."""
        call = type(self).__name__
        return vectors_of(x, self.dim, call=call, of_texts=self._reads_texts)


class Feed(Layer):
    """A layer that stands between two residual states: an MLP, or what takes its place."""

    @quiet
    def __call__(
        self, x: ArrayLike, *, residual: Array | None = None, record: Recorder | None = None
    ) -> Array:
        """From `x` (..., T, D) to the same shape.

        Args:
            x: word vectors.
            residual: (..., T, D), added to the result before that is rounded to half precision; if
                it is float32, so is the result.
            record: collects what is computed on the way.
        """
        return self.run(self._checked(x), residual=residual, record=record)[0]

"""Token ids or images to the vectors that the first layer takes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from qkv.arrays import Array, compute_type
from qkv.layers import LayerNorm, RMSNorm
from qkv.layers.layer import for_parameters, part_back, project_back
from qkv.layers.norm import NormSaved
from qkv.ops.layout import narrowed
from qkv.ops.linear import linear, linear_grad
from qkv.trace import Recorder
from qkv.trace.recorder import of_rows, unkept

_PROJECTION = "embed_proj"
_SHARPNESS = -0.75  # of the cubic, as torch has it


class Patches(NamedTuple):
    """Images, cut up."""

    pixels: Array  # (B, N, C * h * w)
    grid: tuple[int, int]  # how many there are below each other, and side by side


class EmbeddingSaved(NamedTuple):
    """What the backward pass of an embedding needs."""

    rows: Any  # what its vectors were made of: ids (...), or `Patches`
    places: Array
    norm: NormSaved | None = None
    segments: Array | None = None
    narrow: Array | None = None  # (..., E), what was projected


class Embedding:
    """Token ids and their places to vectors.

    Args:
        table: (V, D), a row for each token.
        positions: (rows, D), a row for each place in a text.
        token_types: (segments, D), of which row 0 is used where nothing else is said.
        norm: over their sum.
        projection: "weight" (E, D) and "bias" (D,), if there is one, behind that norm, where the
            rows of the tables are of another size E.
        projects_first: whether it is of the token table's rows alone, before the others are added,
            which are of size D.
        scale: what the rows of the token table are multiplied by.
        first_position: the row of place 0.
        padding: the id of the padding token, where positions count the other tokens alone.
        counted: whether positions count the tokens alone that a mask shows.
    """

    def __init__(
        self,
        table: Array,
        *,
        positions: Array | None = None,
        token_types: Array | None = None,
        norm: LayerNorm | RMSNorm | None = None,
        projection: Mapping[str, Array] | None = None,
        projects_first: bool = False,
        scale: float = 1.0,
        first_position: int = 0,
        padding: int | None = None,
        counted: bool = False,
    ) -> None:
        self.table, self.positions, self.token_types = table, positions, token_types
        self.norm, self.scale, self.first_position = norm, scale, first_position
        self.padding, self.counted = padding, counted
        given = (projection or {}).items()
        self.projects_first = projects_first
        self.projection = {f"{_PROJECTION}.{name}": array for name, array in given}

    @property
    def dim(self) -> int:
        """D, the size of the vectors that the first layer takes."""
        last = self.projection.get(f"{_PROJECTION}.weight", self.table)
        return int(last.shape[1])

    @property
    def hooks(self) -> list[str]:
        """The names that it may give a `Recorder`."""
        kinds = ["hook_token_type_embed"] * (self.token_types is not None)
        where = ["hook_pos_embed"] * (self.positions is not None)
        return ["hook_embed", *kinds, *where, "hook_full_embed"]

    def __call__(
        self,
        ids: Array,
        places: Array,
        cu_lengths: Array | None = None,
        record: Recorder | None = None,
        segments: Array | None = None,
    ) -> tuple[Array, EmbeddingSaved]:
        """Vectors (..., D) of ids (...) at these places, and what `backward` needs.

        They are float32 where the table is in half precision. `segments` (...) are rows of
        `token_types`, which nothing is made of where there are none.
        """
        keep = of_rows(record, cu_lengths) or unkept
        x, rows = self._rows(ids)
        x = x.astype(compute_type(x.dtype), copy=False)
        if self.scale != 1:
            x *= np.array(self.scale, self.table.dtype).astype(x.dtype)  # rounded as in training
        x = keep("hook_embed", x)
        narrow = None
        if self.projects_first:
            narrow, x = x, self._projected(x)
        if self.token_types is not None:
            chosen = self.token_types[0 if segments is None else segments]
            kinds = np.broadcast_to(chosen, x.shape)
            x = x + keep("hook_token_type_embed", kinds)
        if self.positions is not None:
            where = self._positions_of(rows)[places + self.first_position]
            x = x + keep("hook_pos_embed", where)
        norm = None
        if self.norm is not None:
            x, norm = self.norm.run(x)
        if self.projection and not self.projects_first:
            narrow, x = x, self._projected(x)
        x = keep("hook_full_embed", x)
        return x, EmbeddingSaved(rows, places, norm, segments, narrow)

    def backward(
        self,
        grad: Array,
        saved: EmbeddingSaved,
        *,
        record: Recorder | None = None,
        cu_lengths: Array | None = None,
    ) -> dict[str, Array]:
        """The backward pass: from the gradient (..., D) of the vectors to those of the tables.

        They are named as a design names them: "embed.weight" (V, D), "pos_embed.weight" and so on.
        `record` collects the gradients of what a trace has, of packed rows as (B, T, D); with a
        `GradientRecorder` there are no others.
        """
        found = for_parameters(record)
        keep = of_rows(record, cu_lengths) or unkept
        grad = keep("hook_full_embed", grad)
        if saved.narrow is not None and not self.projects_first:
            grad = project_back(saved.narrow, self.projection, _PROJECTION, grad, found)
        if self.norm is not None:
            inner = record and record.under("embed_norm.")
            grad = part_back(self.norm, grad, saved.norm, "embed_norm", found, inner).x
        for hook in self.hooks[1:-1]:  # what is added up
            keep(hook, grad)
        rows = grad.reshape(-1, grad.shape[-1])
        if self.positions is not None and found is not None:
            where = np.broadcast_to(saved.places, grad.shape[:-1]) + self.first_position
            shape = self._positions_of(saved.rows).shape
            found["pos_embed.weight"] = rows_back(rows, where.ravel(), shape)
        if self.token_types is not None and found is not None:
            kinds = np.zeros_like(self.token_types)
            if saved.segments is None:
                kinds[0] = rows.sum(0)
            else:
                kinds = rows_back(rows, saved.segments.ravel(), kinds.shape)
            found["token_type_embed.weight"] = kinds
        if saved.narrow is not None and self.projects_first:
            grad = project_back(saved.narrow, self.projection, _PROJECTION, grad, found)
        grad = keep("hook_embed", grad)
        if found is None:
            return {}
        return found | self._rows_back(grad.reshape(-1, grad.shape[-1]), saved.rows)

    def _projected(self, x: Array) -> Array:
        """Vectors (..., E) as (..., D)."""
        weight = self.projection[f"{_PROJECTION}.weight"]
        bias = self.projection.get(f"{_PROJECTION}.bias")
        return linear(narrowed(x, weight), weight, bias, wide=True)

    def _rows(self, ids: Array) -> tuple[Array, Any]:
        """The row (..., D) of each token or patch, and what `_rows_back` needs."""
        return self.table[ids], ids

    def _positions_of(self, ids: Any) -> Array:
        """The table of positions that counts for these tokens or patches."""
        assert self.positions is not None
        return self.positions

    def _rows_back(self, grad: Array, ids: Any) -> dict[str, Array]:
        """From the gradient (n, D) of those rows to that of what they were made of."""
        table = rows_back(grad, ids.ravel(), self.table.shape)
        if self.scale != 1:
            table *= table.dtype.type(self.scale)
        return {"embed.weight": table}

    def places(self, ids: Array, mask: Array, shown: Array | None = None) -> Array:
        """Where each token of ids (B, T) that is computed, by a mask (B, T), stands, (total,).

        That is its column, or for some families how many tokens before it are not padding, or are
        among those that are `shown`, (B, T); without it all that are computed.
        """
        if self.counted:
            real = mask if shown is None else shown
            return np.where(real, np.cumsum(real, axis=1) - 1, -1)[mask]
        if self.padding is None:
            return np.nonzero(mask)[1]
        real = ids != self.padding
        return np.where(real, np.cumsum(real, axis=1) - 1, -1)[mask]

    @property
    def first_id(self) -> int:
        """What `position_ids` of transformers call the first place: those of RoBERTa are rows."""
        return 0 if self.padding is None else self.first_position

    @property
    def max_positions(self) -> int | None:
        """How many places there are; None for any number."""
        return None if self.positions is None else len(self.positions) - self.first_position


class PatchEmbedding(Embedding):
    """Images to vectors: those of their patches behind that of a first token, each with its place.

    Args:
        first: D numbers, the first token.
        weight: (D, C, h, w), from a patch to its vector.
        bias: (D,), or None for none.
        positions: (N + 1, D), for the first token and each patch, row by row; as `first`, it may
            have more dimensions of 1 in front, and gradients have the same.
        norm: over their sum.
        grid: where images may be of any size, the grid of patches that `positions` are for:
            for another grid they are interpolated.
    """

    def __init__(
        self,
        first: Array,
        weight: Array,
        bias: Array | None,
        *,
        positions: Array,
        norm: LayerNorm | RMSNorm | None = None,
        grid: tuple[int, int] | None = None,
    ) -> None:
        dim = len(weight)
        super().__init__(first.reshape(1, dim), positions=positions.reshape(-1, dim), norm=norm)
        self.shapes = {"embed.weight": first.shape, "pos_embed.weight": positions.shape}
        self.grid = grid
        self.patch = weight.shape[-2:]
        self.weight, self.bias = weight.reshape(len(weight), -1).T, bias

    def backward(self, grad: Array, saved: EmbeddingSaved, **recorded: Any) -> dict[str, Array]:
        """The backward pass, to the first token, the weight of the patches and the places."""
        found = super().backward(grad, saved, **recorded)
        if not found:
            return found
        positions, grid = found["pos_embed.weight"], saved.rows.grid
        if self.grid is not None and grid != self.grid:
            positions = for_grid_back(positions, self.grid, grid)
        found["pos_embed.weight"] = positions
        return found | {name: found[name].reshape(shape) for name, shape in self.shapes.items()}

    def _positions_of(self, ids: Any) -> Array:
        positions = super()._positions_of(ids)
        if self.grid is None or ids.grid == self.grid:
            return positions
        return for_grid(positions, self.grid, ids.grid)

    def _rows(self, images: Array) -> tuple[Array, Patches]:
        """The rows (B * (N + 1), D) of images (B, C, H, W), and their patches."""
        patches = unfolded(images, self.patch)  # (B, N, C * h * w)
        patches = patches.astype(compute_type(self.table.dtype))
        rows = linear(patches, self.weight, self.bias)
        first = np.broadcast_to(self.table, (len(rows), *self.table.shape))
        x = np.concatenate([first.astype(rows.dtype), rows], axis=1)  # (B, N + 1, D)
        grid = images.shape[-2] // self.patch[0], images.shape[-1] // self.patch[1]
        return x.reshape(-1, x.shape[-1]), Patches(patches, grid)

    def _rows_back(self, grad: Array, ids: Patches) -> dict[str, Array]:
        patches = ids.pixels
        rows = grad.reshape(len(patches), -1, grad.shape[-1])  # (B, N + 1, D)
        has_bias = self.bias is not None
        _, weight, bias = linear_grad(patches, self.weight, rows[:, 1:], bias=has_bias)
        channels = patches.shape[-1] // math.prod(self.patch)
        return {
            "embed.weight": rows[:, 0].sum(0),
            "patch_embed.weight": weight.T.reshape(-1, channels, *self.patch),
            **({} if bias is None else {"patch_embed.bias": bias}),
        }


def unfolded(images: Array, patch: tuple[int, ...]) -> Array:
    """Images (B, C, H, W) as their patches, (B, N, C * h * w), row by row.

    >>> unfolded(np.arange(16).reshape(1, 1, 4, 4), (2, 2)).tolist()
    [[[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]]
    """
    high, wide = patch
    batch, channels, height, width = images.shape
    rows, columns = height // high, width // wide
    cut = images[..., : rows * high, : columns * wide]
    split = cut.reshape(batch, channels, rows, high, columns, wide)
    moved = np.moveaxis(split, (2, 4), (1, 2))  # (B, rows, columns, C, h, w)
    return moved.reshape(batch, rows * columns, channels * high * wide)


def rows_back(grad: Array, rows: Array, shape: tuple[int, ...]) -> Array:
    """From the gradient (n, D) of chosen rows of a table to that of the table.

    A row that was chosen several times gets their sum, in their order.
    """
    found = np.zeros(shape, grad.dtype)
    order = np.argsort(rows, kind="stable")
    chosen, starts = np.unique(rows[order], return_index=True)
    if chosen.size:
        found[chosen] = np.add.reduceat(grad[order], starts)
    return found


def resampling(given: int, wanted: int) -> Array:
    """The matrix (wanted, given) that resamples so many equally spaced values by cubics.

    Value i of the result lies at `(i + 1/2) * given / wanted - 1/2` and is made of the four around
    it; beyond the ends stand the first and the last one again. It is computed in float64.

    Source:
        Keys 1981, "Cubic Convolution Interpolation for Digital Image Processing", equation 4 with
        other coefficients: a = -0.75.

    >>> resampling(2, 3).round(2).tolist()
    [[1.09, -0.09], [0.5, 0.5], [-0.09, 1.09]]
    """
    at = (np.arange(wanted) + 0.5) * given / wanted - 0.5
    first = np.floor(at).astype(np.int64)
    found = np.zeros((wanted, given))
    for place in (first - 1, first, first + 1, first + 2):
        away = np.abs(at - place)
        near = ((_SHARPNESS + 2) * away - (_SHARPNESS + 3)) * away * away + 1
        far = _SHARPNESS * (((away - 5) * away + 8) * away - 4)
        weight = np.where(away <= 1, near, np.where(away < 2, far, 0.0))
        np.add.at(found, (np.arange(wanted), np.clip(place, 0, given - 1)), weight)
    return found


def for_grid(table: Array, grid: tuple[int, int], wanted: tuple[int, int]) -> Array:
    """The rows (1 + h * w, D) of a grid of h x w patches, from those (1 + H * W, D) of H x W.

    Row 0 belongs to the token before the patches and stays as it is. Half precision gives float32.
    """
    rows = _resampled(
        table[1:], grid, [resampling(*pair) for pair in zip(grid, wanted, strict=True)]
    )
    first = table[:1].astype(rows.dtype, copy=False)
    joined: Array = np.concatenate([first, rows])
    return joined


def for_grid_back(grad: Array, grid: tuple[int, int], wanted: tuple[int, int]) -> Array:
    """The backward pass: from the gradient (1 + h * w, D) of those rows to that of the table."""
    back = [resampling(*pair).T for pair in zip(grid, wanted, strict=True)]
    joined: Array = np.concatenate([grad[:1], _resampled(grad[1:], wanted, back)])
    return joined


def _resampled(rows: Array, grid: tuple[int, int], by: list[Array]) -> Array:
    """Rows (H * W, D) of a grid, resampled by a matrix (h, H) and one (w, W): (h * w, D)."""
    kind = compute_type(rows.dtype)
    down, across = (matrix.astype(kind) for matrix in by)
    cells = rows.astype(kind, copy=False).reshape(*grid, -1)
    found: Array = np.einsum("hH,HWd,wW->hwd", down, cells, across, optimize=True)
    return found.reshape(-1, rows.shape[-1])

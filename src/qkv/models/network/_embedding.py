"""Embeddings of token ids or images: the input of the first layer."""

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from qkv.arrays import Array, Arrays, compute_type
from qkv.layers.attention import Norm
from qkv.layers.base import ByName, for_parameters, part_back
from qkv.layers.norm import NormSaved
from qkv.ops.linear import linear, linear_grad, project_back, project_wide
from qkv.trace import Recorder
from qkv.trace.recorder import texts_and_positions, unkept

_PROJECTION = "embed_proj"
_SHARPNESS = -0.75  # the coefficient a of cubic interpolation; torch uses the same number


class Patches(NamedTuple):
    """Images, cut into patches."""

    pixels: Array  # (B, N, C * h * w), the patches of each image, row by row.
    grid: tuple[int, int]  # The numbers of rows and columns of patches.


class EmbeddingSaved(NamedTuple):
    """Values that an embedding saves in the forward pass for the backward pass."""

    rows: Any  # The input: ids (...), or `Patches`.
    at: Array  # The position of each token.
    norm: NormSaved | None = None
    segments: Array | None = None
    narrow: Array | None = None  # (..., E), the input of the projection


@dataclass(eq=False)
class Embedding:
    """A layer that turns token ids and their positions into vectors.

    Args:
        table: (V, D), one row per token.
        positions: (rows, D), one row per position in a text.
        token_types: (segments, D), one row per segment. If a call does not pass segments, all
            tokens use row 0.
        norm: the norm layer that is applied to the sum of a token's rows.
        projection: the linear layer after the norm, from the size E of the tables' rows to D:
            "embed_proj.weight" (E, D) and an optional "embed_proj.bias" (D,). The dict may
            be empty if E equals D.
        projects_first: whether the projection applies only to the rows of the token table. Rows of
            the other tables have size D and are added after the projection.
        scale: a factor for the rows of the token table.
        first_position: the row of `positions` for position 0.
        padding: the padding token's id if positions skip padding tokens.
        counted: whether positions skip masked tokens.
    """

    table: Array
    positions: Array | None = None
    token_types: Array | None = None
    norm: Norm | None = None
    projection: Arrays = field(default_factory=dict)
    projects_first: bool = False
    scale: float = 1.0
    first_position: int = 0
    padding: int | None = None
    counted: bool = False

    @property
    def dim(self) -> int:
        """D, the size of the input of the first layer."""
        last = self.projection.get(f"{_PROJECTION}.weight", self.table)
        return int(last.shape[1])

    @property
    def hooks(self) -> list[str]:
        """The names of all activations that the embedding records."""
        segments = ["hook_token_type_embed"] * (self.token_types is not None)
        positions = ["hook_pos_embed"] * (self.positions is not None)
        return ["hook_embed", *segments, *positions, "hook_full_embed"]

    @property
    def widths(self) -> dict[str, int]:
        """The size of a vector in each activation before the projection."""
        before = self.hooks[:1] if self.projects_first else self.hooks[:-1]
        return dict.fromkeys(before, int(self.table.shape[1]))

    def __call__(
        self, ids: Array, at: Array, record: Recorder | None = None, segments: Array | None = None
    ) -> tuple[Array, EmbeddingSaved]:
        """Return the vectors (..., D) of ids at positions `at`, and the values for `backward`.

        The vectors are float32 if the table is in half precision. `segments` (...) are row
        indices of the table `token_types`; a model without this table ignores `segments`.
        """
        keep = record or unkept
        x, rows = self._rows(ids)
        x = x.astype(compute_type(x.dtype), copy=False)
        if self.scale != 1:
            # Round the scale to the table's dtype, as in training.
            x *= np.array(self.scale, self.table.dtype).astype(x.dtype)
        x = keep("hook_embed", x)
        narrow = None
        if self.projects_first:
            narrow, x = x, project_wide(x, self.projection, _PROJECTION)
        if self.token_types is not None:
            chosen = self.token_types[0 if segments is None else segments]
            x = x + keep("hook_token_type_embed", np.broadcast_to(chosen, x.shape))
        if self.positions is not None:
            chosen = self._position_table(rows)[at + self.first_position]
            x = x + keep("hook_pos_embed", chosen)
        norm = None
        if self.norm is not None:
            x, norm = self.norm.run(x)
        if self.projection and not self.projects_first:
            narrow, x = x, project_wide(x, self.projection, _PROJECTION)
        x = keep("hook_full_embed", x)
        return x, EmbeddingSaved(rows, at, norm, segments, narrow)

    def backward(
        self, grad: Array, saved: EmbeddingSaved, record: Recorder | None = None
    ) -> ByName:
        """Return the gradients for the tables, given the gradient (..., D) for the vectors.

        The gradients are keyed by the names in a design, such as "embed.weight" (V, D). `record`
        collects the gradients for activations. If `record` is a `GradientRecorder`, this method
        does not compute gradients for tables.
        """
        gradients = for_parameters(record)
        keep = record or unkept
        grad = keep("hook_full_embed", grad)
        if saved.narrow is not None and not self.projects_first:
            grad = project_back(saved.narrow, self.projection, _PROJECTION, grad, gradients)
        if self.norm is not None:
            inner = record and record.under("embed_norm.")
            grad = part_back(self.norm, grad, saved.norm, "embed_norm", gradients, inner).x
        for hook in self.hooks[1:-1]:  # the gradient for each term of the sum
            keep(hook, grad)
        rows = grad.reshape(-1, grad.shape[-1])
        if self.positions is not None and gradients is not None:
            chosen = np.broadcast_to(saved.at, grad.shape[:-1]) + self.first_position
            shape = self._position_table(saved.rows).shape
            gradients["pos_embed.weight"] = rows_back(rows, chosen.ravel(), shape)
        if self.token_types is not None and gradients is not None:
            table = np.zeros_like(self.token_types)
            if saved.segments is None:
                table[0] = rows.sum(0)
            else:
                table = rows_back(rows, saved.segments.ravel(), table.shape)
            gradients["token_type_embed.weight"] = table
        if saved.narrow is not None and self.projects_first:
            grad = project_back(saved.narrow, self.projection, _PROJECTION, grad, gradients)
        grad = keep("hook_embed", grad)
        if gradients is None:
            return {}
        return gradients | self._rows_back(grad.reshape(-1, grad.shape[-1]), saved.rows)

    def _rows(self, ids: Array) -> tuple[Array, Any]:
        """Return the row (..., D) of each token or patch, and the values for `_rows_back`."""
        return self.table[ids], ids

    def _position_table(self, ids: Any) -> Array:
        """Return the table of positions for these tokens or patches."""
        assert self.positions is not None
        return self.positions

    def _rows_back(self, grad: Array, ids: Any) -> ByName:
        """Return the gradients for parameters, given the gradient (n, D) for the rows."""
        table = rows_back(grad, ids.ravel(), self.table.shape)
        if self.scale != 1:
            table *= table.dtype.type(self.scale)
        return {"embed.weight": table}

    def token_positions(self, ids: Array, mask: Array, user_mask: Array | None = None) -> Array:
        """Return the positions (total,) of the tokens in `ids` (B, T) that `mask` (B, T) selects.

        In most families, the position of a token is its column in `ids`. If `padding` is given, the
        position is the number of earlier tokens that are not padding tokens. If `counted` is True,
        the position is the number of earlier tokens where `user_mask` (B, T) is True. By default,
        `user_mask` is `mask`.
        """
        if self.counted:
            real = mask if user_mask is None else user_mask
            return np.where(real, np.cumsum(real, axis=1) - 1, -1)[mask]
        if self.padding is None:
            return np.nonzero(mask)[1]
        real = ids != self.padding
        return np.where(real, np.cumsum(real, axis=1) - 1, -1)[mask]

    def packed_positions(self, ids: Array, cu: Array) -> Array:
        """Return each token's position in its own text, (total,), for packed texts."""
        if self.counted or self.padding is None:
            return texts_and_positions(cu)[1]
        real = ids != self.padding
        counts = np.concatenate([[0], np.cumsum(real)])
        return np.where(real, counts[:-1] - np.repeat(counts[cu[:-1]], np.diff(cu)), -1)

    @property
    def first_id(self) -> int:
        """The first number in transformers' `position_ids`, e.g. 0 for BERT and 2 for RoBERTa."""
        return 0 if self.padding is None else self.first_position

    @property
    def max_positions(self) -> int | None:
        """The maximum number of positions; None for no limit."""
        return None if self.positions is None else len(self.positions) - self.first_position


@dataclass(eq=False, kw_only=True)
class PatchEmbedding(Embedding):
    """A layer that turns an image into vectors: one for the whole image, then one per patch.

    Args:
        table: D numbers, the vector of the first token.
        positions: (N + 1, D), for the first token and each patch, row by row. `positions` and
            `table` may have leading dimensions of 1, e.g. (1, N + 1, D); their gradients have the
            same shape.
        norm: the norm layer that is applied to the sum of vectors and positions.
        weight: (D, C, h, w), the linear layer from a patch to its vector.
        bias: (D,), or None.
        grid: the grid of patches, (rows, columns), that `positions` describes. If an image
            has a different grid, the positions are interpolated. If `grid` is None, the positions
            are never interpolated.
    """

    weight: Array
    bias: Array | None = None
    grid: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        assert self.positions is not None
        dim = len(self.weight)
        self.shapes = {"embed.weight": self.table.shape, "pos_embed.weight": self.positions.shape}
        self.table, self.positions = self.table.reshape(1, dim), self.positions.reshape(-1, dim)
        self.patch = self.weight.shape[-2:]
        self.weight = self.weight.reshape(dim, -1).T

    def backward(
        self, grad: Array, saved: EmbeddingSaved, record: Recorder | None = None
    ) -> ByName:
        """Return the gradients for the first token, the patches' weight and the positions."""
        gradients = super().backward(grad, saved, record)
        if not gradients:
            return gradients
        if self.grid is not None and saved.rows.grid != self.grid:
            positions = gradients["pos_embed.weight"]
            gradients["pos_embed.weight"] = for_grid_back(positions, self.grid, saved.rows.grid)
        return gradients | {
            name: gradients[name].reshape(shape) for name, shape in self.shapes.items()
        }

    def _position_table(self, ids: Any) -> Array:
        positions = super()._position_table(ids)
        if self.grid is None or ids.grid == self.grid:
            return positions
        return for_grid(positions, self.grid, ids.grid)

    def _rows(self, images: Array) -> tuple[Array, Patches]:
        """Return the rows (B * (N + 1), D) of images (B, C, H, W), and their patches."""
        patches = unfold(images, self.patch)  # (B, N, C * h * w)
        patches = patches.astype(compute_type(self.table.dtype))
        rows = linear(patches, self.weight, self.bias)
        first = np.broadcast_to(self.table, (len(rows), *self.table.shape))
        x = np.concatenate([first.astype(rows.dtype), rows], axis=1)  # (B, N + 1, D)
        grid = images.shape[-2] // self.patch[0], images.shape[-1] // self.patch[1]
        return x.reshape(-1, x.shape[-1]), Patches(patches, grid)

    def _rows_back(self, grad: Array, ids: Patches) -> ByName:
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


def unfold(images: Array, patch: tuple[int, ...]) -> Array:
    """Cut images (B, C, H, W) into patches, (B, N, C * h * w), row by row.

    >>> unfold(np.arange(16).reshape(1, 1, 4, 4), (2, 2)).tolist()
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
    """Return the gradient for a table, given the gradient (n, D) for the `n` rows that were read.

    If a row was read several times, its gradients are added.
    """
    table = np.zeros(shape, grad.dtype)
    order = np.argsort(rows, kind="stable")
    chosen, starts = np.unique(rows[order], return_index=True)
    if chosen.size:
        table[chosen] = np.add.reduceat(grad[order], starts)
    return table


def resampling(count: int, wanted: int) -> Array:
    """Return a matrix (wanted, count) for the cubic interpolation of equally spaced values.

    The matrix turns `count` values into `wanted` values, in float64. Value i of the result lies at
    `(i + 1/2) * count / wanted - 1/2` and depends on the four values around this point. The first
    value is repeated before the start, and the last value is repeated after the end.

    Source:
        Keys 1981, "Cubic Convolution Interpolation for Digital Image Processing", equation 4, with
        the coefficient a = -0.75.

    >>> resampling(2, 3).round(2).tolist()
    [[1.09, -0.09], [0.5, 0.5], [-0.09, 1.09]]
    """
    at = (np.arange(wanted) + 0.5) * count / wanted - 0.5
    first = np.floor(at).astype(np.int64)
    matrix = np.zeros((wanted, count))
    for near in (first - 1, first, first + 1, first + 2):
        away = np.abs(at - near)
        inner = ((_SHARPNESS + 2) * away - (_SHARPNESS + 3)) * away * away + 1
        outer = _SHARPNESS * (((away - 5) * away + 8) * away - 4)
        weight = np.where(away <= 1, inner, np.where(away < 2, outer, 0.0))
        np.add.at(matrix, (np.arange(wanted), np.clip(near, 0, count - 1)), weight)
    return matrix


def for_grid(table: Array, grid: tuple[int, int], wanted: tuple[int, int]) -> Array:
    """Interpolate the positions of a grid of H x W patches for a grid of h x w patches.

    The table (1 + H * W, D) becomes (1 + h * w, D). Row 0 belongs to the token before the patches
    and does not change. For a float16 or bfloat16 table, the result is float32.
    """
    by = [resampling(*pair) for pair in zip(grid, wanted, strict=True)]
    rows = _resample(table[1:], grid, by)
    return np.concatenate([table[:1].astype(rows.dtype, copy=False), rows])


def for_grid_back(grad: Array, grid: tuple[int, int], wanted: tuple[int, int]) -> Array:
    """Return the gradient for the table, given `grad`, the gradient for the interpolated table.

    This is the backward pass of `for_grid`.
    """
    back = [resampling(*pair).T for pair in zip(grid, wanted, strict=True)]
    return np.concatenate([grad[:1], _resample(grad[1:], wanted, back)])


def _resample(rows: Array, grid: tuple[int, int], by: list[Array]) -> Array:
    """Resample a grid of H x W vectors to h x w vectors, with the matrices (h, H) and (w, W)."""
    kind = compute_type(rows.dtype)
    down, across = (matrix.astype(kind) for matrix in by)
    cells = rows.astype(kind, copy=False).reshape(*grid, -1)
    resampled: Array = np.einsum("hH,HWd,wW->hwd", down, cells, across, optimize=True)
    return resampled.reshape(-1, rows.shape[-1])

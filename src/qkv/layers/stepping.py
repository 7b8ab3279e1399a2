"""Fast decoding steps: run blocks on one new token of each text.

For one token of a small model, checking arguments in Python takes longer than the computation. The
code here does not check arguments, and looks up constants only once. If `steps_for` returns None,
this module cannot run the blocks: the caller must call each block as usual.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from qkv.arrays import Array, Arrays, DType, compute_type
from qkv.attend import attend_new
from qkv.attend.arguments import takes
from qkv.attend.cache import KVCache, put
from qkv.layers._mlp import MLP
from qkv.layers.attention import MultiHeadAttention, Rotary, SelfAttention
from qkv.layers.attention.forward import Inputs, attention_plan
from qkv.layers.base import quiet
from qkv.layers.block import Block
from qkv.layers.norm import HeadNorms, LayerNorm
from qkv.ops.kernel import stays_bfloat16, variant_and_threads
from qkv.ops.packing import Prepared, is_frozen

_OPTIONS = {"is_causal", "window", "scale", "softcap", "alibi_slopes", "sinks"}
Rotation = tuple[Array, Array]


class NewTokens(NamedTuple):
    """One new token for each text in a batch, and the tokens before it.

    `lengths` (B,) is 1 for a text with a new token, otherwise 0. If `lengths` is None, every text
    has a new token.
    """

    ids: Array  # (B, 1).
    caches: Sequence[KVCache]  # One cache per layer.
    lengths: Array | None = None


class BlockSteps:
    """Several blocks that run one after another.

    Args:
        blocks: the blocks.
        options: for each block, the options of its attention.
        kernel: the prepared kernel.
    """

    def __init__(
        self, blocks: Sequence[Block], options: Sequence[Mapping[str, Any]], kernel: Prepared
    ) -> None:
        self.kernel = kernel
        self._steps = [_Step(*pair, kernel) for pair in zip(blocks, options, strict=True)]
        self._rotary = {
            step.rotary: (block.attn.rotary, step.heads + step.kv_heads, step.size)
            for step, block in zip(self._steps, blocks, strict=True)
        }

    @quiet
    def __call__(self, x: Array, positions: Array, batches: Sequence[NewTokens]) -> Array:
        """Apply the blocks to token vectors (B, 1, D) at `positions` (B, 1).

        The vectors are those of all `batches`, one batch after the other. Products read the weights
        once for all batches; only attention runs separately for each batch.
        """
        rotation = {
            key: _rotation(rotary, heads, size, positions)
            for key, (rotary, heads, size) in self._rotary.items()
            if rotary is not None
        }
        rows = np.ascontiguousarray(x, np.float32).reshape(len(x), -1)  # (B, D)
        stops = np.cumsum([len(batch.ids) for batch in batches]).tolist()
        places = [
            (slice(*ends), batch.caches, batch.lengths)
            for ends, batch in zip(pairwise([0, *stops]), batches, strict=True)
        ]
        for number, step in enumerate(self._steps):
            texts = [(part, caches[number], lengths) for part, caches, lengths in places]
            rows = step.placement(rows, _Run(step, texts, rotation.get(step.rotary)))
        return rows[:, None]


def steps_for(
    blocks: Sequence[Any], options: Sequence[Mapping[str, Any]], dtype: DType
) -> BlockSteps | None:
    """Return `BlockSteps` for these blocks, or None if a part or an option is not supported."""
    here, threads = variant_and_threads()
    if here is None or (dtype != np.float32 and not stays_bfloat16(dtype)):
        return None
    for block, block_options in zip(blocks, options, strict=True):
        if (
            type(block) is not Block
            or type(block.attn) not in (MultiHeadAttention, SelfAttention)
            or "out_proj.weight" not in block.attn.parameters
            or block.mlp is None
            or (block.attn.q_norm is None) != (block.attn.k_norm is None)
            or isinstance(block.attn.q_norm, HeadNorms)
            or block.attn.clip is not None
            or not takes(dtype, block.attn.d_query)
            or not block_options.keys() <= _OPTIONS
            or block_options.get("is_causal") is not True
        ):
            return None
        arrays = [part for part in made_of([block]) if isinstance(part, np.ndarray)]
        if not all(array.dtype == dtype and is_frozen(array) for array in arrays):
            return None
    return BlockSteps(blocks, options, Prepared(here, dtype, threads))


def made_of(blocks: Sequence[Any]) -> list[Any]:
    """Return the parts and arrays from which `BlockSteps` is built.

    After a part or an array is replaced, the caller must build `BlockSteps` again.
    """
    objects: list[Any] = []
    for block in blocks:
        if type(block) is Block:
            attn = block.attn
            parts = (attn, attn.q_norm, attn.k_norm, block.mlp, block.norm1, block.norm2)
            for part in (*parts, block.out_norm1, block.out_norm2, block.scale1, block.scale2):
                objects.append(part)
                if part is not None:
                    objects += part.parameters.values()
            objects.append(attn.rotary)
    return objects


class _Step:
    """One block that runs on one new token of each text."""

    def __init__(self, block: Block, options: Mapping[str, Any], kernel: Prepared) -> None:
        attn = block.attn
        names = ("norm1", "norm2", "out_norm1", "out_norm2")
        norms = {name: getattr(block, name) for name in names}
        self.norms = {n: _norm(norm, kernel) for n, norm in norms.items() if norm is not None}
        self.scales = {"scale1": block.scale1, "scale2": block.scale2}
        self.placement = block.placement
        self.q_norm, self.k_norm = (
            None if norm is None else (_norm(norm, kernel), norm.dim)
            for norm in (attn.q_norm, attn.k_norm)
        )
        self.qkv = _join_qkv(attn, kernel)
        self.out = _linear(attn.parameters, "out_proj", kernel)
        self.mlp = _mlp(block.mlp, kernel)
        self.kernel = kernel
        self.heads, self.kv_heads, self.size = attn.num_heads, attn.num_kv_heads, attn.d_query
        self.rotary = id(attn.rotary), self.heads + self.kv_heads
        self.swapped = None if attn.rotary is None else _find_partners(attn.rotary, self.size)
        token = np.zeros((1, 1, attn.embed_dim), kernel.kind)
        self.plan = attention_plan(attn, Inputs(token, None, kernel.kind, options))

    def attend(self, x: Array, run: "_Run", residual: Array | None) -> Array:
        """Apply the block's attention to vectors (B, D), and add a residual."""
        heads, kernel = self.heads, self.kernel
        both, values = self.qkv(x)  # shapes (B, Hq + Hkv, d) and (B, Hkv, dv)
        if self.q_norm is not None and self.k_norm is not None:
            parts = ((*self.q_norm, both[:, :heads]), (*self.k_norm, both[:, heads:]))
            both = np.concatenate(
                [
                    norm(part.reshape(-1, dim).view(kernel.bits))
                    .view(kernel.kind)
                    .reshape(part.shape)
                    for norm, dim, part in parts
                ],
                axis=1,
            )
        if self.swapped is not None and run.rotation is not None:
            both = _rotate(both, self.swapped, *run.rotation)
        weighted = [
            self._attend(both[part], values[part], cache, lengths)
            for part, cache, lengths in run.texts
        ]
        z = weighted[0] if len(weighted) == 1 else np.concatenate(weighted)
        return self.out(z, None, residual)

    def _attend(self, both: Array, values: Array, cache: KVCache, lengths: Array | None) -> Array:
        """Return the weighted values (B, Hq * dv) of a batch, and extend the batch's cache."""
        heads, kernel = self.heads, self.kernel
        cached = put(cache, both[:, heads:, None], values[:, :, None], lengths)
        query, kind = both[:, :heads, None], kernel.kind
        if (narrow := cached["key"].dtype) != kind:  # the kernel takes queries of the cache's dtype
            query, kind = query.astype(narrow), np.dtype(np.float32)
        z = np.empty((len(both), heads, 1, values.shape[-1]), kind)
        attend_new(kernel.variant, self.plan, query, cached, z, kernel.threads)
        return kernel.to_bits(z.reshape(len(z), -1))


class _Run(NamedTuple):
    """Executes the parts of a block on one new token of each text."""

    step: _Step
    texts: Sequence[tuple[slice, KVCache, Array | None]]  # The rows of each batch, and its cache.
    rotation: Rotation | None

    def norm(self, name: str, x: Array) -> Array:
        """Apply the norm with this name, if the block has it."""
        norm = self.step.norms.get(name)
        return x if norm is None else norm(x)

    def keep(self, name: str, x: Array) -> Array:
        """Return `x` without recording it."""
        return x

    def add(self, x: Array | None, part: str, read: Array, *last: str) -> Array:
        """Apply a part, then its norm and scale; add the result to `x`, which must not be None."""
        step, read = self.step, self.step.kernel.to_bits(read)
        norm, scale = (step.norms.get(last[0]), step.scales[last[1]]) if last else (None, None)
        residual = x if norm is None and scale is None else None
        out = step.attend(read, self, residual) if part == "attn" else step.mlp(read, residual)
        if residual is not None:
            return out
        out = (out if norm is None else norm(out)).view(step.kernel.kind)
        return x + (out if scale is None else scale.run(out)[0])


def _join_qkv(attn: MultiHeadAttention, kernel: Prepared) -> Callable[[Array], tuple[Array, Array]]:
    """Return a function that computes all queries, keys and values from vectors (B, D).

    Queries and keys are one array (B, Hq + Hkv, d), and values are (B, Hkv, dv).
    """
    names, parameters, kind = ("q_proj", "k_proj", "v_proj"), attn.parameters, kernel.kind
    heads, size = attn.num_heads + attn.num_kv_heads, attn.d_query
    product = _join(parameters, names, kernel) if attn.d_value == size else None
    if product is not None:

        def at_once(x: Array) -> tuple[Array, Array]:
            joined = product(x).view(kind).reshape(len(x), -1, size)
            return joined[:, :heads], joined[:, heads:]

        return at_once
    products = [_linear(parameters, name, kernel) for name in names]

    def one_by_one(x: Array) -> tuple[Array, Array]:
        query, key, value = (product(x).view(kind) for product in products)
        both = np.concatenate([query, key], axis=1).reshape(len(x), heads, size)
        return both, value.reshape(len(x), -1, attn.d_value)

    return one_by_one


def _join(
    parameters: Arrays, names: Sequence[str], kernel: Prepared
) -> Callable[[Array], Array] | None:
    """Return a function that applies several linear layers at once; None if this is impossible."""
    weights = [parameters[f"{name}.weight"] for name in names]
    biases = [parameters[f"{name}.bias"] for name in names if f"{name}.bias" in parameters]
    if len(biases) not in (0, len(names)) or not kernel.joins(weights):
        return None
    return kernel.joined_linear(weights, np.concatenate(biases) if biases else None)


def _norm(norm: Any, kernel: Prepared) -> Callable[[Array], Array]:
    weight, bias = norm.scaled(), norm.parameters.get("bias")
    return kernel.norm(weight, bias, eps=norm.eps, centred=isinstance(norm, LayerNorm))


def _linear(
    parameters: Arrays, name: str, kernel: Prepared, activation: str | None = None
) -> Callable[..., Array]:
    weight, bias = parameters[f"{name}.weight"], parameters.get(f"{name}.bias")
    return kernel.linear(weight, bias, activation)


def _mlp(mlp: Any, kernel: Prepared) -> Callable[[Array, Array | None], Array]:
    """Return a function that applies the MLP to rows (B, D) and adds a residual."""
    if type(mlp) is not MLP:

        def usual(x: Array, residual: Array | None) -> Array:
            out: Array = mlp(x.view(kernel.kind), residual=residual)
            return out if residual is not None else kernel.to_bits(out)

        return usual
    down = _linear(mlp.parameters, "down_proj", kernel)
    # in bfloat16, one joined product would round the numbers that the gate multiplies
    wide = mlp.gated and kernel.kind == np.float32
    both = _join(mlp.parameters, ("gate_proj", "up_proj"), kernel) if wide else None
    if both is not None:
        activate, size = kernel.activate(mlp.activation), mlp.hidden

        def at_once(x: Array, residual: Array | None) -> Array:
            joined = both(x)
            hidden = activate(joined[:, :size])
            hidden *= joined[:, size:]
            return down(hidden, None, residual)

        return at_once
    up = _linear(mlp.parameters, "up_proj", kernel, None if mlp.gated else mlp.activation)
    if not mlp.gated:
        return lambda x, residual: down(up(x), None, residual)
    gate = _linear(mlp.parameters, "gate_proj", kernel, mlp.activation)
    return lambda x, residual: down(up(x, gate(x)), None, residual)


def _find_partners(rotary: Rotary, size: int) -> Array:
    """Return, for each column of a head, the index of its partner in the rotation."""
    dims = size if rotary.dims is None else rotary.dims
    indices = np.arange(size)
    pairs = indices[:dims].reshape((-1, 2) if rotary.interleaved else (2, -1))
    indices[:dims] = np.flip(pairs, 1 if rotary.interleaved else 0).ravel()
    return indices


def _rotation(rotary: Rotary, heads: int, size: int, positions: Array) -> Rotation:
    """Return the cosines and signed sines (B, H, d) with which `_rotate` rotates pairs of columns.

    A pair of columns `(a, b)` becomes `(cos * a + sin_a * b, cos * b + sin_b * a)`. The sines of
    the two columns, `sin_a` and `sin_b`, have opposite signs.
    """
    cos, sin = rotary.rotation(
        np.empty((len(positions), 1, size), np.float32),
        positions,
        1 + int(positions.max(initial=0)),
    )
    # NumPy multiplies arrays of the same shape faster than it broadcasts
    factors = np.ones((2, len(cos), heads, size), cos.dtype)
    factors[1] = 0
    factors[..., : cos.shape[-1]] = cos, sin
    return factors[0], factors[1]


def _rotate(x: Array, swapped: Array, cos: Array, sin: Array) -> Array:
    """Rotate queries or keys `x` (B, H, d); the result may overwrite `x`."""
    wide = x.astype(compute_type(x.dtype), copy=False)
    other = wide.take(swapped, axis=-1)
    other *= sin
    wide *= cos
    wide += other
    return wide.astype(x.dtype, copy=False)

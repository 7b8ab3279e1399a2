"""A block: attention, then the MLP, each with a norm and a residual connection around it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from qkv.arrays import Array, compute_type
from qkv.attend.cache import KVCache
from qkv.attend.call import Call
from qkv.attend.options import RETURNS
from qkv.attend.varlen import check_starts
from qkv.layers.attention import MultiHeadAttention, Norm
from qkv.layers.layer import (
    Feed,
    Gradient,
    for_parameters,
    narrowed_to,
    need_single,
    part_back,
    quiet,
    result_type,
    upstream,
    vectors_of,
    word_vectors,
)
from qkv.layers.norm import LayerScale
from qkv.layers.packed import check_options, settings
from qkv.trace import Recorder, Trace
from qkv.trace.recorder import of_rows, unkept


class BlockSaved(NamedTuple):
    """What the backward pass of a block needs."""

    parts: dict[str, Any]  # by their names, what the backward pass of each needs
    shape: tuple[int, ...]  # (..., T, D)
    dtype: np.dtype[Any]


_AFTER = "hook_normalized_resid_post"
# The parts that add to the residual connection, in their order: of each the norm that belongs to
# it, what follows what it gives, and what the sum behind it is called in a trace.
_ADDED = {
    "attn": ("norm1", ("out_norm1", "scale1"), "hook_resid_mid"),
    "cross_attn": ("norm_cross", (), "hook_resid_mid_cross"),  # of a decoder's block
    "mlp": ("norm2", ("out_norm2", "scale2"), "hook_resid_post"),
}


class Block:
    """One layer of a transformer.

    With the norm after (post-norm, as in the first transformer and BERT):
    `h = norm1(x + attn(x)); y = norm2(h + mlp(h))`. With the norm before (pre-norm, as in GPT-2
    and Llama): `h = x + attn(norm1(x)); y = h + mlp(norm2(h))`. What a part gives may have
    a norm of its own before it is added (Gemma 2): `h = x + out_norm1(attn(norm1(x)))`, and be
    the only one (OLMo 2): `h = x + out_norm1(attn(x)); y = h + out_norm2(mlp(h))`. In parallel
    both parts read what came in (GPT-NeoX): `y = x + attn(norm1(x)) + mlp(norm2(x))`, or where
    there is one norm for both (GPT-J) `y = x + attn(norm1(x)) + mlp(norm1(x))`.

    The residual connections are float32 where the parts compute in half precision. Where the
    parameters of a part are bfloat16, it is given bfloat16.

    Args:
        attn: the attention layer.
        norm1: the norm that belongs to it; None for none, where the norms stand before.
        mlp: the MLP, or what stands in its place; None, with `norm2`, for a block that is
            attention alone.
        norm2: the norm that belongs to that; None where there is an `out_norm2`, and in parallel,
            where the MLP then reads what the attention reads.
        post_norm: where the norms stand.
        out_norm1: the norm of what the attention gives, where the norms stand before.
        out_norm2: the same of what the MLP gives.
        scale1: what the attention gives is multiplied by before it is added, behind that norm.
        scale2: the same of what the MLP gives.
        parallel: whether the MLP reads what came in, as the attention does, in place of the sum
            behind the attention. There is then no `resid_mid` in a trace.

    Source:
        Vaswani et al. 2017, section 3.1; pre-norm: Xiong et al. 2020, "On Layer Normalization in
        the Transformer Architecture"; parallel: Wang and Komatsuzaki 2021, "GPT-J-6B", and Black et
        al. 2022, "GPT-NeoX-20B", section 2.1.

    >>> import numpy as np
    >>> from qkv.layers import MLP, LayerNorm
    >>> block = Block(MultiHeadAttention(8, 2, seed=0), LayerNorm(8), MLP(8, 32, seed=1),
    ...               LayerNorm(8), post_norm=True)
    >>> block(np.ones((3, 5, 8)), is_causal=True).shape
    (3, 5, 8)
    >>> list(block.parameters)[3:6]
    ['attn.out_proj.weight', 'norm1.weight', 'norm1.bias']
    """

    # What a trace calls the norms; TransformerLens numbers them by their order.
    _norm_names: ClassVar[Mapping[str, str]] = {
        "norm1": "ln1",
        "norm2": "ln2",
        "out_norm1": "ln1_post",
        "out_norm2": "ln2_post",
    }

    def __init__(
        self,
        attn: MultiHeadAttention,
        norm1: Norm | None,
        mlp: Feed | None,
        norm2: Norm | None,
        *,
        post_norm: bool,
        out_norm1: Norm | None = None,
        out_norm2: Norm | None = None,
        scale1: LayerScale | None = None,
        scale2: LayerScale | None = None,
        parallel: bool = False,
    ) -> None:
        call = type(self).__name__
        if attn.output_dim != attn.embed_dim:
            raise ValueError(
                f"{call}: attn takes vectors of {attn.embed_dim} and gives {attn.output_dim}: "
                "they are added, so both must be the same"
            )
        if parallel and (mlp is None or post_norm):
            raise ValueError(
                f"{call}: in parallel there is an mlp and the norms stand before the parts: give "
                "mlp and post_norm=False"
            )
        normed = norm2 is not None or out_norm2 is not None
        if (mlp is None) == normed and not parallel:
            raise ValueError(
                f"{call}: mlp and norm2 belong together: give both or None for both, or out_norm2 "
                "in the place of norm2"
            )
        behind: dict[str, Any] = {"out_norm1": out_norm1, "out_norm2": out_norm2}
        behind |= {"scale1": scale1, "scale2": scale2}
        if post_norm and (
            None in (norm1, norm2) or any(one is not None for one in behind.values())
        ):
            raise ValueError(
                f"{call}: with post_norm there are norm1 and norm2, and no other norm or scale: "
                f"give both and leave {', '.join(behind)} out"
            )
        self._parts: dict[str, Any] = {"attn": attn, "norm1": norm1, "mlp": mlp, "norm2": norm2}
        self._parts |= behind
        self._parts = {name: part for name, part in self._parts.items() if part is not None}
        for name, part in self._parts.items():
            if name != "attn" and part.dim != attn.embed_dim:
                raise ValueError(
                    f"{call}: {name} takes vectors of {part.dim} and attn of {attn.embed_dim}: "
                    "all parts of a block must take the same"
                )
        self.attn, self.norm1, self.mlp, self.norm2 = attn, norm1, mlp, norm2
        self.out_norm1, self.out_norm2 = out_norm1, out_norm2
        self.scale1, self.scale2 = scale1, scale2
        self.post_norm, self.parallel = post_norm, parallel

    @property
    def parameters(self) -> dict[str, Array]:
        """The arrays of all parts by name: "attn.q_proj.weight" and so on."""
        return {
            f"{part}.{name}": array
            for part, layer in self._parts.items()
            for name, array in layer.parameters.items()
        }

    @property
    def hooks(self) -> list[str]:
        """The names that it may give a `Recorder`, those of `top_k` included.

        >>> from qkv.layers import RMSNorm
        >>> block = Block(MultiHeadAttention(8, 2, seed=0), RMSNorm(8), None, None, post_norm=False)
        >>> [name for name in block.hooks if name.startswith("ln")]
        ['ln1.hook_scale', 'ln1.hook_normalized']
        """
        parts = {**self._norm_names, **{name: name for name, _ in self._added}}
        found = ["hook_resid_pre"]
        for name, called in parts.items():
            if name in self._parts:
                found += [f"{called}.{hook}" for hook in self._parts[name].hooks]
        for name, (_, _, hook) in self._added:
            found += [f"hook_{name}_out", *([hook] if hook else [])]
        if self.mlp is None:
            return [*found, "hook_resid_post"]
        return [*found, *[_AFTER] * self.post_norm]

    @quiet
    def __call__(
        self,
        x: ArrayLike,
        *,
        cu_lengths: ArrayLike | None = None,
        cache: KVCache | None = None,
        lengths: ArrayLike | None = None,
        record: Recorder | None = None,
        top_k: int | None = None,
        **options: Any,
    ) -> Array:
        """From `x` (..., T, D) to the same shape.

        Args:
            x: word vectors, (..., T, D); or rows (total, D) of texts laid end to end.
            cu_lengths: (B + 1,), where each of those texts begins and the last one ends.
            cache: keys and values of the words before `x` (B, T, D), as for the attention.
            lengths: (B,), with `cache` how many words of each row are real.
            record: collects what is computed on the way.
            top_k: with `record`, keep the largest weights of each query in place of all.
            options: those of the formula, for the attention.

        Returns:
            An array of the shape of `x`, of the type that it and the parameters promote to.
        """
        array, cu, options["plan"] = self._checked(x, cu_lengths, cache, lengths, options)
        return self.run(
            array, cu=cu, cache=cache, lengths=lengths, record=record, top_k=top_k, **options
        )[0]

    @quiet
    def training_forward(
        self, x: ArrayLike, *, cu_lengths: ArrayLike | None = None, **options: Any
    ) -> tuple[Array, BlockSaved]:
        """The result (..., T, D) of calling the block, and what `backward` needs of it."""
        check_options(options, packed=cu_lengths is not None, call=type(self).__name__)
        array, cu, options["plan"] = self._checked(x, cu_lengths, None, None, options)
        need_single(array, self.parameters, call=type(self).__name__)
        return self.run(array, cu=cu, save=True, **options)

    def _checked(
        self, x: ArrayLike, cu_lengths: Any, cache: Any, lengths: Any, options: Mapping[str, Any]
    ) -> tuple[Array, Array | None, Call | None]:
        """`x` and `cu_lengths` as arrays, and the plan of the attention, once all of it fits."""
        call = type(self).__name__
        array = vectors_of(x, self.attn.embed_dim, call=call, of="block")
        for name in RETURNS:
            if name in options:
                raise TypeError(f"{call}: a block has no {name}: use trace() to see what is inside")
        if cu_lengths is not None:
            cu_lengths = check_starts(call, "cu_lengths", cu_lengths, "x", len(array))
        given: dict[str, Any] = {"cu_lengths": cu_lengths, "cache": cache, "lengths": lengths}
        _, plan, _ = self.attn.check(array, **given, **options)
        return array, cu_lengths, plan

    def run(
        self,
        x: Array,
        *,
        cu: Array | None = None,
        record: Recorder | None = None,
        save: bool = False,
        **options: Any,
    ) -> tuple[Array, BlockSaved]:
        """The forward pass, unchecked; with `save` also what the backward pass needs.

        `options` are those of `MultiHeadAttention.run`; a decoder's attention to another text
        takes its part of them.
        """
        dtype = result_type([x], self.parameters, call=type(self).__name__)
        x = x.astype(compute_type(dtype), copy=False)
        parts: dict[str, Any] = {}
        given: dict[str, dict[str, Any]] = {"attn": {"cu": cu, **options}, "mlp": {}}
        if "cross_attn" in self._parts:
            given["cross_attn"] = {one: options.get(one) for one in ("cache", "lengths", "top_k")}
        rows = of_rows(record, cu)
        keep = rows or unkept
        for name, more in given.items():
            told = rows if name == "mlp" else record  # attention shapes what it records itself
            more["record"] = told and told.under(f"{name}.")

        def normed(name: str | None, array: Array) -> Array:
            """What the norm of this name gives, if there is one."""
            if name not in self._parts:
                return array
            told = rows and rows.under(f"{self._norm_names.get(name, name)}.")
            array, saved = self._parts[name].run(array, record=told)
            parts.update({name: saved} if save else {})
            return array

        def added(name: str, last: tuple[str, ...], array: Array, residual: Array) -> Array:
            """What a part gives, with what follows it, added to the residual."""
            part, hook, more = self._parts[name], f"hook_{name}_out", given.get(name, {})
            array = narrowed_to(array, part.parameters)
            out: Array
            follows = [one for one in last if one in self._parts]
            if follows or (record is not None and record.wants(hook)):
                out, saved = part.run(array, save=save, **more)
                for one in follows:
                    out = normed(one, out)
                out = residual + keep(hook, out)
            else:
                out, saved = part.run(array, residual=residual, save=save, **more)
            parts.update({name: saved} if save else {})
            return out

        shape = x.shape
        x = came = read = keep("hook_resid_pre", x)
        for name, (norm, last, hook) in self._added:
            if self.post_norm:
                read = x
            elif not self.parallel:
                read = normed(norm, x)
            elif norm in self._parts:  # without one it reads what the attention reads
                read = normed(norm, came)
            x = added(name, last, read, x)
            if hook:
                x = keep(hook, x)
            if self.post_norm:
                x = normed(norm, x)
        if self.mlp is None:
            x = keep("hook_resid_post", x)
        elif self.post_norm and not (record and record.again(_AFTER, "ln2.hook_normalized")):
            x = keep(_AFTER, x)
        return x.astype(dtype, copy=False), BlockSaved(parts, shape, dtype)

    @property
    def _added(self) -> list[tuple[str, tuple[str, tuple[str, ...], str]]]:
        """Those parts of `_ADDED` that it has; in parallel no sum but the last one has a name."""
        found = [(name, about) for name, about in _ADDED.items() if name in self._parts]
        if not self.parallel:
            return found
        *first, last = found
        return [*[(name, (norm, out, "")) for name, (norm, out, _) in first], last]

    @quiet
    def backward(
        self, grad: ArrayLike, saved: BlockSaved, *, record: Recorder | None = None
    ) -> Gradient:
        """The backward pass: the gradients of `sum(grad * block(x, ...))`.

        The gradient along a residual connection is added to that of the part beside it.

        Args:
            grad: (..., T, D), the gradient of what the block gave.
            saved: what `block.training_forward(x, ...)` gave beside it.
            record: collects the gradients on the way, by the names of a trace; with a
                `GradientRecorder` there are none of parameters.

        Returns:
            `.x`, `.parameters` by their names, and `.options` as the attention gives them.

        >>> import numpy as np
        >>> from qkv.layers import MLP, LayerNorm
        >>> block = Block(MultiHeadAttention(8, 2, seed=0), LayerNorm(8), MLP(8, 32, seed=1),
        ...               LayerNorm(8), post_norm=True)
        >>> y, saved = block.training_forward(np.ones((3, 5, 8)))
        >>> found = block.backward(np.ones((3, 5, 8)), saved)
        >>> found.x.shape, found.parameters.keys() == block.parameters.keys()
        ((3, 5, 8), True)
        """
        found, options = for_parameters(record), dict[str, Array]()
        total = upstream(grad, saved.shape, saved.dtype, call=type(self).__name__)
        rows = of_rows(record, saved.parts["attn"].inputs.cu)
        keep = rows or unkept

        def through(part: str | None, grad: Array) -> Array:
            """From the gradient of what a part gave to that of what it was given."""
            if part is None or part not in self._parts:
                return grad
            told = record if part == "attn" else rows
            inner = told and told.under(f"{self._norm_names.get(part, part)}.")
            back = part_back(self._parts[part], grad, saved.parts[part], part, found, inner)
            options.update(back.options)
            return back.x

        if self.post_norm:
            total = keep(_AFTER, total)
        elif self.mlp is None:
            total = keep("hook_resid_post", total)
        given, shared = total, None
        for name, (norm, last, hook) in reversed(self._added):
            if self.post_norm:
                total = through(norm, total)
            if hook:
                total = keep(hook, total)
            if hook or not self.parallel:
                given = total  # of the sum that the part is added to
            read = keep(f"hook_{name}_out", given)
            if self.post_norm:
                total = total + through(name, read)
                continue
            for one in reversed(last):
                read = through(one, read)
            read = through(name, read)
            if self.parallel and norm not in self._parts and name != "attn":
                shared = read  # of what the attention reads too
                continue
            total = total + through(norm, read if shared is None else read + shared)
        total = keep("hook_resid_pre", total)
        return Gradient(total, found or {}, options=options)

    def forward(self, x: ArrayLike, **options: Any) -> Array:
        """The same as calling the block."""
        return self(x, **options)

    def trace(
        self,
        x: ArrayLike,
        *,
        cu_lengths: ArrayLike | None = None,
        top_k: int | None = None,
        **options: Any,
    ) -> Trace:
        """Every intermediate of `block(x, ...)` by its name, as layer 0.

        A batch axis is put in front of 2-D `x`, and packed rows are given as (B, T, ...). What
        each head adds (`attn.hook_result`) is left out; a `Recorder` that wants it gets it. With
        `top_k` there are `top_indices`, `top_weights`, `received` and `lse` in place of scores and
        pattern (see `qkv.summarize_attention`).

        >>> import numpy as np
        >>> from qkv.layers import MLP, LayerNorm
        >>> block = Block(MultiHeadAttention(8, 2, seed=0), LayerNorm(8), MLP(8, 32, seed=1),
        ...               LayerNorm(8), post_norm=False)
        >>> trace = block.trace(np.ones((5, 8)), is_causal=True)
        >>> trace["pattern", 0].shape, trace["resid_mid", 0].shape
        ((1, 2, 5, 5), (1, 5, 8))
        """
        call = type(self).__name__
        array = word_vectors(x, call=call, name="x").copy()  # it is kept as hook_resid_pre
        if cu_lengths is None and array.ndim == 2:
            array = array[None]
        record = Recorder()
        self(array, cu_lengths=cu_lengths, record=record.under("blocks.0."), top_k=top_k, **options)
        cu = None
        if cu_lengths is not None:
            cu = check_starts(call, "cu_lengths", cu_lengths, "x", len(array))
        return Trace(record.arrays, settings={0: settings(options, cu)})

"""A block: attention and MLP, each with a norm and a residual connection."""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from qkv.arrays import Array, ArrayLike, DType, compute_type
from qkv.attend.arguments import Call, Options
from qkv.attend.cache import KVCache
from qkv.attend.varlen import check_starts
from qkv.layers import base
from qkv.layers.attention import MultiHeadAttention, Norm
from qkv.layers.norm import LayerScale
from qkv.trace import Recorder, Trace
from qkv.trace.recorder import of_rows, unkept


class BlockSaved(NamedTuple):
    """Values that the forward pass of a block saves for its backward pass."""

    parts: dict[str, Any]  # The saved values of each part, keyed by its name.
    shape: tuple[int, ...]  # (..., T, D).
    dtype: DType


_AFTER = "hook_normalized_resid_post"
# The parts whose outputs are added to the residual stream, in order. Each tuple holds three items.
# The first item is the name of the part's norm. The second item has the names of two modules for
# the part's output: a norm and a scale. The third item is the name that the residual stream has in
# a trace after the addition.
_ADDED = {
    "attn": ("norm1", ("out_norm1", "scale1"), "hook_resid_mid"),
    "cross_attn": ("norm_cross", (), "hook_resid_mid_cross"),  # only decoders have cross-attention
    "mlp": ("norm2", ("out_norm2", "scale2"), "hook_resid_post"),
}


class Block:
    """One layer of a transformer.

    Post-norm, as in BERT: `h = norm1(x + attn(x)); y = norm2(h + mlp(h))`.
    Pre-norm, as in GPT-2 and Llama: `h = x + attn(norm1(x)); y = h + mlp(norm2(h))`.
    Norms before and after each part, as in Gemma 2: `h = x + out_norm1(attn(norm1(x)))`.
    Norms after each part, as in OLMo 2: `h = x + out_norm1(attn(x)); y = h + out_norm2(mlp(h))`.
    Parallel parts, as in GPT-NeoX: `y = x + attn(norm1(x)) + mlp(norm2(x))`.
    Parallel parts with one norm, as in GPT-J: `y = x + attn(norm1(x)) + mlp(norm1(x))`.

    If the parts compute in half precision, the residual connections are float32. A part with
    bfloat16 parameters gets bfloat16 inputs.

    Args:
        attn: the attention layer.
        norm1: the norm of the attention; if `post_norm` is True, it must not be None.
        mlp: the MLP or the mixture of experts. If the block has only attention, `mlp` and `norm2`
            are None.
        norm2: the norm of the MLP. If `out_norm2` is given, `norm2` may be None. In a parallel
            block, `norm2` may also be None: the MLP and the attention can share `norm1`.
        post_norm: whether each norm comes after its part.
        out_norm1: the norm of the attention's output; not allowed with `post_norm`.
        out_norm2: the norm of the MLP's output; not allowed with `post_norm`.
        scale1: the scale of the attention's output, applied after `out_norm1`.
        scale2: the scale of the MLP's output, applied after `out_norm2`.
        parallel: if True, the MLP reads the input of the block, like the attention. If False, the
            MLP reads the sum of this input and the attention's output. The trace of a parallel
            block has no `resid_mid`.

    Source:
        Vaswani et al. 2017, section 3.1. Xiong et al. 2020, "On Layer Normalization in the
        Transformer Architecture", describe pre-norm. Wang and Komatsuzaki 2021, "GPT-J-6B", and
        Black et al. 2022, "GPT-NeoX-20B", section 2.1, describe parallel parts.

    >>> import numpy as np
    >>> from qkv.layers import MLP, LayerNorm
    >>> block = Block(MultiHeadAttention(8, 2, seed=0), LayerNorm(8), MLP(8, 32, seed=1),
    ...               LayerNorm(8), post_norm=True)
    >>> block(np.ones((3, 5, 8)), is_causal=True).shape
    (3, 5, 8)
    >>> list(block.parameters)[3:6]
    ['attn.out_proj.weight', 'norm1.weight', 'norm1.bias']
    """

    # The names of the norms in a trace, as in TransformerLens.
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
        mlp: base.Feed | None,
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
                f"{call}: attn takes vectors of size {attn.embed_dim} and returns size "
                f"{attn.output_dim}: input and output are added, so their sizes must be the same"
            )
        if parallel and (mlp is None or post_norm):
            raise ValueError(
                f"{call}: a parallel block needs an mlp, and its norms come before the parts: give "
                "mlp and post_norm=False"
            )
        normed = norm2 is not None or out_norm2 is not None
        if (mlp is None) == normed and not parallel:
            raise ValueError(
                f"{call}: mlp and norm2 belong together: give both, or None for both, or out_norm2 "
                "instead of norm2"
            )
        behind: dict[str, Any] = {"out_norm1": out_norm1, "out_norm2": out_norm2}
        behind |= {"scale1": scale1, "scale2": scale2}
        if post_norm and (
            None in (norm1, norm2) or any(one is not None for one in behind.values())
        ):
            raise ValueError(
                f"{call}: with post_norm, the block has norm1 and norm2, and no other norm or "
                f"scale: give both and leave {', '.join(behind)} out"
            )
        parts = {"attn": attn, "norm1": norm1, "mlp": mlp, "norm2": norm2, **behind}
        self._parts: dict[str, Any] = {n: part for n, part in parts.items() if part is not None}
        for name, part in self._parts.items():
            if name != "attn" and part.dim != attn.embed_dim:
                raise ValueError(
                    f"{call}: {name} takes vectors of size {part.dim} and attn takes vectors of "
                    f"size {attn.embed_dim}: all parts of a block must take the same size"
                )
        self.attn, self.norm1, self.mlp, self.norm2 = attn, norm1, mlp, norm2
        self.out_norm1, self.out_norm2 = out_norm1, out_norm2
        self.scale1, self.scale2 = scale1, scale2
        self.post_norm, self.parallel = post_norm, parallel

    @property
    def parameters(self) -> dict[str, Array]:
        """Return the arrays of all parts, keyed by name: "attn.q_proj.weight" and so on."""
        return {
            f"{part}.{name}": array
            for part, layer in self._parts.items()
            for name, array in layer.parameters.items()
        }

    @property
    def hooks(self) -> list[str]:
        """The names of all activations that the block can record, with or without `top_k`.

        >>> from qkv.layers import RMSNorm
        >>> block = Block(MultiHeadAttention(8, 2, seed=0), RMSNorm(8), None, None, post_norm=False)
        >>> [name for name in block.hooks if name.startswith("ln")]
        ['ln1.hook_scale', 'ln1.hook_normalized']
        """
        parts = {**self._norm_names, **{name: name for name, _ in self._added}}
        names = ["hook_resid_pre"]
        for name, called in parts.items():
            if name in self._parts:
                names += [f"{called}.{hook}" for hook in self._parts[name].hooks]
        for name, (_, _, hook) in self._added:
            names += [f"hook_{name}_out", *([hook] if hook else [])]
        if self.mlp is None:
            return [*names, "hook_resid_post"]
        return [*names, *[_AFTER] * self.post_norm]

    @base.quiet
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
        """Apply the block to `x` (..., T, D).

        Args:
            x: word vectors, (..., T, D); or packed rows (total, D).
            cu_lengths: (B + 1,), the index of each packed text's first row, then the number of
                rows.
            cache: the keys and values of the words before `x` (B, T, D).
            lengths: (B,), the number of real words in each row; only with `cache`.
            record: collects the activations.
            top_k: if given, `record` keeps only the `top_k` largest weights of each query.
            options: the options of `qkv.attention`.

        Returns:
            An array shaped like `x`, of the type to which NumPy promotes `x` and the parameters.
        """
        array, cu, options["plan"] = self._checked(
            x, cu_lengths, options, cache=cache, lengths=lengths
        )
        return self.run(
            array, cu=cu, cache=cache, lengths=lengths, record=record, top_k=top_k, **options
        )[0]

    @base.quiet
    def training_forward(
        self, x: ArrayLike, *, cu_lengths: ArrayLike | None = None, **options: Any
    ) -> tuple[Array, BlockSaved]:
        """Run the forward pass; return the result (..., T, D), and the values for `backward`."""
        array, cu, options["plan"] = self._checked(x, cu_lengths, options)
        base.need_single(array, self.parameters, call=type(self).__name__)
        return self.run(array, cu=cu, save=True, **options)

    def _checked(
        self, x: ArrayLike, cu_lengths: Any, options: Options, **fields: Any
    ) -> tuple[Array, Array | None, Call | None]:
        """Check the arguments; return `x` and `cu_lengths` as arrays, and the attention's plan."""
        call = type(self).__name__
        base.check_options(options, packed=cu_lengths is not None, call=call, returns=False)
        array = base.vectors_of(x, self.attn.embed_dim, call=call, of="block")
        if cu_lengths is not None:
            cu_lengths = check_starts(call, "cu_lengths", cu_lengths, "x", len(array))
        _, plan, _ = self.attn.check(array, None, cu_lengths, options, **fields)
        return array, cu_lengths, plan

    def run(
        self, x: Array, *, record: Recorder | None = None, save: bool = False, **options: Any
    ) -> tuple[Array, BlockSaved]:
        """Run the forward pass without checks; if `save`, also return the values for `backward`.

        `options` are the options of `MultiHeadAttention.run`. In a decoder, cross-attention gets
        only `cache`, `lengths` and `top_k`.
        """
        dtype = base.result_type([x], self.parameters, call=type(self).__name__)
        x = x.astype(compute_type(dtype), copy=False)
        parts: dict[str, Any] = {}
        of_parts: dict[str, dict[str, Any]] = {"attn": options, "mlp": {}}
        if "cross_attn" in self._parts:
            of_parts["cross_attn"] = {n: options.get(n) for n in ("cache", "lengths", "top_k")}
        rows = of_rows(record, options.get("cu"))
        keep = rows or unkept
        for name, more in of_parts.items():
            # `rows` pads packed rows. Attention layers get `record`, because they pad packed rows
            # themselves.
            recorder = rows if name == "mlp" else record
            more["record"] = recorder and recorder.under(f"{name}.")

        def normed(name: str | None, array: Array) -> Array:
            """Apply the norm with this name, if the block has it."""
            if name not in self._parts:
                return array
            recorder = rows and rows.under(f"{self._norm_names.get(name, name)}.")
            array, saved = self._parts[name].run(array, record=recorder)
            parts.update({name: saved} if save else {})
            return array

        def added(name: str, last: tuple[str, ...], array: Array, residual: Array) -> Array:
            """Apply a part, its output norm and its output scale; then add the residual."""
            part, hook, more = self._parts[name], f"hook_{name}_out", of_parts.get(name, {})
            array = base.narrowed_to(array, part.parameters)
            out: Array
            followers = [other for other in last if other in self._parts]
            if followers or (record is not None and record.wants(hook)):
                out, saved = part.run(array, save=save, **more)
                for other in followers:
                    out = normed(other, out)
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
            elif norm in self._parts:  # If norm2 is None, the MLP reads the output of norm1.
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
        """The items of `_ADDED` for this block. A parallel block adds all parts in one sum."""
        parts = [(name, about) for name, about in _ADDED.items() if name in self._parts]
        if not self.parallel:
            return parts
        *first, last = parts
        return [*[(name, (norm, out, "")) for name, (norm, out, _) in first], last]

    @base.quiet
    def backward(
        self, grad: ArrayLike, saved: BlockSaved, *, record: Recorder | None = None
    ) -> base.Gradient:
        """Return the gradients of `sum(grad * block(x, ...))`.

        Args:
            grad: (..., T, D), the gradient for the block's result.
            saved: the second value that `block.training_forward(x, ...)` returned.
            record: collects the gradients for activations, keyed by name, such as "hook_mlp_out".
                With a `GradientRecorder` no gradients for parameters are computed.

        Returns:
            A `Gradient` with `.x`, `.parameters` and, for the options of the attention, `.options`.

        >>> import numpy as np
        >>> from qkv.layers import MLP, LayerNorm
        >>> block = Block(MultiHeadAttention(8, 2, seed=0), LayerNorm(8), MLP(8, 32, seed=1),
        ...               LayerNorm(8), post_norm=True)
        >>> y, saved = block.training_forward(np.ones((3, 5, 8)))
        >>> gradient = block.backward(np.ones((3, 5, 8)), saved)
        >>> gradient.x.shape, gradient.parameters.keys() == block.parameters.keys()
        ((3, 5, 8), True)
        """
        gradients, options = base.for_parameters(record), dict[str, Array]()
        total = base.upstream(grad, saved.shape, saved.dtype, call=type(self).__name__)
        rows = of_rows(record, saved.parts["attn"].inputs.cu)
        keep = rows or unkept

        def through(part: str | None, grad: Array) -> Array:
            """Compute the gradient for a part's input from the gradient for its output."""
            if part is None or part not in self._parts:
                return grad
            recorder = record if part == "attn" else rows
            inner = recorder and recorder.under(f"{self._norm_names.get(part, part)}.")
            back = base.part_back(
                self._parts[part], grad, saved.parts[part], part, gradients, inner
            )
            options.update(back.options)
            return back.x

        if self.post_norm:
            total = keep(_AFTER, total)
        elif self.mlp is None:
            total = keep("hook_resid_post", total)
        of_sum, shared = total, None
        for name, (norm, last, hook) in reversed(self._added):
            if self.post_norm:
                total = through(norm, total)
            if hook:
                total = keep(hook, total)
            if hook or not self.parallel:
                of_sum = total  # The gradient for the sum of the residual and the part's result.
            read = keep(f"hook_{name}_out", of_sum)
            if self.post_norm:
                total = total + through(name, read)
                continue
            for other in reversed(last):
                read = through(other, read)
            read = through(name, read)
            if self.parallel and norm not in self._parts and name != "attn":
                shared = read  # Attention and MLP share this norm: add both gradients.
                continue
            total = total + through(norm, read if shared is None else read + shared)
        total = keep("hook_resid_pre", total)
        return base.Gradient(total, gradients or {}, options=options)

    def forward(self, x: ArrayLike, **options: Any) -> Array:
        """Call the block."""
        return self(x, **options)

    def trace(
        self,
        x: ArrayLike,
        *,
        cu_lengths: ArrayLike | None = None,
        top_k: int | None = None,
        **options: Any,
    ) -> Trace:
        """Return a trace of `block(x, ...)`, with the block as layer 0.

        If `x` is 2-D, it gets a leading batch axis. Packed rows become (B, T, ...). The trace has
        no `attn.hook_result`; use a `Recorder` to get the output of each head. With `top_k`, the
        trace holds a summary instead of scores and pattern: `top_indices`, `top_weights`,
        `received` and `lse`, which `qkv.summarize_attention` describes.

        >>> import numpy as np
        >>> from qkv.layers import MLP, LayerNorm
        >>> block = Block(MultiHeadAttention(8, 2, seed=0), LayerNorm(8), MLP(8, 32, seed=1),
        ...               LayerNorm(8), post_norm=False)
        >>> trace = block.trace(np.ones((5, 8)), is_causal=True)
        >>> trace["pattern", 0].shape, trace["resid_mid", 0].shape
        ((1, 2, 5, 5), (1, 5, 8))
        """
        call = type(self).__name__
        array = base.word_vectors(x, call=call, name="x").copy()  # shares no memory with `x`
        if cu_lengths is None and array.ndim == 2:
            array = array[None]
        record = Recorder()
        self(array, cu_lengths=cu_lengths, record=record.under("blocks.0."), top_k=top_k, **options)
        cu = None if cu_lengths is None else np.asarray(cu_lengths)  # already checked
        return Trace(record.arrays, settings={0: base.settings(options, cu)})

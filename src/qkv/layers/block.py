"""A block: attention and MLP, each with a norm and a residual connection."""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import numpy as np

from qkv._argument_errors import public_method, value_error
from qkv.arrays import Array, ArrayLike, DType, compute_type
from qkv.attend import check_starts
from qkv.attend.arguments import Call, Options
from qkv.attend.cache import KVCache
from qkv.layers import base
from qkv.layers._convolution import Convolution
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
_LAST1, _LAST2 = ("out_norm1", "scale1"), ("out_norm2", "scale2")
Value = TypeVar("Value")  # The type of a value between parts: an array, or its number in `_Steps`.


class Run(Protocol[Value]):
    """Executes a block's parts, which a placement calls in order."""

    def norm(self, name: str, x: Value) -> Value:
        """Apply the norm with this name; if the block has no such norm, return `x`."""

    def add(self, x: Value | None, part: str, read: Value, *last: str) -> Value:
        """Apply a part to `read`, then the norm and scale named in `last`; add the result to `x`.

        If `x` is None, the block has no residual connection.
        """

    def keep(self, name: str, x: Value) -> Value:
        """Record an activation; return the activation or its edited replacement."""


# A placement says how the parts of a block are connected. The forward pass, the backward pass and
# a step of generation all run the same placement, each with its own `Run`.
Placement = Callable[[Any, Run[Any]], Any]


def post_norm(x: Value, run: Run[Value]) -> Value:
    """Place a norm after each addition, as in BERT."""
    x = run.norm("norm1", run.keep("hook_resid_mid", run.add(x, "attn", x)))
    return run.norm("norm2", run.keep("hook_resid_post", run.add(x, "mlp", x)))


def post_norm_and_convolution(x: Value, run: Run[Value]) -> Value:
    """Add a convolution of the block's input to its output, and place a norm, as in DeBERTa v2."""
    return run.norm("conv_norm", run.add(post_norm(x, run), "conv", x))


def pre_norm(x: Value, run: Run[Value]) -> Value:
    """Place a norm before each part, as in GPT-2 and Llama."""
    x = run.keep("hook_resid_mid", run.add(x, "attn", run.norm("norm1", x)))
    return run.keep("hook_resid_post", run.add(x, "mlp", run.norm("norm2", x)))


def both_norms(x: Value, run: Run[Value]) -> Value:
    """Place norms before and after each part (Gemma 2), or only after each part (OLMo 2)."""
    x = run.keep("hook_resid_mid", run.add(x, "attn", run.norm("norm1", x), *_LAST1))
    return run.keep("hook_resid_post", run.add(x, "mlp", run.norm("norm2", x), *_LAST2))


def parallel_parts(x: Value, run: Run[Value]) -> Value:
    """Let attention and MLP read the block's input, each through its own norm, as in GPT-NeoX."""
    mid = run.add(x, "attn", run.norm("norm1", x), *_LAST1)
    return run.keep("hook_resid_post", run.add(mid, "mlp", run.norm("norm2", x), *_LAST2))


def parallel_parts_of_one_norm(x: Value, run: Run[Value]) -> Value:
    """Let attention and MLP read the block's input through the same norm, as in GPT-J."""
    read = run.norm("norm1", x)
    mid = run.add(x, "attn", read, *_LAST1)
    return run.keep("hook_resid_post", run.add(mid, "mlp", read, *_LAST2))


def attention_alone(x: Value, run: Run[Value]) -> Value:
    """Add attention to the block's input, without an MLP."""
    x = run.keep("hook_resid_mid", run.add(x, "attn", run.norm("norm1", x), *_LAST1))
    return run.keep("hook_resid_post", x)


class Block:
    """One layer of a transformer.

    Post-norm, as in BERT: `h = norm1(x + attn(x)); y = norm2(h + mlp(h))`.
    Pre-norm, as in GPT-2 and Llama: `h = x + attn(norm1(x)); y = h + mlp(norm2(h))`.
    Norms before and after each part, as in Gemma 2: `h = x + out_norm1(attn(norm1(x)))`.
    Norms after each part, as in OLMo 2: `h = x + out_norm1(attn(x)); y = h + out_norm2(mlp(h))`.
    Parallel parts, as in GPT-NeoX: `y = x + attn(norm1(x)) + mlp(norm2(x))`.
    Parallel parts with one norm, as in GPT-J: `y = x + attn(norm1(x)) + mlp(norm1(x))`.

    If the parts compute in half precision, the residual connections are computed in float32. A part
    with bfloat16 parameters gets bfloat16 inputs.

    Args:
        attn: the attention layer.
        norm1: the norm of the attention; if `post_norm` is True, it must not be None.
        mlp: the MLP or the mixture of experts. If the block has only attention, `mlp` and `norm2`
            are None.
        norm2: the norm of the MLP. It may be None if `out_norm2` is given, if `norm1` is None, or
            in a parallel block, in which the MLP and the attention can share `norm1`.
        post_norm: whether each norm comes after its part.
        out_norm1: the norm of the attention's output; not allowed with `post_norm`.
        out_norm2: the norm of the MLP's output; not allowed with `post_norm`.
        scale1: the scale of the attention's output, applied after `out_norm1`.
        scale2: the scale of the MLP's output, applied after `out_norm2`.
        conv: a convolution of the block's input, which is added to the block's output; only with
            `post_norm`.
        conv_norm: the norm of the sum of the block's output and `conv`.
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
        "conv_norm": "ln_conv",
    }

    @public_method
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
        conv: Convolution | None = None,
        conv_norm: Norm | None = None,
        parallel: bool = False,
    ) -> None:
        if attn.output_dim != attn.embed_dim:
            raise value_error(
                f"attn takes vectors of size {attn.embed_dim} and returns size "
                f"{attn.output_dim}: input and output are added, so their sizes must be the same"
            )
        if parallel and (mlp is None or post_norm):
            raise value_error(
                "a parallel block needs an mlp, and its norms come before the parts; pass "
                "mlp and post_norm=False"
            )
        normed = norm2 is not None or out_norm2 is not None
        bare = norm1 is norm2 is None
        if (mlp is None) == normed and not (parallel or bare):
            raise value_error(
                "an mlp needs norm2 or out_norm2, and these norms need an mlp; pass both, "
                "neither, or an mlp in a block without any norms"
            )
        behind: dict[str, Any] = {"out_norm1": out_norm1, "out_norm2": out_norm2}
        behind |= {"scale1": scale1, "scale2": scale2}
        if post_norm and (
            None in (norm1, norm2) or any(one is not None for one in behind.values())
        ):
            raise value_error(
                f"a block with post_norm has only norm1 and norm2; pass both, and omit "
                f"{', '.join(behind)}"
            )
        if (conv is None) != (conv_norm is None) or (conv is not None and not post_norm):
            raise value_error("conv needs conv_norm and post_norm; pass all three, or omit conv")
        behind |= {"conv": conv, "conv_norm": conv_norm}
        parts = {"attn": attn, "norm1": norm1, "mlp": mlp, "norm2": norm2, **behind}
        self._parts: dict[str, Any] = {n: part for n, part in parts.items() if part is not None}
        for name, part in self._parts.items():
            if name != "attn" and part.dim != attn.embed_dim:
                raise value_error(
                    f"{name} takes vectors of size {part.dim} and attn takes vectors of "
                    f"size {attn.embed_dim}: all parts of a block must take the same size"
                )
        self.attn, self.norm1, self.mlp, self.norm2 = attn, norm1, mlp, norm2
        self.out_norm1, self.out_norm2 = out_norm1, out_norm2
        self.scale1, self.scale2 = scale1, scale2
        self.conv, self.conv_norm = conv, conv_norm
        self.post_norm, self.parallel = post_norm, parallel

    @cached_property
    def placement(self) -> Placement:
        """The function that connects the parts of the block."""
        if self.post_norm:
            return post_norm if self.conv is None else post_norm_and_convolution
        if self.parallel:
            return parallel_parts_of_one_norm if self.norm2 is None else parallel_parts
        if self.mlp is None:
            return attention_alone
        return pre_norm if self._parts.keys().isdisjoint((*_LAST1, *_LAST2)) else both_norms

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
        ['ln1.hook_scale', 'ln1.hook_normalized', 'ln1.hook_input']
        """
        steps = [name for name, _ in self._steps]
        names = ["hook_resid_pre", *(hook for part in self._parts for hook in _READ.get(part, ()))]
        for name in dict.fromkeys([*self._norm_names, *steps]):
            if name in self._parts:
                called = self._norm_names.get(name, name)
                names += [f"{called}.{hook}" for hook in self._parts[name].hooks]
        names += [name for name in steps if "hook_" in name]
        return [*names, *[_AFTER] * self.post_norm]

    @cached_property
    def _asked(self) -> tuple[str, ...]:
        """The names that the block's forward pass requests from a recorder."""
        reads = (name for name, _ in self._steps if name.endswith(".hook_input"))
        return (*_NAMES, *reads, *_PROJECTIONS)

    @cached_property
    def _steps(self) -> list[tuple[str, tuple[int, ...]]]:
        """The steps of the placement, as `_Steps` notes them."""
        run = _Steps(self._parts, self._norm_names)
        self.placement(0, run)
        return run.steps

    @base.public
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
            cu_lengths: (B + 1,), the index of each packed text's first row, followed by the number
                of rows.
            cache: the keys and values of the words before `x` (B, T, D).
            lengths: (B,), the number of real words in each row; only with `cache`.
            record: collects the activations.
            top_k: if given, `record` keeps only the `top_k` largest weights of each query.
            options: the options of `qkv.attention`.

        Returns:
            An array shaped like `x`, of the type to which NumPy promotes `x` and the parameters.
        """
        array, cu, options["plan"] = self._check_input(
            x, cu_lengths, options, cache=cache, lengths=lengths
        )
        return self.run(
            array, cu=cu, cache=cache, lengths=lengths, record=record, top_k=top_k, **options
        )[0]

    @base.public
    def training_forward(
        self, x: ArrayLike, *, cu_lengths: ArrayLike | None = None, **options: Any
    ) -> tuple[Array, BlockSaved]:
        """Run the forward pass; return the result (..., T, D), and the values for `backward`."""
        array, cu, options["plan"] = self._check_input(x, cu_lengths, options)
        base.need_single(array, self.parameters)
        return self.run(array, cu=cu, save=True, **options)

    def _check_input(
        self, x: ArrayLike, cu_lengths: Any, options: Options, **fields: Any
    ) -> tuple[Array, Array | None, Call | None]:
        """Check the arguments; return `x` and `cu_lengths` as arrays, and the attention's plan."""
        base.check_options(options, packed=cu_lengths is not None, returns=False)
        array = base.vectors_of(x, self.attn.embed_dim, layer="block")
        if cu_lengths is not None:
            cu_lengths = check_starts("cu_lengths", cu_lengths, "x", len(array))
        _, plan, _ = self.attn.check(array, None, cu_lengths, options, **fields)
        return array, cu_lengths, plan

    def run(
        self, x: Array, *, record: Recorder | None = None, save: bool = False, **options: Any
    ) -> tuple[Array, BlockSaved]:
        """Run the forward pass without checks; if `save`, also return the values for `backward`.

        `options` are the options of `MultiHeadAttention.run`, and `real` (total,), which is False
        for tokens that a convolution does not read. In a decoder, cross-attention gets only
        `cache`, `lengths` and `top_k`.
        """
        dtype = base.result_type([x], self.parameters)
        shape, run = x.shape, _Forward(self, record, save, options)
        x = run.keep("hook_resid_pre", x.astype(compute_type(dtype), copy=False))
        x = self.placement(x, run)
        last = "ln2" if self.conv is None else "ln_conv"
        if self.post_norm and not (record and record.again(_AFTER, f"{last}.hook_normalized")):
            x = run.keep(_AFTER, x)
        return x.astype(dtype, copy=False), BlockSaved(run.saved, shape, dtype)

    @base.public
    def backward(
        self, grad: ArrayLike, saved: BlockSaved, *, record: Recorder | None = None
    ) -> base.Gradient:
        """Return the gradients of `sum(grad * block(x, ...))`.

        Args:
            grad: (..., T, D), the gradient for the block's result.
            saved: the second value that `block.training_forward(x, ...)` returned.
            record: collects the gradients for activations, keyed by name, such as "hook_mlp_out".
                With a `GradientRecorder`, no gradients for parameters are computed.

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
        total = base.upstream(grad, saved.shape, saved.dtype)
        rows = of_rows(record, saved.parts["attn"].inputs.cu)
        keep = rows or unkept

        def through(part: str, grad: Array) -> Array:
            """Compute the gradient for a part's input from the gradient for its output."""
            recorder = record if part == "attn" else rows
            inner = recorder and recorder.under(f"{self._norm_names.get(part, part)}.")
            back = base.part_back(
                self._parts[part], grad, saved.parts[part], part, gradients, inner
            )
            options.update(back.options)
            return back.x

        total = keep(_AFTER, total) if self.post_norm else total
        values = {len(self._steps): total}  # The gradient for each value, keyed by its number.
        for number, (name, inputs) in reversed([*enumerate(self._steps, 1)]):
            total = values.pop(number)
            if name:
                total = (keep if "hook_" in name else through)(name, total)
            for value in inputs:
                values[value] = values[value] + total if value in values else total
        total = keep("hook_resid_pre", values[0])
        return base.Gradient(total, gradients or {}, options=options)

    def forward(self, x: ArrayLike, **options: Any) -> Array:
        """Call the block."""
        return self(x, **options)

    @public_method
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
        array = base.word_vectors(x, name="x").copy()  # shares no memory with `x`
        if cu_lengths is None and array.ndim == 2:
            array = array[None]
        record = Recorder()
        self(array, cu_lengths=cu_lengths, record=record.under("blocks.0."), top_k=top_k, **options)
        cu = None if cu_lengths is None else np.asarray(cu_lengths)  # already checked
        return Trace(record.arrays, settings={0: base.settings(options, cu)})


# The inputs of each part, before its norm; the values name the attribute with the number of heads.
_READ = {
    "attn": {
        "hook_q_input": "num_heads",
        "hook_k_input": "num_kv_heads",
        "hook_v_input": "num_kv_heads",
    },
    "mlp": {"hook_mlp_in": ""},
}
# The inputs of the attention's projections.
_PROJECTIONS = tuple(f"attn.hook_{name}_in" for name in "qkv")
# Names that the forward pass of each block requests from a recorder.
_OUTPUTS = ("hook_attn_out", "hook_cross_attn_out", "hook_mlp_out", "hook_conv_out")
_NAMES = (*_READ["attn"], *_READ["mlp"], *_OUTPUTS)


class _Forward:
    """Executes the parts of a block on arrays, in a forward pass."""

    def __init__(
        self, block: Block, record: Recorder | None, save: bool, options: dict[str, Any]
    ) -> None:
        # `_rows` pads packed rows. Attention layers get `_record`, because they pad packed rows
        # themselves.
        self._record, self._rows = record, of_rows(record, options.get("cu"))
        self._block, self._parts, self._options, self._save = block, block._parts, options, save
        self.keep = self._rows or unkept
        self.saved: dict[str, Any] = {}
        self._real = options.pop("real", None)
        self._normed: tuple[Any, Any] = (None, None)  # the last output of a norm, and its input
        self._wanted = set() if record is None else record.choose(block._asked)

    def norm(self, name: str, x: Array) -> Array:
        """Apply the norm with this name, if the block has it."""
        if name not in self._parts:
            return x
        called = self._block._norm_names.get(name, name)
        x = self._read(called, x)
        record = self._rows and self._rows.under(f"{called}.")
        out: Array
        out, saved = self._parts[name].run(x, record=record)
        if self._save:
            self.saved[name] = saved
        self._normed = out, x
        return out

    def _read(self, part: str, x: Array) -> Array:
        """Record the input of a part, if it is wanted."""
        name = f"{part}.hook_input"
        return self.keep(name, x) if name in self._wanted else x

    def add(self, x: Array | None, part: str, read: Array, *last: str) -> Array:
        """Apply a part, then its norm and scale; add the result to `x`."""
        layer, hook, options = self._parts[part], f"hook_{part}_out", self._options
        record = self._rows if part in ("mlp", "conv") else self._record
        more: dict[str, Any] = {"record": record and record.under(f"{part}."), "save": self._save}
        for name in self._wanted.intersection(_READ.get(part, ())):
            normed, before = self._normed
            before = before if normed is read and not self._block.post_norm else read
            count: int | None = getattr(layer, _READ[part][name], None)
            self.keep(name, before if count is None else np.repeat(before[..., None, :], count, -2))
        if part == "attn":
            more |= {**options, "keeps_reads": not self._wanted.isdisjoint(_PROJECTIONS)}
        elif part == "conv":
            more |= {"cu": options.get("cu"), "real": self._real}
        elif part == "cross_attn":
            more |= {name: options.get(name) for name in ("cache", "lengths", "top_k")}
        read = self._read(part, read)
        half = x is not None and next(iter(layer.parameters.values())).dtype.itemsize == 2
        if half:
            read = base.to_bfloat16_like(read, layer.parameters)
        out: Array
        last = tuple(name for name in last if name in self._parts)
        if last or hook in self._wanted:
            out, saved = layer.run(read, **more)
            for name in last:
                out = self.norm(name, out)
            out = self.keep(hook, out)
            out = out if x is None else x + out
        else:
            out, saved = layer.run(read, residual=x, **more)
        if self._save:
            self.saved[part] = saved
        return out


class _Steps:
    """Notes the steps of a placement, for the backward pass and for the names of activations.

    Value 0 is the input of the block, and step i computes value i + 1.

    Attributes:
        steps: the name and the input values of each step. The name is that of a part or of an
            activation; "" stands for a sum.
    """

    def __init__(self, parts: Mapping[str, Any], names: Mapping[str, str]) -> None:
        self._parts, self._names = parts, names
        self.steps: list[tuple[str, tuple[int, ...]]] = []

    def keep(self, name: str, *values: int) -> int:
        """Note a step; return the number of its result."""
        self.steps.append((name, values))
        return len(self.steps)

    def norm(self, name: str, x: int) -> int:
        """Note a part and its input, if the block has the part."""
        if name not in self._parts:
            return x
        if not name.startswith("scale"):
            x = self.keep(f"{self._names.get(name, name)}.hook_input", x)
        return self.keep(name, x)

    def add(self, x: int | None, part: str, read: int, *last: str) -> int:
        """Note a part, its norm and scale, its activation and the sum with `x`."""
        read = self.norm(part, read)
        for name in last:
            read = self.norm(name, read)
        out = self.keep(f"hook_{part}_out", read)
        return out if x is None else self.keep("", x, out)

"""Call the attention functions of other libraries as their documentation says.

In the report, features that a library does not offer have the status "absent".
"""

import functools
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from qkv.extras import need
from qkv_marking.conformance._called import Callee, callee

_NO_FLOAT_MASK = frozenset({"float mask"})
_FAR = 1 << 30  # the size that stands for "no limit" on one side of a window


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


def _sdpa(backend: str | None = None) -> Callee:
    torch: Any = need("torch", "torch")
    attention = torch.nn.functional.scaled_dot_product_attention

    def sdpa(query: Any, key: Any, value: Any, **options: Any) -> Any:
        options["enable_gqa"] = query.shape[1] != key.shape[1]
        if backend is None:
            return attention(query, key, value, **options)
        kernels = torch.nn.attention
        with kernels.sdpa_kernel(getattr(kernels.SDPBackend, backend)):
            return attention(query, key, value, **options)

    says = f"torch {torch.__version__}, scaled_dot_product_attention"
    says += f", {backend.lower()}" if backend else ""
    names = _same("attn_mask", "is_causal", "scale")
    return Callee(sdpa, names, arrays="torch", aligned="start", says=says)


def _flex() -> Callee:
    torch: Any = need("torch", "torch")
    from torch.nn.attention import flex_attention as flex  # type: ignore[import-not-found,unused-ignore]

    def attention(query: Any, key: Any, value: Any, **options: Any) -> Any:
        """Call flex_attention with a score_mod and a mask_mod that apply the options."""
        B, H, L = query.shape[:3]
        S = key.shape[2]
        offset = options.get("q_offset", 0)
        left, right = options.get("window", (None, None))
        right = 0 if options.get("is_causal") and right is None else right
        right = min(right, 0) if options.get("is_causal") else right
        cap, slopes = options.get("softcap"), options.get("alibi_slopes")
        lengths, mask, bias = (
            None if options.get(name) is None else torch.as_tensor(options[name])
            for name in ("key_lengths", "attn_mask", "bias")
        )
        mask, bias = (None if x is None else x.expand(B, H, L, S) for x in (mask, bias))

        def score_mod(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            score = score if cap is None else cap * torch.tanh(score / cap)
            score = score if bias is None else score + bias[b, h, i, j]
            return score if slopes is None else score - slopes[h] * abs(i + offset - j)

        def mask_mod(b: Any, h: Any, i: Any, j: Any) -> Any:
            seen = j >= 0
            seen = seen if mask is None else seen & mask[b, h, i, j]
            seen = seen if left is None else seen & (j >= i + offset - left)
            seen = seen if right is None else seen & (j <= i + offset + right)
            return seen if lengths is None else seen & (j < lengths[b])

        hides = any(x is not None for x in (mask, left, right, lengths))
        return flex.flex_attention(
            query,
            key,
            value,
            score_mod=score_mod if any(x is not None for x in (cap, slopes, bias)) else None,
            block_mask=flex.create_block_mask(mask_mod, B, H, L, S, query.device)
            if hides
            else None,
            scale=options.get("scale"),
            enable_gqa=key.shape[1] != H,
            return_lse=options.get("return_lse", False),
        )

    names = _same("attn_mask", "is_causal", "scale", "q_offset", "window", "softcap", "bias")
    names |= _same("alibi_slopes", "key_lengths", "return_lse")
    says = f"torch {torch.__version__}, flex_attention, not compiled"
    return Callee(attention, names, _NO_FLOAT_MASK, arrays="torch", says=says)


def _jax() -> Callee:
    jax: Any = need("jax", "jax")

    def attend(query: Any, key: Any, value: Any, **options: Any) -> Any:
        query, key, value = (x.swapaxes(1, 2) for x in (query, key, value))
        if "window" in options:
            options["window"] = tuple(_FAR if x is None else x for x in options["window"])
        for name in ("key_lengths", "query_lengths"):
            if name in options:
                options[name] = options[name].astype(np.int32)
        named = {_JAX[name]: x for name, x in options.items()}
        return jax.nn.dot_product_attention(query, key, value, **named).swapaxes(1, 2)

    # JAX otherwise compiles each operation separately for each shape
    compiled = jax.jit(attend, static_argnames=("is_causal", "scale", "window"))

    def attention(query: Any, key: Any, value: Any, **options: Any) -> Any:
        # on a CPU, JAX supports float16 only outside `jax.jit`
        run = attend if query.dtype == np.float16 else compiled
        return run(query, key, value, **options)

    says = f"jax {jax.__version__}, nn.dot_product_attention"
    names = _same(*_JAX)
    return Callee(attention, names, _NO_FLOAT_MASK, arrays="jax", aligned="start", says=says)


_JAX = MappingProxyType(
    {
        "attn_mask": "mask",
        "bias": "bias",
        "is_causal": "is_causal",
        "key_lengths": "key_value_seq_lengths",
        "query_lengths": "query_seq_lengths",
        "scale": "scale",
        "window": "local_window_size",
    }
)


def _ort_attention() -> Callee:
    ort: Any = need("onnxruntime", "onnxruntime")

    def attention(query: Any, key: Any, value: Any, attn_mask: Any = None, **options: Any) -> Any:
        outputs: tuple[str, ...] = ("out",)
        attributes: dict[str, int | float] = {}
        if options.pop("return_weights", False):
            outputs, attributes["qk_matmul_output_mode"] = ("out", "", "", "weights"), 3
        for name, x in options.items():
            attributes[name] = int(x) if isinstance(x, bool) else float(x)
        inputs = {"query": query, "key": key, "value": value, "attn_mask": attn_mask}
        return _Operator("Attention", tuple(attributes.items()), outputs).run(inputs)

    names = _same("attn_mask", "return_weights", "is_causal", "scale", "softcap")
    says = f"onnxruntime {ort.__version__}, Attention"
    return Callee(attention, names, arrays="numpy", aligned="start", says=says)


def _ort_multi_head() -> Callee:
    ort: Any = need("onnxruntime", "onnxruntime")

    def rows(x: Any) -> Any:
        B, H, T, d = x.shape
        return x.swapaxes(1, 2).reshape(B, T, H * d)

    def attention(query: Any, key: Any, value: Any, bias: Any = None, **options: Any) -> Any:
        B, H, L, _ = query.shape
        inputs = {"query": rows(query), "key": rows(key), "value": rows(value), "": None}
        lengths = options.get("key_lengths")
        inputs["lengths"] = None if lengths is None else lengths.astype(np.int32)
        inputs["bias"] = bias if bias is None or bias.ndim == 4 else bias[None]
        attributes: dict[str, Any] = {"num_heads": H}
        if "scale" in options:
            attributes["scale"] = float(options["scale"])
        if options.get("is_causal"):
            attributes["unidirectional"] = 1
        named = tuple(attributes.items())
        out = _Operator("MultiHeadAttention", named, domain="com.microsoft").run(inputs)
        return out.reshape(B, L, H, value.shape[-1]).swapaxes(1, 2)

    says = f"onnxruntime {ort.__version__}, MultiHeadAttention"
    absent = frozenset({"grouped heads", "strides", "causal, L != S"})
    names = _same("bias", "is_causal", "key_lengths", "scale")
    return Callee(attention, names, absent, arrays="numpy", aligned="end", says=says)


_Kinds = tuple[tuple[str, str, int], ...]  # for each input, (name, dtype, number of axes)


def _kinds(inputs: Mapping[str, Any]) -> _Kinds:
    """Return `(name, dtype, number of axes)` per input; for None, return `("", "", 0)`."""
    return tuple(
        (name, x.dtype.name, x.ndim) if x is not None else ("", "", 0) for name, x in inputs.items()
    )


class _Operator(NamedTuple):
    """An ONNX operator, with its attributes as pairs `(name, value)`."""

    name: str
    attributes: tuple[tuple[str, Any], ...]
    outputs: tuple[str, ...] = ("out",)
    domain: str = ""

    def run(self, inputs: Mapping[str, Any]) -> Any:
        """Run the operator in onnxruntime; return a tuple if it has several outputs."""
        session = _session_of(self, _kinds(inputs))
        return _outputs(session, {name: x for name, x in inputs.items() if x is not None})


@functools.lru_cache(64)
def _session_of(operator: _Operator, kinds: _Kinds) -> Any:
    """Create an onnxruntime session for a model with a single operator and these inputs."""
    onnx: Any = need("onnx", "onnx")
    helper, types = onnx.helper, onnx.helper.np_dtype_to_tensor_dtype
    while kinds and not kinds[-1][0]:
        kinds = kinds[:-1]
    inputs = [
        helper.make_tensor_value_info(n, types(np.dtype(kind)), [f"{n}_{a}" for a in range(axes)])
        for n, kind, axes in kinds
        if n
    ]
    result = types(np.dtype(kinds[0][1]))
    names = [n for n, *_ in kinds]
    name, attributes, outputs, domain = operator
    node = helper.make_node(name, names, outputs, domain=domain, **dict(attributes))
    infos = [helper.make_tensor_value_info(n, result, None) for n in outputs if n]
    imports = [helper.make_opsetid("", 23)]
    imports += [helper.make_opsetid(domain, 1)] if domain else []
    graph = helper.make_graph([node], name, inputs, infos)
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    return _session(model.SerializeToString())


def _session(model: bytes | str) -> Any:
    """Load an onnxruntime model from bytes or from a file."""
    ort: Any = need("onnxruntime", "onnxruntime")
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _outputs(session: Any, inputs: Mapping[str, Any]) -> Any:
    outputs = session.run(None, inputs)
    return tuple(outputs) if len(outputs) > 1 else outputs[0]


def _openvino() -> Callee:
    ov: Any = need("openvino", "openvino")
    opset: Any = need("openvino.opset13", "openvino")

    @functools.lru_cache(64)
    def compile_model(kinds: _Kinds, causal: bool) -> Any:
        """Compile a model of the operator in the dtype of its inputs."""
        nodes = {
            name: opset.parameter([-1] * axes, np.dtype(kind).type, name=name)
            for name, kind, axes in kinds
        }
        names = ["query", "key", "value", "attention_mask", "scale"][: len(nodes)]
        node = opset.scaled_dot_product_attention(*map(nodes.get, names), causal=causal)
        model = ov.Model([node], [*nodes.values()], "sdpa")
        # the default precision depends on the processor: for some, it is always bfloat16
        core = ov.Core()
        can_half = "FP16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        hint = "f16" if kinds[0][1] == "float16" and can_half else "f32"
        return core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": hint})

    def attention(query: Any, key: Any, value: Any, **options: Any) -> Any:
        inputs = {"query": query, "key": key, "value": value}
        if "attn_mask" in options and options.get("is_causal"):
            # OpenVINO's documentation says that the operator ignores the mask if `causal` is true
            raise NotImplementedError("the operator ignores attention_mask in a causal call")
        if "attn_mask" in options:
            inputs["attention_mask"] = options["attn_mask"]
        elif "scale" in options:
            inputs["attention_mask"] = np.zeros((query.shape[2], key.shape[2]), query.dtype)
        if "scale" in options:
            inputs["scale"] = np.array([options["scale"]], query.dtype)
        model = compile_model(_kinds(inputs), bool(options.get("is_causal", False)))
        return model({name: np.ascontiguousarray(x) for name, x in inputs.items()})[0].copy()

    says = f"openvino {ov.__version__.partition('-')[0]}, scaled_dot_product_attention"
    names = _same("attn_mask", "is_causal", "scale")
    absent = frozenset({"strides"})
    return Callee(attention, names, absent, arrays="numpy", aligned="start", says=says)


def _mlx() -> Callee:
    mx: Any = need("mlx.core", "conformance")

    def attention(query: Any, key: Any, value: Any, **options: Any) -> Any:
        query, key, value = map(mx.array, (query, key, value))
        mask, sinks = (
            None if options.get(name) is None else mx.array(options[name])
            for name in ("attn_mask", "sinks")
        )
        if options.get("is_causal"):
            if mask is not None:
                raise NotImplementedError("`mask` can be 'causal' or an array, but not both")
            mask = "causal"
        scale = options.get("scale", query.shape[-1] ** -0.5)
        return np.array(
            mx.fast.scaled_dot_product_attention(
                query, key, value, scale=scale, mask=mask, sinks=sinks
            )
        )

    says = f"mlx {mx.__version__}, fast.scaled_dot_product_attention"
    names = _same("attn_mask", "is_causal", "scale", "sinks")
    return Callee(attention, names, frozenset({"strides"}), "numpy", "end", says)


def _keras() -> Callee:
    keras: Any = need("keras", "conformance")

    def attention(query: Any, key: Any, value: Any, **options: Any) -> Any:
        query, key, value = (x.swapaxes(1, 2) for x in (query, key, value))
        named = {_KERAS[name]: x for name, x in options.items()}
        out = keras.ops.dot_product_attention(query, key, value, **named)
        return keras.ops.convert_to_numpy(out).swapaxes(1, 2)

    says = f"keras {keras.__version__}, ops.dot_product_attention, {keras.backend.backend()}"
    names = _same(*_KERAS)
    return Callee(attention, names, _NO_FLOAT_MASK | {"strides"}, "numpy", "start", says)


_KERAS = MappingProxyType(
    {"attn_mask": "mask", "bias": "bias", "is_causal": "is_causal", "scale": "scale"}
)

BUILT_IN: Mapping[str, Callable[[], Callee]] = MappingProxyType(
    {
        "torch.sdpa": _sdpa,
        "torch.sdpa.math": lambda: _sdpa("MATH"),
        "torch.sdpa.flash": lambda: _sdpa("FLASH_ATTENTION"),
        "torch.flex": _flex,
        "onnxruntime.Attention": _ort_attention,
        "onnxruntime.MultiHeadAttention": _ort_multi_head,
        "openvino.sdpa": _openvino,
        "jax": _jax,
        "mlx": _mlx,
        "keras": _keras,
    }
)


def onnx_file(path: str, names: Mapping[str, str] | None) -> Callee:
    """Load an ONNX model whose first three inputs are query, key and value."""
    ort: Any = need("onnxruntime", "onnxruntime")
    session = _session(path)
    inputs = [argument.name for argument in session.get_inputs()]
    if len(inputs) < 3:
        names_there = ", ".join(inputs)
        raise ValueError(f"{path} has inputs {names_there}: they must begin with query, key, value")

    def attention(query: Any, key: Any, value: Any, **options: Any) -> Any:
        arrays = dict(zip(inputs, (query, key, value), strict=False)) | options
        return _outputs(session, {name: np.asarray(x) for name, x in arrays.items()})

    called = callee(attention, names, inputs[3:])
    return replace(called, arrays="numpy", says=f"onnxruntime {ort.__version__}")


def find_callee(function: Any) -> Callee | None:
    """Return a `Callee` for the attention of a known library, or None for other functions."""
    for module, name, target in (
        ("torch.nn.functional", "scaled_dot_product_attention", "torch.sdpa"),
        ("torch.nn.attention.flex_attention", "flex_attention", "torch.flex"),
        ("jax.nn", "dot_product_attention", "jax"),
    ):
        if module in sys.modules and function is getattr(sys.modules[module], name, None):
            return BUILT_IN[target]()
    return None

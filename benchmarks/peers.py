"""Run the work of the benchmarks with other libraries, each in its fastest configuration."""

import functools
import math
import os
import signal
from collections.abc import Callable
from importlib.util import find_spec
from textwrap import shorten
from time import perf_counter
from typing import Any

import numpy as np

PATIENCE = 180  # the number of seconds in which torch must compile a function

# The timed call, and a function that converts its result to a NumPy array (B, H, L, dv).
# A peer is None if its library is not installed.
Peer = tuple[Callable[[], Any], Callable[[Any], np.ndarray]]


def needs(*libraries: str):
    """Decorate a peer: return None if one of the libraries is missing."""

    def wrap(make: Callable[..., Peer]) -> Callable[..., Peer | None]:
        @functools.wraps(make)
        def made(*args, **options):
            return make(*args, **options) if all(map(find_spec, libraries)) else None

        return made

    return wrap


def threads() -> int:
    """Return the number of threads that a peer may use in this process."""
    return int(os.environ.get("QKV_NUM_THREADS", "1"))


# torch


@functools.cache
def torch():
    """Import torch, and set its number of threads; switch gradients off."""
    import torch

    torch.set_num_threads(threads())
    torch.set_grad_enabled(False)
    return torch


def tensors(*arrays: np.ndarray, dtype: str = "float32"):
    """Convert arrays to torch tensors, rounded if the type is bfloat16."""
    kind = getattr(torch(), dtype)
    return [torch().from_numpy(np.asarray(x, np.float32)).to(kind) for x in arrays]


def from_torch(tensor) -> np.ndarray:
    """Convert any tensor to a float32 array."""
    return tensor.float().numpy()


def fastest(calls: dict[Any, Callable[[], Any]]) -> Any:
    """Return the key of the fastest call; each call is timed after a warm-up."""
    times = {}
    for name, call in calls.items():
        call()
        begin = perf_counter()
        call()
        times[name] = perf_counter() - begin
    return min(times, key=times.__getitem__)


def if_compiled(call: Callable[[], Any]) -> Callable[[], Any] | str:
    """Return a call of a function that torch compiles, or the reason why torch cannot compile it.

    The first call compiles. `torch.compile` needs a C++ compiler, and gets three minutes.
    """
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.alarm(PATIENCE)
    try:
        call()
    except KeyboardInterrupt:  # no handler of `Exception` in torch may catch it
        if signal.alarm(0):  # there is time left: somebody has pressed Ctrl-C
            raise
        return f"not compiled within {PATIENCE} s"
    except Exception as error:
        return shorten(f"not compiled: {error}", 100, placeholder=" ...")
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return call


@needs("torch")
def torch_attention(q, k, v, *, mask=None, dtype="float32", **options) -> Peer:
    """Call `scaled_dot_product_attention` of torch, with boolean masks converted to floats."""
    tq, tk, tv = tensors(q, k, v, dtype=dtype)
    if mask is not None:  # torch would convert a boolean mask in each call
        options["attn_mask"] = torch().from_numpy(np.where(mask, 0, -np.inf).astype(np.float32))
    attend = torch().nn.functional.scaled_dot_product_attention
    return lambda: attend(tq, tk, tv, **options), from_torch


@needs("torch")
def torch_window(q, k, v, left: int, mask: np.ndarray) -> Peer:
    """Compute a window of `left` earlier keys in chunks of queries, each with only its own keys."""
    tq, tk, tv = tensors(q, k, v)
    attend = torch().nn.functional.scaled_dot_product_attention

    def in_chunks(size: int) -> Callable[[], Any]:
        parts = [
            (slice(i, i + size), slice(max(0, i - left), i + size))
            for i in range(0, len(mask), size)
        ]
        masks = [tensors(np.where(mask[i, j], 0, -np.inf))[0] for i, j in parts]
        return lambda: torch().cat(
            [
                attend(tq[:, :, i], tk[:, :, j], tv[:, :, j], attn_mask=m)
                for (i, j), m in zip(parts, masks, strict=True)
            ],
            2,
        )

    calls = {size: in_chunks(size) for size in (64, 128, 256, 512)}
    return calls[fastest(calls)], from_torch


@needs("torch")
def torch_flex(q, k, v, left: int) -> Peer | str:
    """Compute the same window with torch's compiled flex_attention."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    sizes = (None, None, q.shape[2], q.shape[2], "cpu")
    mask = create_block_mask(lambda _, __, i, j: (i >= j) & (i - j <= left), *sizes)
    inputs, attend = tensors(q, k, v), torch().compile(flex_attention, dynamic=False)
    call = if_compiled(lambda: attend(*inputs, block_mask=mask))
    return call if isinstance(call, str) else (call, from_torch)


@needs("torch")
def torch_gradient(q, k, v, above, dtype="float32", **options) -> Peer:
    """Compute attention and its gradients for query, key and value with autograd."""
    inputs = [x.requires_grad_() for x in tensors(q, k, v, dtype=dtype)]
    [grad_out] = tensors(above, dtype=dtype)
    attend = torch().nn.functional.scaled_dot_product_attention

    def call():
        with torch().enable_grad():
            return torch().autograd.grad(attend(*inputs, **options), inputs, grad_out)

    return call, lambda gradients: [from_torch(x) for x in gradients]


@needs("torch")
def torch_folded(q, k, v) -> Peer:
    """Treat the query heads of a group as queries of one head, so that torch reads K and V once."""
    tq, tk, tv = tensors(q, k, v)
    batch, heads, _, size = q.shape
    folded = (batch, k.shape[1], heads // k.shape[1], size)
    attend = torch().nn.functional.scaled_dot_product_attention
    return lambda: attend(tq.view(folded), tk, tv).view(q.shape), from_torch


@needs("torch")
def torch_softcap(q, k, v, softcap) -> Peer:
    """Compute softcap in separate operations, because torch has no argument for it."""
    tq, tk, tv = tensors(q, k, v)
    scale = 1 / math.sqrt(q.shape[-1])

    def call():
        scores = tq @ tk.transpose(-1, -2) * scale
        return (softcap * (scores / softcap).tanh()).softmax(-1) @ tv

    return call, from_torch


@needs("torch")
def torch_linear(x, weight, bias, dtype="float32") -> Peer:
    """Compute `gelu(linear(x))`; torch's weights are (out, in)."""
    tx, tw, tb = tensors(x, np.ascontiguousarray(weight.T), bias, dtype=dtype)
    F = torch().nn.functional
    return lambda: F.gelu(F.linear(tx, tw, tb)), from_torch


# onnxruntime


def session(node, feeds: dict[str, np.ndarray], results: dict[str, tuple[int, ...]], shared=()):
    """Make an onnxruntime session of one node, with inputs and outputs bound to memory.

    Returns a function without arguments, which runs the session and returns its results. `shared`
    is a pair: the name of a result, and the name of the input whose memory this result uses.
    """
    import onnxruntime
    from onnx import TensorProto, helper

    kinds = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.int32): TensorProto.INT32}
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node],
        "attention",
        [info(name, kinds[x.dtype], x.shape) for name, x in feeds.items()],
        [info(name, TensorProto.FLOAT, shape) for name, shape in results.items()],
    )
    opset = 24 if node.domain == "" else 21
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=11)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads()
    run = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    binding = run.io_binding()
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(x) for name, x in feeds.items()}
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    shared = dict(shared)
    outputs = {}
    for name, shape in results.items():
        outputs[name] = (
            values[shared[name]]
            if name in shared
            else onnxruntime.OrtValue.ortvalue_from_shape_and_type(shape, np.float32)
        )
        binding.bind_ortvalue_output(name, outputs[name])

    def call(keep=values):  # the bound memory must exist as long as the session
        run.run_with_iobinding(binding)
        return outputs

    return call


def rows_of(x: np.ndarray) -> np.ndarray:
    """Convert `(B, H, L, d)` to `(B, L, H * d)`, the layout of onnxruntime's own operators."""
    batch, heads, length, size = x.shape
    return np.ascontiguousarray(x.swapaxes(1, 2)).reshape(batch, length, heads * size)


def heads_of(out: str, heads: int):
    """Convert `(B, L, H * d)` to `(B, H, L, d)`."""

    def read(outputs) -> np.ndarray:
        x = outputs[out].numpy()
        return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)

    return read


@needs("onnxruntime")
def ort_multi_head(q, k, v, causal=False) -> Peer:
    """Call com.microsoft MultiHeadAttention, the fused operator of exported encoders."""
    from onnx import helper

    node = helper.make_node(
        "MultiHeadAttention",
        ["q", "k", "v"],
        ["out"],
        domain="com.microsoft",
        num_heads=q.shape[1],
        unidirectional=int(causal),
    )
    feeds = {"q": rows_of(q), "k": rows_of(k), "v": rows_of(v)}
    return session(node, feeds, {"out": feeds["q"].shape}), heads_of("out", q.shape[1])


@needs("onnxruntime")
def ort_attention(q, k, v, causal=False) -> Peer:
    """Call Attention of the ONNX standard, opset 24."""
    from onnx import helper

    node = helper.make_node("Attention", ["q", "k", "v"], ["out"], is_causal=int(causal))
    call = session(node, {"q": q, "k": k, "v": v}, {"out": (*q.shape[:3], v.shape[3])})
    return call, lambda outputs: outputs["out"].numpy()


@needs("onnxruntime")
def ort_grouped(q, k, v, window=None) -> Peer:
    """Call com.microsoft GroupQueryAttention, causal, for a text or for one new token."""
    from onnx import helper

    batch, heads, length, size = q.shape
    kv_heads, keys = k.shape[1:3]
    decoding = length < keys
    feeds = {
        "q": rows_of(q),
        "k": rows_of(k[:, :, -length:]),
        "v": rows_of(v[:, :, -length:]),
        "before": np.full(batch, keys - 1, np.int32),
        "total": np.array([keys], np.int32),
    }
    past = ["", ""]
    if decoding:
        past = ["past_k", "past_v"]
        feeds |= {"past_k": k.copy(), "past_v": v.copy()}
    node = helper.make_node(
        "GroupQueryAttention",
        ["q", "k", "v", *past, "before", "total"],
        ["out", "present_k", "present_v"],
        domain="com.microsoft",
        num_heads=heads,
        kv_num_heads=kv_heads,
        **({} if window is None else {"local_window_size": window}),
    )
    cache = (batch, kv_heads, keys, size)
    results = {"out": feeds["q"].shape, "present_k": cache, "present_v": cache}
    shared = {"present_k": "past_k", "present_v": "past_v"} if decoding else {}
    return session(node, feeds, results, shared), heads_of("out", heads)


# OpenVINO


@needs("openvino")
def openvino_attention(q, k, v, causal=False, dtype="float32") -> Peer:
    """Call OpenVINO's SDPA operator, with bfloat16 inputs and outputs on request."""
    import openvino
    from openvino import opset13

    kind = {"float32": openvino.Type.f32, "bfloat16": openvino.Type.bf16}[dtype]
    parameters = [opset13.parameter(list(x.shape), kind) for x in (q, k, v)]
    attend = opset13.scaled_dot_product_attention(*parameters, causal=causal)
    model = openvino.Model([opset13.result(attend)], parameters)
    options = {
        "INFERENCE_NUM_THREADS": threads(),
        "INFERENCE_PRECISION_HINT": {"float32": "f32", "bfloat16": "bf16"}[dtype],
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
    }
    request = openvino.Core().compile_model(model, "CPU", options).create_infer_request()
    for number, x in enumerate((q, k, v)):
        if dtype == "float32":
            tensor = openvino.Tensor(np.ascontiguousarray(x), shared_memory=True)
        else:
            tensor = openvino.Tensor(kind, list(x.shape))
            tensor.data.view(np.uint16)[...] = bits(x)
        request.set_input_tensor(number, tensor)

    def read(_) -> np.ndarray:
        out = request.get_output_tensor(0).data
        if dtype == "float32":
            return out
        return (np.ascontiguousarray(out).view(np.uint16).astype(np.uint32) << 16).view(np.float32)

    # without `share_outputs`, each call would copy its result
    return lambda: request.infer(share_outputs=True), read


def bits(x: np.ndarray) -> np.ndarray:
    """Return the bits of bfloat16 numbers."""
    import ml_dtypes

    return np.asarray(x, ml_dtypes.bfloat16).view(np.uint16)


@needs("openvino")
def openvino_folded(q, k, v) -> Peer:
    """Treat query heads as queries of one head: OpenVINO's operator has no grouped heads."""
    batch, heads, _, size = q.shape
    call, read = openvino_attention(q.reshape(batch, k.shape[1], heads // k.shape[1], size), k, v)
    return call, lambda result: read(result).reshape(q.shape)

"""Tests of each row of docs/migrating.md against the library that the row names."""

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import transformers
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch.nn.functional import scaled_dot_product_attention
from transformers import masking_utils
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward as gemma2
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward as gpt_oss
from transformers.models.llama.modeling_llama import eager_attention_forward as eager

import qkv

from .support import close

PAGE = Path(__file__).resolve().parents[2] / "docs" / "migrating.md"
# flash-attn needs a GPU; test_sentence_transformers.py tests sentence-transformers
NOT_RUN = {"flash-attn", "sentence-transformers"}
B, L, S, H, HKV, D, DV = 2, 3, 5, 4, 2, 8, 6

FIRST = "What goes wrong without an error"
SDPA = "torch.nn.functional.scaled_dot_product_attention"
MHA = "torch.nn.MultiheadAttention"
TRANSFORMERS = "transformers"
ONNX = "ONNX Attention (opset 23 and 24)"
ORT_MHA = "onnxruntime MultiHeadAttention"
ORT_GQA = "onnxruntime GroupQueryAttention"

PROVEN: set[tuple[str, str]] = set()


def proves(section: str, *rows: str) -> Callable[[Any], Any]:
    """Mark a test with the rows that it proves, named by their first cells."""

    def mark(test: Any) -> Any:
        PROVEN.update((section, row) for row in rows)
        return test

    return mark


def rows_of_page() -> set[tuple[str, str]]:
    """Return the section and the first cell of each row of each table."""
    found, section, above = set(), "", ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        if line.startswith("| ") and not line.startswith("| ---") and above.startswith("| "):
            found.add((section, line.split(" | ")[0].removeprefix("| ").replace("`", "")))
        above = line
    return {(section, row) for section, row in found if section not in NOT_RUN}


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def coins(*shape: int, seed: int = 1) -> np.ndarray:
    """Return a bool mask in which every query sees key 0 and some keys are masked."""
    mask = np.random.default_rng(seed).random(shape) < 0.6
    mask[..., 0] = True
    assert not mask.all()
    return mask


def tensors(*arrays: np.ndarray) -> list[torch.Tensor]:
    return [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]


@pytest.fixture
def three() -> list[np.ndarray]:
    """Return query (B, H, L, D), key (B, HKV, S, D) and value (B, HKV, S, DV)."""
    return [
        numbers(B, H, L, D, seed=2),
        numbers(B, HKV, S, D, seed=3),
        numbers(B, HKV, S, DV, seed=4),
    ]


def close_after(
    past: tuple[np.ndarray, ...], query: np.ndarray, new: list[np.ndarray], found: list[Any]
) -> None:
    """Compare causal attention after `past` keys and values with `found`: output, keys, values."""
    theirs, *present = found
    joined = [np.concatenate(pair, axis=2) for pair in zip(past, new, strict=True)]
    for ours, expected in zip(joined, present, strict=True):
        np.testing.assert_array_equal(ours, expected)
    cache = qkv.KVCache()
    cache.append(*past)
    outs = (
        qkv.attention(query, *joined, is_causal=True, q_offset="end"),
        qkv.attention(query, **cache.append(*new), is_causal=True),
    )
    for out in outs:
        close(flat(out) if theirs.ndim == 3 else out, theirs)


def flat(x: np.ndarray) -> np.ndarray:
    """Merge the heads, (B, H, L, d) -> (B, L, H * d)."""
    return np.ascontiguousarray(x.swapaxes(1, 2)).reshape(x.shape[0], x.shape[2], -1)


def split(x: np.ndarray, heads: int) -> np.ndarray:
    """Split the heads as the page does, (B, L, H * d) -> (B, H, L, d)."""
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


# torch.nn.functional.scaled_dot_product_attention


def sdpa(arrays: list[np.ndarray], **options: Any) -> np.ndarray:
    return scaled_dot_product_attention(*tensors(*arrays), enable_gqa=True, **options).numpy()


@proves(SDPA, "query, key, value", "enable_gqa", "scale", "dropout_p")
def test_sdpa(three: list[np.ndarray]) -> None:
    close(qkv.attention(*three), sdpa(three))
    close(qkv.attention(*three, scale=0.3), sdpa(three, scale=0.3, dropout_p=0.0))
    close(qkv.attention(*tensors(*three)), sdpa(three))
    with pytest.raises(TypeError, match="dropout_p"):
        qkv.attention(*three, dropout_p=0.0)
    with pytest.raises(RuntimeError):
        scaled_dot_product_attention(*tensors(*three))  # without enable_gqa


@proves(SDPA, "attn_mask, bool", "attn_mask, float")
@proves(FIRST, "qkv.attention: attn_mask", "scaled_dot_product_attention: attn_mask")
def test_sdpa_masks(three: list[np.ndarray]) -> None:
    for shape in ((L, S), (B, 1, L, S), (B, H, L, S)):
        mask = coins(*shape)
        close(qkv.attention(*three, mask), sdpa(three, attn_mask=torch.from_numpy(mask)))
    mask = numbers(L, S)
    close(qkv.attention(*three, mask), sdpa(three, attn_mask=torch.from_numpy(mask)))
    doubled = mask.astype(np.float64)
    close(qkv.attention(*three, doubled), qkv.attention(*three, mask))
    with pytest.raises(RuntimeError, match="dtype"):
        sdpa(three, attn_mask=torch.from_numpy(doubled))
    with pytest.raises(TypeError, match="bool"):
        qkv.attention(*three, coins(L, S).astype(int))
    with pytest.warns(UserWarning, match="holds only 0 and 1"):
        qkv.attention(*three, coins(L, S).astype(np.float32))


@proves(SDPA, "is_causal", "attn_mask=causal_lower_right(L, S)")
@proves(
    FIRST, "scaled_dot_product_attention(is_causal=True), causal_upper_left", "causal_lower_right"
)
def test_sdpa_causal(three: list[np.ndarray]) -> None:
    ours = qkv.attention(*three, is_causal=True, q_offset="start")
    close(ours, sdpa(three, is_causal=True))
    repeated = [three[0], *(np.repeat(x, H // HKV, axis=1) for x in three[1:])]
    for bias, offset in ((causal_upper_left, "start"), (causal_lower_right, "end")):
        theirs = scaled_dot_product_attention(*tensors(*repeated), attn_mask=bias(L, S))
        close(qkv.attention(*three, is_causal=True, q_offset=offset), theirs.numpy())
    mask = coins(L, S)
    with pytest.raises(RuntimeError):
        sdpa(three, is_causal=True, attn_mask=torch.from_numpy(mask))
    both = sdpa(three, attn_mask=torch.from_numpy(mask & np.tri(L, S, dtype=bool)))
    close(qkv.attention(*three, mask, is_causal=True, q_offset="start"), both)
    close(
        qkv.attention(*(x[:, :, :L] for x in three), is_causal=True),
        sdpa([x[:, :, :L] for x in three], is_causal=True),
    )


@proves(FIRST, "scaled_dot_product_attention, ONNX Attention")
def test_a_fully_masked_query_of_sdpa(three: list[np.ndarray]) -> None:
    mask = coins(L, S)
    mask[1] = False
    theirs = sdpa(three, attn_mask=torch.from_numpy(mask))
    assert (theirs[:, :, 1] == 0).all()
    close(qkv.attention(*three, mask), theirs)


@proves(FIRST, "(B, L, H, d)", "(B, L, H * d)", "(L, B, D), as batch_first=False")
def test_layouts(three: list[np.ndarray]) -> None:
    query = three[0]
    theirs = np.ascontiguousarray(query.swapaxes(1, 2))
    for ours in (theirs.swapaxes(1, 2), split(flat(query), H)):
        np.testing.assert_array_equal(ours, query)
        assert not ours.flags.owndata
    words = numbers(L, B, D)
    assert words.swapaxes(0, 1).shape == (B, L, D)


# torch.nn.MultiheadAttention


def from_torch(mha: torch.nn.MultiheadAttention) -> qkv.MultiHeadAttention:
    """Convert a layer with the function that the page shows."""
    (source,) = re.findall(r"```python\n(def from_torch.*?)```", PAGE.read_text("utf-8"), re.S)
    names = {"np": np, "qkv": qkv}
    exec(source, names)
    return names["from_torch"](mha)


def torch_layer(**options: Any) -> torch.nn.MultiheadAttention:
    """Return a layer of size 16 with four heads and nonzero biases."""
    generator = torch.Generator().manual_seed(0)
    layer = torch.nn.MultiheadAttention(16, H, **{"batch_first": True, **options}).eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.4)
    return layer


def call(layer: torch.nn.Module, *arrays: np.ndarray, **options: Any) -> list[np.ndarray]:
    options = {
        name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value
        for name, value in options.items()
    }
    with torch.no_grad():
        return [
            None if part is None else part.numpy() for part in layer(*tensors(*arrays), **options)
        ]


X, CONTEXT = numbers(B, L, 16, seed=5), numbers(B, S, 16, seed=6)


@proves(
    MHA,
    *("embed_dim, num_heads", "bias", "in_proj_weight, out_proj.weight", "query, key, value"),
    *("need_weights", "average_attn_weights", "dropout"),
)
@pytest.mark.parametrize("bias", [True, False])
def test_mha(bias: bool) -> None:
    theirs = torch_layer(bias=bias, dropout=0.5)
    ours = from_torch(theirs)
    assert ours.parameters.keys() == qkv.MultiHeadAttention(16, H, bias=bias).parameters.keys()
    out, weights = ours(X, CONTEXT, return_weights=True)
    expected = call(theirs, X, CONTEXT, CONTEXT, average_attn_weights=False)
    close(out, expected[0])
    close(weights, expected[1])
    close(ours(X), call(theirs, X, X, X, need_weights=False)[0])
    close(weights.mean(axis=-3), call(theirs, X, CONTEXT, CONTEXT)[1])


@proves(MHA, "kdim, vdim")
@pytest.mark.parametrize("bias", [True, False])
def test_mha_with_a_context_of_another_size(bias: bool) -> None:
    theirs = torch_layer(kdim=10, vdim=10, bias=bias)
    context = numbers(B, S, 10)
    close(from_torch(theirs)(X, context), call(theirs, X, context, context)[0])
    with pytest.raises(ValueError, match="both must take the same size"):
        from_torch(torch_layer(kdim=10, vdim=12))


@proves(MHA, "batch_first")
def test_mha_with_the_batch_second() -> None:
    theirs = torch_layer(batch_first=False)
    turned = np.ascontiguousarray(X.swapaxes(0, 1))
    close(from_torch(theirs)(turned.swapaxes(0, 1)).swapaxes(0, 1), call(theirs, *[turned] * 3)[0])


@proves(MHA, "add_zero_attn", "add_bias_kv")
def test_mha_with_a_key_of_zeros() -> None:
    theirs = torch_layer(add_zero_attn=True)
    for parameter in (theirs.in_proj_bias, theirs.out_proj.bias):
        torch.nn.init.normal_(parameter)
    ours = from_torch(theirs)(X, CONTEXT, sinks=np.zeros(H, np.float32))
    close(ours, call(theirs, X, CONTEXT, CONTEXT)[0])
    assert not {"bias_k", "bias_v"} & qkv.MultiHeadAttention(16, H, bias=True).parameters.keys()


@proves(
    MHA,
    *("key_padding_mask, bool", "attn_mask, bool", "attn_mask, (B * H, L, S)", "attn_mask, float"),
)
@proves(FIRST, "nn.MultiheadAttention: attn_mask, key_padding_mask")
def test_mha_masks() -> None:
    theirs = torch_layer()
    ours = from_torch(theirs)

    def expected(**options: Any) -> np.ndarray:
        return call(theirs, X, CONTEXT, CONTEXT, **options)[0]

    padding = np.arange(S) >= np.array([[3], [4]])
    close(
        ours(X, CONTEXT, attn_mask=~padding[:, None, None, :]), expected(key_padding_mask=padding)
    )
    close(ours(X, CONTEXT, key_lengths=[3, 4]), expected(key_padding_mask=padding))
    mask = ~coins(L, S)
    close(ours(X, CONTEXT, attn_mask=~mask), expected(attn_mask=mask))
    mask = ~coins(B * H, L, S)
    close(ours(X, CONTEXT, attn_mask=~mask.reshape(B, H, L, S)), expected(attn_mask=mask))
    mask = numbers(B * H, L, S)
    close(ours(X, CONTEXT, attn_mask=mask.reshape(B, H, L, S)), expected(attn_mask=mask))
    close(ours(X, CONTEXT, attn_mask=mask[0]), expected(attn_mask=mask[0]))


@proves(MHA, "is_causal")
def test_mha_causal() -> None:
    theirs = torch_layer()
    mask = torch.nn.Transformer.generate_square_subsequent_mask(L).numpy()
    expected = call(theirs, X, X, X, attn_mask=mask, is_causal=True)[0]
    close(from_torch(theirs)(X, is_causal=True), expected)
    with pytest.raises(RuntimeError, match="attn_mask"):
        call(theirs, X, X, X, is_causal=True)


@proves(FIRST, "nn.MultiheadAttention with need_weights=True")
def test_a_fully_masked_query_of_mha() -> None:
    theirs = torch_layer()
    mask = ~coins(L, S)
    mask[1] = True
    assert np.isnan(call(theirs, X, CONTEXT, CONTEXT, attn_mask=mask)[0][:, 1]).all()
    ours = from_torch(theirs)
    out = ours(X, CONTEXT, attn_mask=~mask)
    np.testing.assert_array_equal(out[:, 1], [ours.parameters["out_proj.bias"]] * B)
    close(out, call(theirs, X, CONTEXT, CONTEXT, attn_mask=mask, need_weights=False)[0])


# transformers


@pytest.fixture
def square() -> list[np.ndarray]:
    """Return a query, key and value with as many queries as keys."""
    return [numbers(B, H, S, D, seed=2), numbers(B, HKV, S, D, seed=3), numbers(B, HKV, S, D)]


def module(**attributes: Any) -> Any:
    """Return the attributes that an attention function reads from its layer."""
    return SimpleNamespace(
        num_key_value_groups=H // HKV, head_dim=D, is_causal=False, training=False, **attributes
    )


def interface(
    function: Any, arrays: list[np.ndarray], mask: Any = None, layer: Any = None, **options: Any
) -> tuple[np.ndarray, Any]:
    """Return the output (B, L, H, d) and the weights of an attention function of transformers."""
    if isinstance(mask, np.ndarray):
        mask = torch.from_numpy(mask)
    options = {"scaling": D**-0.5, **options}
    out, weights = function(layer or module(), *tensors(*arrays), mask, **options)
    return out.numpy(), None if weights is None else weights.numpy()


def their_mask(rule: Any, padding: Any = None, *, kind: Any = None, **sizes: int) -> np.ndarray:
    """Return the mask that `kind` (sdpa or eager) makes of a rule and a padding mask (B, S)."""
    sizes = {"batch_size": B, "q_length": S, "kv_length": S, **sizes}
    made = (kind or masking_utils.sdpa_mask)(
        mask_function=rule,
        attention_mask=None if padding is None else torch.from_numpy(padding).bool(),
        allow_is_causal_skip=False,
        **sizes,
    )
    return made.numpy()


@proves(
    TRANSFORMERS,
    "scaling",
    "dropout",
    "num_key_value_groups",
    "the output, (B, L, H, d)",
    "output_attentions",
)
def test_attention_functions(square: list[np.ndarray]) -> None:
    ours, weights = qkv.attention(*square, scale=0.3, return_weights=True)
    theirs = interface(eager, square, scaling=0.3, dropout=0.0)
    close(ours.swapaxes(1, 2), theirs[0])
    close(ours, theirs[0].swapaxes(1, 2))
    close(weights, theirs[1])
    close(ours.swapaxes(1, 2), interface(sdpa_attention_forward, square, scaling=0.3)[0])


@proves(TRANSFORMERS, "output_hidden_states", "output_attentions")
def test_a_model_returns_hidden_states_and_attentions(tmp_path: Path) -> None:
    sizes = {"hidden_size": 12, "num_attention_heads": 3, "num_hidden_layers": 2}
    config = transformers.BertConfig(
        vocab_size=6, intermediate_size=20, max_position_embeddings=8, **sizes
    )
    theirs = transformers.BertModel._from_config(config, attn_implementation="eager").eval()
    theirs.save_pretrained(tmp_path)
    words = ["[UNK]", "the", "cat", "sat", "on", "mat"]
    qkv.WordTokenizer({word: row for row, word in enumerate(words)}).save(
        tmp_path / "tokenizer.json"
    )
    trace = qkv.load(tmp_path).trace("the cat sat on the mat")
    ids = torch.tensor([[1, 2, 3, 4, 1, 5]])
    with torch.no_grad():
        out = theirs(ids, output_attentions=True, output_hidden_states=True)
    assert (len(out.attentions), len(out.hidden_states)) == (2, 3)
    for ours, expected in zip(trace.attentions, out.attentions, strict=True):
        close(ours, expected.numpy())
    for ours, expected in zip(trace.hidden_states, out.hidden_states, strict=True):
        close(ours, expected.numpy())


@proves(
    TRANSFORMERS,
    "attention_mask, (B, S) of 0 and 1",
    "attention_mask, 4-D, bool",
    "attention_mask, 4-D, float",
)
@proves(FIRST, "transformers: attention_mask of 0 and 1")
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_masks(square: list[np.ndarray], side: str) -> None:
    padding = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    padding = padding if side == "right" else padding[:, ::-1].copy()
    rule = masking_utils.bidirectional_mask_function
    ours = qkv.attention(*square, padding.astype(bool)[:, None, None, :])
    for function, kind in (
        (sdpa_attention_forward, masking_utils.sdpa_mask),
        (eager, masking_utils.eager_mask),
    ):
        mask = their_mask(rule, padding, kind=kind)
        assert mask.shape == (B, 1, S, S)
        close(ours.swapaxes(1, 2), interface(function, square, mask)[0])
        close(qkv.attention(*square, mask if mask.dtype == bool else mask == 0), ours)
        assert mask.dtype == (bool if kind is masking_utils.sdpa_mask else np.float32)
    if side == "right":
        close(qkv.attention(*square, key_lengths=padding.sum(-1)), ours)


@proves(FIRST, "transformers, eager")
def test_a_fully_masked_query_of_transformers(square: list[np.ndarray]) -> None:
    # causal, with padding on the left: the first queries of the second text see no key
    padding = np.array([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])
    mask = their_mask(masking_utils.causal_mask_function, padding, kind=masking_utils.eager_mask)
    assert mask.min() == np.finfo(np.float32).min
    theirs, weights = interface(eager, square, mask)
    assert (weights[1, :, :2] == 1 / S).all()
    close(qkv.attention(*square, mask).swapaxes(1, 2), theirs)
    assert (qkv.attention(*square, mask == 0)[1, :, :2] == 0).all()


@proves(TRANSFORMERS, "is_causal")
def test_sdpa_of_transformers_is_causal_without_a_mask(square: list[np.ndarray]) -> None:
    theirs = interface(sdpa_attention_forward, square, is_causal=True)[0]
    close(qkv.attention(*square, is_causal=True).swapaxes(1, 2), theirs)
    mask = coins(1, 1, S, S)
    theirs = interface(sdpa_attention_forward, square, mask, is_causal=True)[0]
    close(qkv.attention(*square, mask).swapaxes(1, 2), theirs)


@proves(TRANSFORMERS, "sliding_window", "sliding_window, bidirectional")
@pytest.mark.parametrize("size", [1, 2, 4])
def test_sliding_windows(square: list[np.ndarray], size: int) -> None:
    mask = their_mask(masking_utils.sliding_window_causal_mask_function(size))
    theirs = interface(sdpa_attention_forward, square, mask)[0]
    ours = qkv.attention(*square, is_causal=True, window=(size - 1, 0))
    close(ours.swapaxes(1, 2), theirs)
    mask = their_mask(masking_utils.sliding_window_bidirectional_mask_function(size))
    theirs = interface(sdpa_attention_forward, square, mask)[0]
    close(qkv.attention(*square, window=(size, size)).swapaxes(1, 2), theirs)
    assert transformers.ModernBertConfig(local_attention=2 * size).sliding_window == size


@proves(TRANSFORMERS, "softcap", "s_aux, sinks", "position_bias")
def test_softcap_sinks_and_position_bias(square: list[np.ndarray]) -> None:
    theirs = interface(gemma2, square, softcap=0.7)[0]
    close(qkv.attention(*square, softcap=0.7).swapaxes(1, 2), theirs)
    with pytest.raises(ValueError, match="softcap"):
        interface(sdpa_attention_forward, square, softcap=0.7)
    sinks = numbers(H)
    theirs = interface(gpt_oss, square, layer=module(sinks=torch.from_numpy(sinks)))
    out, weights = qkv.attention(*square, sinks=sinks, return_weights=True)
    close(out.swapaxes(1, 2), theirs[0])
    close(weights, theirs[1])
    bias = numbers(1, H, S, S)
    theirs = interface(sdpa_attention_forward, square, position_bias=torch.from_numpy(bias))[0]
    close(qkv.attention(*square, bias=bias).swapaxes(1, 2), theirs)


@proves(TRANSFORMERS, "past_key_values")
@proves(FIRST, "transformers with a cache")
def test_a_cache_of_transformers(square: list[np.ndarray]) -> None:
    cache, ours = transformers.DynamicCache(), qkv.KVCache()
    seen = 0
    for count in (2, 1, 2):
        new = slice(seen, seen + count)
        tokens = [x[:, :, new] for x in square]
        keys, values = cache.update(*tensors(*tokens[1:]), 0)
        assert cache.get_seq_length() == seen + count
        mask = their_mask(
            masking_utils.causal_mask_function,
            q_length=count,
            kv_length=seen + count,
            q_offset=seen,
        )
        theirs = interface(sdpa_attention_forward, [tokens[0], keys.numpy(), values.numpy()], mask)[
            0
        ]
        end = qkv.attention(tokens[0], keys.numpy(), values.numpy(), is_causal=True, q_offset="end")
        close(end.swapaxes(1, 2), theirs)
        out = qkv.attention(tokens[0], **ours.append(*tokens[1:]), is_causal=True)
        close(out.swapaxes(1, 2), theirs)
        seen += count


@proves(TRANSFORMERS, "head_mask")
def test_a_mask_of_heads(square: list[np.ndarray]) -> None:
    # transformers 4 multiplied the weights by head_mask, after the softmax
    assert "head_mask" not in transformers.BertModel.forward.__code__.co_varnames
    mask = np.array([1, 0, 1, 0.5], np.float32)
    out, weights = qkv.attention(*square, return_weights=True)
    masked = (weights * mask[:, None, None]) @ np.repeat(square[2], H // HKV, axis=1)
    close(out * mask[:, None, None], masked)


# ONNX and onnxruntime


def onnx_model(
    operator: str,
    inputs: dict[str, np.ndarray | None],
    *outputs: str,
    domain: str = "",
    opset: int = 23,
    **attributes: Any,
) -> tuple[Any, dict[str, np.ndarray]]:
    """Return a model of one operator, and its inputs except those that are None."""
    onnx = pytest.importorskip("onnx", reason="onnx, which writes the models, is not installed")
    kinds = {"bool": "BOOL", "int32": "INT32", "int64": "INT64", "float32": "FLOAT"}
    given = {name: array for name, array in inputs.items() if array is not None}
    last = max(place for place, name in enumerate(inputs) if name in given)
    outputs = outputs or ("Y",)
    describe = onnx.helper.make_tensor_value_info
    node = onnx.helper.make_node(
        operator,
        [name if name in given else "" for name in [*inputs][: last + 1]],
        list(outputs),
        domain=domain,
        **attributes,
    )
    graph = onnx.helper.make_graph(
        [node],
        operator,
        [
            describe(name, getattr(onnx.TensorProto, kinds[array.dtype.name]), array.shape)
            for name, array in given.items()
        ],
        [describe(name, onnx.TensorProto.FLOAT, None) for name in outputs if name],
    )
    opsets = [onnx.helper.make_opsetid("", opset)]
    if domain:
        opsets.append(onnx.helper.make_opsetid(domain, 1))
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10), given


def onnx_run(operator: str, inputs: dict[str, Any], *outputs: str, **options: Any) -> list[Any]:
    """Run a model of one operator in onnxruntime."""
    model, given = onnx_model(operator, inputs, *outputs, **options)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, given)


both_opsets = pytest.mark.parametrize("opset", [23, 24])


def onnx_attention(
    arrays: list[np.ndarray], *outputs: str, attn_mask: Any = None, past: Any = None, **options: Any
) -> list[np.ndarray]:
    names = dict(zip(("Q", "K", "V"), arrays, strict=True))
    past_key, past_value = past or (None, None)
    lengths = options.pop("nonpad_kv_seqlen", None)
    names |= {"attn_mask": attn_mask, "past_key": past_key, "past_value": past_value}
    return onnx_run("Attention", names | {"nonpad_kv_seqlen": lengths}, *outputs, **options)


@proves(
    ONNX, "Q, K, V, 4-D", "Q, K, V, 3-D", "scale", "softcap", "attn_mask, bool", "attn_mask, float"
)
@proves(FIRST, "ONNX Attention: attn_mask")
@both_opsets
def test_onnx(three: list[np.ndarray], opset: int) -> None:
    close(qkv.attention(*three), onnx_attention(three, opset=opset)[0])
    (theirs,) = onnx_attention(
        [flat(x) for x in three], opset=opset, q_num_heads=H, kv_num_heads=HKV
    )
    words = zip([flat(x) for x in three], (H, HKV, HKV), strict=True)
    close(flat(qkv.attention(*(split(x, heads) for x, heads in words))), theirs)
    for mask in (coins(L, S), coins(B, H, L, S), numbers(L, S)):
        (theirs,) = onnx_attention(three, attn_mask=mask, opset=opset, scale=0.4, softcap=0.7)
        close(qkv.attention(*three, mask, scale=0.4, softcap=0.7), theirs)
    (theirs,) = onnx_attention(three, attn_mask=mask, opset=opset, softcap=0.0)
    close(qkv.attention(*three, mask), theirs)


@pytest.mark.parametrize("kind", [bool, np.float32])
def test_a_short_mask_in_opset_24(three: list[np.ndarray], kind: type) -> None:
    # compared with ONNX's own reference: onnxruntime 1.31 refuses this mask
    mask = coins(L, S - 1) if kind is bool else numbers(L, S - 1)
    names = dict(zip(("Q", "K", "V"), three, strict=True))
    model, given = onnx_model("Attention", names | {"attn_mask": mask}, "Y", opset=24)
    (theirs,) = pytest.importorskip("onnx.reference").ReferenceEvaluator(model).run(None, given)
    filled = np.full((L, S), False if kind is bool else -np.inf, kind)
    filled[:, :-1] = mask
    close(qkv.attention(*three, filled), theirs)


@proves(ONNX, "is_causal", "past_key, past_value")
@proves(FIRST, "ONNX Attention without a cache", "ONNX Attention with past_key")
@both_opsets
def test_onnx_causal(three: list[np.ndarray], opset: int) -> None:
    (theirs,) = onnx_attention(three, opset=opset, is_causal=1)
    close(qkv.attention(*three, is_causal=True, q_offset="start"), theirs)
    mask = coins(L, S)
    (theirs,) = onnx_attention(three, attn_mask=mask, opset=opset, is_causal=1)
    close(qkv.attention(*three, mask, is_causal=True, q_offset="start"), theirs)
    query, key, value = (x[:, :, :L] for x in three)
    past = numbers(B, HKV, 4, D, seed=7), numbers(B, HKV, 4, DV, seed=8)
    names, options = ("Y", "present_key", "present_value"), {"opset": opset, "is_causal": 1}
    found = onnx_attention([query, key, value], *names, past=past, **options)
    close_after(past, query, [key, value], found)


@proves(ONNX, "nonpad_kv_seqlen")
@proves(FIRST, "ONNX Attention with nonpad_kv_seqlen")
def test_onnx_lengths(three: list[np.ndarray]) -> None:
    n = np.array([4, 2])  # the second has fewer keys than queries
    (theirs,) = onnx_attention(three, nonpad_kv_seqlen=n, opset=24)
    close(qkv.attention(*three, key_lengths=n), theirs)
    (theirs,) = onnx_attention(three, nonpad_kv_seqlen=n, opset=24, is_causal=1)
    ours = qkv.attention(*three, is_causal=True, key_lengths=n, q_offset=n - L)
    close(ours, theirs)
    assert (ours[1, :, 0] == 0).all()


@proves(ONNX, *(f"qk_matmul_output_mode={mode}" for mode in range(4)))
@both_opsets
def test_onnx_scores(three: list[np.ndarray], opset: int) -> None:
    mask = coins(L, S)
    trace = qkv.trace_attention(*three, mask, softcap=0.7)
    names = ("scores_scaled", "scores_capped", "scores", "pattern")
    for mode, name in enumerate(names):
        found = onnx_attention(
            three,
            *("Y", "", "", "scores"),
            attn_mask=mask,
            opset=opset,
            softcap=0.7,
            qk_matmul_output_mode=mode,
        )[-1]
        shown = trace[name]
        if name == "scores":  # masked scores: -inf in ours, below -1e30 in theirs
            assert (found[np.isneginf(shown)] < -1e30).all()
            shown, found = np.where(mask, shown, 0), np.where(mask, found, 0)
        close(shown, found)
    _, weights = qkv.attention(*three, mask, softcap=0.7, return_weights=True)
    close(weights, found)


@proves(ONNX, "softmax_precision")
def test_halves_are_computed_in_float32(three: list[np.ndarray]) -> None:
    halves = [x.astype(np.float16) for x in three]
    out, weights = qkv.attention(*halves, return_weights=True)
    assert (out.dtype, weights.dtype) == (np.float16, np.float32)
    exact = qkv.attention(*(x.astype(np.float32) for x in halves))
    np.testing.assert_array_equal(out, exact.astype(np.float16))


@proves(FIRST, "scaled_dot_product_attention, ONNX Attention")
@both_opsets
def test_a_fully_masked_query_of_onnx(three: list[np.ndarray], opset: int) -> None:
    mask = coins(L, S)
    mask[1] = False
    (theirs,) = onnx_attention(three, attn_mask=mask, opset=opset)
    assert (theirs[:, :, 1] == 0).all()
    close(qkv.attention(*three, mask), theirs)


MHA_INPUTS = (
    *("query", "key", "value", "bias", "key_padding_mask"),
    *("attention_bias", "past_key", "past_value"),
)
GQA_INPUTS = (
    *("query", "key", "value", "past_key", "past_value", "seqlens_k", "total_sequence_length"),
    *("cos_cache", "sin_cache", "position_ids", "attention_bias", "head_sink"),
)


def ort_mha(arrays: list[np.ndarray], *outputs: str, **options: Any) -> list[np.ndarray]:
    given = dict(zip(("query", "key", "value"), map(flat, arrays), strict=True))
    inputs = {name: options.pop(name, given.get(name)) for name in MHA_INPUTS}
    return onnx_run(
        "MultiHeadAttention", inputs, *outputs, domain="com.microsoft", num_heads=H, **options
    )


@pytest.fixture
def whole() -> list[np.ndarray]:
    """Return a query, key and value with as many key heads as query heads."""
    return [numbers(B, H, L, D, seed=2), numbers(B, H, S, D, seed=3), numbers(B, H, S, DV, seed=4)]


@proves(ORT_MHA, "query, key, value", "bias", "attention_bias", "scale", "qk, an output")
def test_ort_mha(whole: list[np.ndarray]) -> None:
    theirs, scores = ort_mha(whole, "Y", "", "", "qk")
    close(flat(qkv.attention(*whole)), theirs)
    close(qkv.trace_attention(*whole)["scores_scaled"], scores)
    bias = numbers(B, H, L, S)
    (theirs,) = ort_mha(whole, attention_bias=bias, scale=0.3)
    close(flat(qkv.attention(*whole, bias=bias, scale=0.3)), theirs)
    bias = numbers(H * (D + D + DV))
    shifted = [
        split(flat(x) + part, H)
        for x, part in zip(whole, np.split(bias, [H * D, 2 * H * D]), strict=True)
    ]
    close(flat(qkv.attention(*shifted)), ort_mha(whole, bias=bias)[0])


@proves(
    ORT_MHA, "key_padding_mask, (B, S)", "key_padding_mask, (B, L, S)", "key_padding_mask, (B,)"
)
@proves(FIRST, "onnxruntime MultiHeadAttention: key_padding_mask of 0 and 1")
def test_ort_mha_masks(whole: list[np.ndarray]) -> None:
    lengths = np.array([4, 2], np.int32)
    mask = (np.arange(S) < lengths[:, None]).astype(np.int32)
    (theirs,) = ort_mha(whole, key_padding_mask=mask)
    close(flat(qkv.attention(*whole, mask.astype(bool)[:, None, None, :])), theirs)
    close(ort_mha(whole, key_padding_mask=lengths)[0], theirs)
    close(flat(qkv.attention(*whole, key_lengths=lengths)), theirs)
    mask = coins(B, L, S).astype(np.int32)
    (theirs,) = ort_mha(whole, key_padding_mask=mask)
    close(flat(qkv.attention(*whole, mask.astype(bool)[:, None])), theirs)


@proves(ORT_MHA, "mask_filter_value")
@proves(FIRST, "onnxruntime MultiHeadAttention")
def test_a_fully_masked_query_of_ort_mha(whole: list[np.ndarray]) -> None:
    mask = np.array([[1] * S, [0] * S], np.int32)
    (theirs,) = ort_mha(whole, key_padding_mask=mask)
    close(flat(qkv.attention(*whole)), theirs, 1e-3)  # scores near -10000 are less exact
    ours = qkv.attention(*whole, mask.astype(bool)[:, None, None, :])
    assert (ours[1] == 0).all()


@proves(ORT_MHA, "unidirectional", "past_key, past_value")
def test_ort_mha_causal(whole: list[np.ndarray]) -> None:
    query, key, _ = (x[:, :, :L] for x in whole)
    value = numbers(B, H, L, D)
    (theirs,) = ort_mha([query, key, value], unidirectional=1)
    close(flat(qkv.attention(query, key, value, is_causal=True)), theirs)
    past = numbers(B, H, 4, D, seed=7), numbers(B, H, 4, D, seed=8)
    options = {"past_key": past[0], "past_value": past[1], "unidirectional": 1}
    found = ort_mha([query, key, value], "Y", "present_key", "present_value", **options)
    close_after(past, query, [key, value], found)


def ort_gqa(
    arrays: list[np.ndarray], *outputs: str, past: Any = None, lengths: Any = None, **options: Any
) -> list[np.ndarray]:
    given = dict(zip(("query", "key", "value"), map(flat, arrays), strict=True))
    texts, heads, count, size = arrays[1].shape
    past = past or [np.zeros((texts, heads, 0, size), np.float32)] * 2
    total = past[0].shape[2] + count
    lengths = np.full(texts, total) if lengths is None else np.asarray(lengths)
    given |= {
        "past_key": past[0],
        "past_value": past[1],
        "seqlens_k": (lengths - 1).astype(np.int32),
        "total_sequence_length": np.array(total, np.int32),
    }
    inputs = {name: options.pop(name, given.get(name)) for name in GQA_INPUTS}
    return onnx_run(
        "GroupQueryAttention",
        inputs,
        *(outputs or ("Y", "present_key", "present_value")),
        domain="com.microsoft",
        num_heads=H,
        kv_num_heads=heads,
        **options,
    )


@pytest.fixture
def grouped() -> list[np.ndarray]:
    """Return heads of size 16, as onnxruntime's rotary positions require."""
    return [numbers(B, H, S, 16, seed=2), numbers(B, HKV, S, 16, seed=3), numbers(B, HKV, S, 16)]


@proves(ORT_GQA, "causal", "scale", "softcap", "smooth_softmax", "head_sink", "attention_bias")
def test_ort_gqa(grouped: list[np.ndarray]) -> None:
    ours = {"scale": 0.3, "softcap": 0.7}
    close(flat(qkv.attention(*grouped, **ours)), ort_gqa(grouped, causal=0, **ours)[0])
    close(flat(qkv.attention(*grouped, is_causal=True)), ort_gqa(grouped)[0])
    close(ort_gqa(grouped, softcap=0.0, causal=1)[0], ort_gqa(grouped)[0])
    sinks = np.zeros(H, np.float32)
    theirs = ort_gqa(grouped, smooth_softmax=1)[0]
    close(flat(qkv.attention(*grouped, is_causal=True, sinks=sinks)), theirs)
    sinks, bias = numbers(H), numbers(1, H, S, S)
    theirs = ort_gqa(grouped, head_sink=sinks, attention_bias=bias)[0]
    close(flat(qkv.attention(*grouped, is_causal=True, sinks=sinks, bias=bias)), theirs)


@proves(ORT_GQA, "local_window_size")
@pytest.mark.parametrize("size", [1, 2, 4])
def test_ort_gqa_windows(grouped: list[np.ndarray], size: int) -> None:
    ours = qkv.attention(*grouped, is_causal=True, window=(size - 1, 0))
    close(flat(ours), ort_gqa(grouped, local_window_size=size)[0])


@proves(ORT_GQA, "seqlens_k", "total_sequence_length")
def test_ort_gqa_lengths(grouped: list[np.ndarray]) -> None:
    lengths = np.array([5, 3])
    theirs = ort_gqa(grouped, lengths=lengths)[0]
    ours = flat(qkv.attention(*grouped, is_causal=True, key_lengths=lengths))
    for row, length in enumerate(lengths):  # the rest is padding
        close(ours[row, :length], theirs[row, :length])


@proves(ORT_GQA, "past_key, past_value")
@proves(FIRST, "onnxruntime GroupQueryAttention")
def test_ort_gqa_with_a_cache(grouped: list[np.ndarray]) -> None:
    query, *new = (x[:, :, :1] for x in grouped)
    past = numbers(B, HKV, 4, 16, seed=7), numbers(B, HKV, 4, 16, seed=8)
    close_after(past, query, new, ort_gqa([query, *new], past=past))


@proves(ORT_GQA, "do_rotary, cos_cache, sin_cache", "rotary_interleaved")
@pytest.mark.parametrize("interleaved", [False, True])
def test_ort_gqa_rotary(grouped: list[np.ndarray], interleaved: bool) -> None:
    angles = np.outer(np.arange(S + 3), 10000.0 ** (-np.arange(8) / 8))  # (positions, size / 2)
    theirs = ort_gqa(
        grouped,
        cos_cache=np.cos(angles).astype(np.float32),
        sin_cache=np.sin(angles).astype(np.float32),
        do_rotary=1,
        rotary_interleaved=int(interleaved),
    )[0]
    query, key = (qkv.apply_rotary(x, np.arange(S), interleaved=interleaved) for x in grouped[:2])
    close(flat(qkv.attention(query, key, grouped[2], is_causal=True)), theirs)


@proves(ORT_GQA, "qk_output=1", "qk_output=2")
def test_ort_gqa_scores(grouped: list[np.ndarray]) -> None:
    trace = qkv.trace_attention(*grouped, is_causal=True, softcap=0.7)
    visible = np.tri(S, dtype=bool)
    for which, name in ((1, "scores"), (2, "pattern")):
        found = ort_gqa(
            grouped, *("Y", "present_key", "present_value", "qk"), qk_output=which, softcap=0.7
        )[-1]
        close(np.where(visible, trace[name], 0), np.where(visible, found, 0))


# The page itself


def test_every_row_is_proven() -> None:
    assert rows_of_page() == PROVEN
    assert len(PROVEN) > 80

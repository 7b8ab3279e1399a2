"""Read programs that Tracr has compiled into transformers."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qkv._argument_errors import invalid, public_call, value_error
from qkv.arrays import quote
from qkv.models.files.read import ModelError
from qkv.models.model import Model
from qkv.models.untrained import fresh_model

_NAMES = {  # the names of the linear layers in Tracr and here
    "attn/query": "attn.q_proj",
    "attn/key": "attn.k_proj",
    "attn/value": "attn.v_proj",
    "attn/linear": "attn.out_proj",
    "mlp/linear_1": "mlp.up_proj",
    "mlp/linear_2": "mlp.down_proj",
}


@public_call("load_tracr")
def load_tracr(
    program: Any,
    *,
    num_heads: int | None = None,
    causal: bool | None = None,
    labels: Sequence[str] | None = None,
    outputs: str | None = None,
    dtype: Any = np.float64,
) -> Model:
    """Make a model from a program that Tracr has compiled.

    The model has the family `qkv-plain`, without norms: the residual stream, scores, patterns and
    outputs of all parts equal those of Tracr. Pass token ids from Tracr's encoder:
    `model.trace(program.input_encoder.encode(["bos", "a", "b"]), logits=True)`.

    Args:
        program: the result of `tracr.compiler.compiling.compile_rasp_to_model`, or its `params`.
        num_heads: the number of heads; required if `program` is only `params`.
        causal: whether a token sees only itself and earlier tokens; required if `program` is only
            `params`.
        labels: the names of the D directions of the residual stream; by default
            `program.residual_labels`.
        outputs: the variable that the program computes, such as "reverse_1"; the logits are then
            the directions "reverse_1:..." of the last residual stream, in order. By default, the
            logits are all D directions.
        dtype: float32 or float64.

    Raises:
        ModelError: a parameter is missing or has the wrong shape, or the model has norms.
        ValueError: `num_heads` or `causal` is missing, or no direction has the name `outputs`.

    Source:
        Lindner et al. 2023, "Tracr: Compiled Transformers as a Laboratory for Interpretability".
    """
    config = getattr(program, "model_config", None)
    params: Mapping[str, Mapping[str, Any]] = getattr(program, "params", program)
    num_heads = getattr(config, "num_heads", None) if num_heads is None else num_heads
    causal = getattr(config, "causal", None) if causal is None else causal
    if num_heads is None or causal is None:
        raise value_error("`program` has parameters only; pass num_heads= and causal= too")
    if getattr(config, "layer_norm", False) or any("layer_norm" in key for key in params):
        raise invalid(ModelError, "`program` has norms; pass a program that Tracr has compiled")
    found = {
        f"{key}/{part}": np.asarray(x) for key, own in params.items() for part, x in own.items()
    }
    layers = sum(name.endswith("/attn/query/w") for name in found)
    names = {"embed.weight": "token_embed/embeddings", "pos_embed.weight": "pos_embed/embeddings"}
    for layer in range(max(1, layers)):
        for theirs, ours in _NAMES.items():
            key = f"transformer/layer_{layer}/{theirs}"
            names |= {f"blocks.{layer}.{ours}.weight": f"{key}/w"}
            names |= {f"blocks.{layer}.{ours}.bias": f"{key}/b"}
    missing = [name for name in names.values() if name not in found]
    if missing:
        raise invalid(ModelError, f"`program` has no parameter {missing[0]}; pass all parameters")
    kept = {ours: found[theirs] for ours, theirs in names.items()}
    (vocabulary, dim), positions = kept["embed.weight"].shape, len(kept["pos_embed.weight"])
    labels = getattr(program, "residual_labels", ()) if labels is None else labels
    columns = np.eye(dim)[:, _directions(outputs, labels, dim)]
    kept |= {"head.out_proj.weight": columns, "head.out_proj.bias": np.zeros(columns.shape[1])}
    sizes = {
        "vocab_size": vocabulary,
        "output_vocab_size": columns.shape[1],
        "hidden_size": dim,
        "num_attention_heads": num_heads,
        "head_dim": kept["blocks.0.attn.q_proj.weight"].shape[1] // num_heads,
        "num_hidden_layers": layers,
        "intermediate_size": kept["blocks.0.mlp.up_proj.weight"].shape[1],
        "max_position_embeddings": positions,
    }
    about = {"model_type": "qkv-plain", "norms": False, "causal": causal}
    model = fresh_model(about | sizes, name="tracr", dtype=dtype)
    return model.with_parameters({name: x.astype(dtype) for name, x in kept.items()})


def _directions(outputs: str | None, labels: Sequence[str], dim: int) -> list[int]:
    """Return the numbers of the directions of the residual stream that hold the outputs."""
    if outputs is None:
        return list(range(dim))
    names = [label.partition(":")[0] for label in labels]
    found = [number for number, name in enumerate(names) if name == outputs]
    if not found:
        known = ", ".join(dict.fromkeys(names)) or "not known: pass labels="
        raise value_error(f"`outputs` is {quote(outputs)}, but the variables are {known}")
    return found

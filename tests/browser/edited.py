"""A float64 reference of BERT and its head, with edits, computed from a model's parameters."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from qkv.models import Model

Edit = dict[str, Any]


class Result(NamedTuple):
    pattern: np.ndarray  # (layers, H, T, T)
    resid: np.ndarray  # (layers + 1, T, D)
    logits: np.ndarray  # (T, V)
    inside: list[dict[str, np.ndarray]]  # by layer: activations by their names in a trace


def run(model: Model, ids: list[int], edits: list[Edit]) -> Result:
    p = {name: np.asarray(array, np.float64) for name, array in model.parameters.items()}
    eps, layers, heads = model.design.eps, model.num_layers, model.num_heads

    def dense(x: np.ndarray, name: str) -> np.ndarray:
        return x @ p[f"{name}.weight"] + p[f"{name}.bias"]

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
        return x * p[f"{name}.weight"] + p[f"{name}.bias"]

    def cut(x: np.ndarray) -> np.ndarray:  # (T, D) -> (H, T, d)
        return x.reshape(len(x), heads, -1).swapaxes(0, 1)

    def changed(name: str, layer: int, x: np.ndarray) -> np.ndarray:
        """Apply the edits of an activation to x: (T, D), or (H, T, T) for the pattern."""
        for edit in edits:
            if (edit.get("at"), edit.get("layer")) == (name, layer):
                x = CHANGES[edit["op"]](x.copy(), edit, heads)
        return x

    def of(op: str) -> list[Edit]:
        return [edit for edit in edits if edit["op"] == op]

    ids, edits = list(ids), [with_source(model, edit) for edit in edits]
    for edit in of("swap"):
        ids[edit["token"]] = model.tokenizer.vocabulary[edit["with"]]
    size = len(ids)
    x = p["embed.weight"][ids] + p["pos_embed.weight"][:size] + p["token_type_embed.weight"][0]
    x = norm(x, "embed_norm")
    patterns, resid, inside = [], [x], []
    scale = [1 / math.sqrt(model.dim / heads), *(edit["value"] for edit in of("scale"))][-1]
    for layer in range(layers):
        here = f"blocks.{layer}"
        x = changed("resid_pre", layer, x)
        flat = {name: changed(name, layer, dense(x, f"{here}.attn.{name}_proj")) for name in "qkv"}
        q, k, v = (cut(flat[name]) for name in "qkv")
        scores = q @ k.swapaxes(1, 2) * scale  # (H, T, T)
        for edit in of("hide"):
            scores[:, :, edit["token"]] = -np.inf
        if of("causal"):
            scores[:, ~np.tri(size, dtype=bool)] = -np.inf
        for edit in of("mask"):
            if edit.get("layer") in (None, layer):
                head = edit.get("head")
                which = slice(None) if head is None else head
                scores[which, edit["query"], edit["key"]] = -np.inf
        with np.errstate(invalid="ignore"):
            pattern = np.exp(scores - scores.max(-1, keepdims=True))
            pattern = np.nan_to_num(pattern / pattern.sum(-1, keepdims=True))
        for edit in of("row"):
            if edit["layer"] == layer:
                pattern[edit["head"], edit["query"]] = edit["weights"]
        pattern = changed("pattern", layer, pattern)
        z = pattern @ v  # (H, T, d)
        for edit in of("ablate"):
            if edit["layer"] == layer:
                which = slice(None) if edit.get("head") is None else edit["head"]
                output = edit.get("with", 0)
                # "mean" is the mean of z over the tokens, in a run whose only edits are swaps.
                if isinstance(output, str):
                    plain = run(model, ids, []).inside[layer]["z"].mean(0)
                    output = plain.reshape(heads, 1, -1)[which]
                z[which] = output
        z = changed("z", layer, z.swapaxes(0, 1).reshape(size, -1))  # (T, D)
        attn_out = changed("attn_out", layer, dense(z, f"{here}.attn.out_proj"))
        middle = norm(x + attn_out, f"{here}.norm1")
        pre = dense(middle, f"{here}.mlp.up_proj")
        post = gelu(pre)
        mlp_out = changed("mlp_out", layer, dense(post, f"{here}.mlp.down_proj"))
        resid_post = changed("resid_post", layer, middle + mlp_out)
        inside.append({**flat, "z": z, "attn_out": attn_out, "resid_mid": x + attn_out})
        inside[-1] |= {"pre": pre, "post": post, "mlp_out": mlp_out, "resid_post": resid_post}
        x = norm(resid_post, f"{here}.norm2")
        patterns.append(pattern)
        resid.append(x)
    ready = norm(gelu(dense(x, "head.dense_proj")), "head.norm")
    logits = ready @ p["embed.weight"].T + p["head.out_proj.bias"]
    return Result(np.array(patterns), np.array(resid), logits, inside)


def positions(x: np.ndarray, edit: Edit) -> np.ndarray:
    """Return which rows of x an edit applies to."""
    return np.isin(np.arange(len(x)), [edit.get("token", range(len(x)))])


def part(x: np.ndarray, edit: Edit, heads: int) -> np.ndarray:
    """Return a view of the part of x (T, D), or of the pattern, to which an edit applies."""
    token, head = (edit.get(name, slice(None)) for name in ("token", "head"))
    if edit["at"] == "pattern":
        return x[head, token]
    if edit["at"] in ("q", "k", "v", "z"):
        return x.reshape(len(x), heads, -1)[token, head]
    return x[token]


def with_value(x: np.ndarray, edit: Edit, heads: int) -> np.ndarray:
    part(x, edit, heads)[...] = edit["value"]
    return x


def with_source(model: Model, edit: Edit) -> Edit:
    """Return a patch with its value from the source text; return any other edit unchanged."""
    if edit["op"] != "patch":
        return edit
    plain, layer = run(model, model.tokenize(edit["from"]).ids.tolist(), []), edit["layer"]
    found = plain.inside[layer] | {"resid_pre": plain.resid[layer], "pattern": plain.pattern[layer]}
    return edit | {"value": part(found[edit["at"]], edit, model.num_heads)}


# By op: the function of (x, edit, H) that changes an activation (T, D) or the pattern (H, T, T).
CHANGES: dict[str, Callable[[np.ndarray, Edit, int], np.ndarray]] = {
    "set": with_value,
    "patch": with_value,
    "add": lambda x, edit, _: x + np.outer(positions(x, edit), edit["vector"]),
}


def examples(size: int, word: str, dim: int) -> dict[str, Edit]:
    """Return an edit of each kind, for a text of `size` tokens and a model that knows `word`."""
    row = [0.5, 0.25, *[0.0] * (size - 3), 0.25]
    return {
        "hide": {"op": "hide", "token": 2},
        "mask": {"op": "mask", "query": 4, "key": 1},
        "causal": {"op": "causal"},
        "ablate": {"op": "ablate", "layer": 1, "head": 2},
        "scale": {"op": "scale", "value": 0.4},
        "row": {"op": "row", "layer": 1, "head": 0, "query": 3, "weights": row},
        "swap": {"op": "swap", "token": 2, "with": word},
        "patch": {
            "op": "patch",
            "at": "z",
            "layer": 0,
            "head": 1,
            "token": 4,
            "from": " ".join([word] * (size - 2)),
        },
        "set": {
            "op": "set",
            "at": "attn_out",
            "layer": 1,
            "token": 3,
            "value": [*np.linspace(1, -1, dim)],
        },
        "add": {
            "op": "add",
            "at": "resid_post",
            "layer": 0,
            "token": 1,
            "vector": [*np.linspace(-1, 1, dim)],
        },
    }


def gelu(x: np.ndarray) -> np.ndarray:
    return x / 2 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))

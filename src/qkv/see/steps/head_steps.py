"""The steps from the tokens to the layer's input, and from there to the context of one head."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from qkv.arrays import Array, Arrays
from qkv.attend import trace_attention
from qkv.embed import sinusoidal_positions
from qkv.layers.attention import Rotary
from qkv.models.network.design import under
from qkv.see.analysis.words import went_without
from qkv.see.steps.step import PHRASES, Walk, biased, norm_step, phrase
from qkv.trace import Trace

# The options of attention that the steps support; a walk rejects all others.
KNOWN = {"is_causal", "window", "attn_mask", "scale", "q_offset", "query_lengths", "key_lengths"}


@dataclass(eq=False)
class AttentionInputs:
    """The queries, keys, values and options of a layer's attention.

    Q, K and V are computed from the layer's input if the parameters are known, or read from the
    trace.

    Attributes:
        trace: the trace of one text.
        layer: the layer.
        parameters: the model's parameters; empty if Q, K and V are taken from the trace.
        rotary: the rotation of queries and keys, if it is the only change after the projections.
        x: the names of the word vectors from which "q", "k" and "v" are computed.
        known: weights and biases of the projections, keyed by short name, for example "W_Q" or
            "b_Q".
    """

    trace: Trace
    layer: int
    parameters: Arrays
    rotary: Rotary | None = None
    x: dict[str, str] = field(default_factory=dict)
    known: dict[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        trace, layer = self.trace, self.layer
        self.rotated = ("rot_q", layer) in trace or ("rot_k", layer) in trace
        if ("q", layer) not in trace and ("top_weights", layer) in trace:
            raise ValueError(
                f"walk: this trace holds only summaries of layer {layer}, but a walk needs "
                "queries, keys and values: call walk(text, model=...), or qkv.show(trace) for "
                "the kept weights"
            )
        for name in ("q", "k", "v", "z", *(("rot_q", "rot_k") if self.rotated else ())):
            if (name, layer) not in trace:
                raise ValueError(
                    f"walk: the trace lacks hook_{name} of layer {layer}: trace it too, or call "
                    "walk(text, model=...); qkv.show(trace) shows the weights"
                )
        inputs = trace.attention_inputs(layer)
        self.settings = {n: v for n, v in inputs.items() if n not in ("query", "key", "value")}
        others = sorted(set(self.settings) - KNOWN)
        if others:
            raise ValueError(
                f"walk: layer {layer} uses {', '.join(others)}, which a walk cannot show: "
                "qkv.show shows its weights"
            )
        self.sizes = {name: trace[name, layer].shape[3] for name in "qkv"}
        self.count, self.d = trace["q", layer].shape[2:]
        self.shared = self.count // trace["k", layer].shape[2]
        known = ("attn_scores", layer) in trace
        scores = trace["attn_scores", layer] if known else trace_attention(**inputs)["scores"]
        self.hidden = np.isneginf(scores[0])  # (Hq, L, S)
        self.length, self.keys = self.hidden.shape[1:]
        mask = self.settings.get("attn_mask")
        added = mask is not None and np.asarray(mask).dtype != bool
        self.added = np.broadcast_to(np.asarray(mask), scores.shape)[0] if added else None
        offset = self.settings.get("q_offset")
        if offset is None or isinstance(offset, str):
            offset = self.keys - self.length if offset == "end" else 0
        self.offset = int(np.ravel(offset)[0])

    def start(self, name: str, of: str = "qkv") -> None:
        """Store the name of the word vectors that the projections in `of` read."""
        self.x |= dict.fromkeys(of, name)
        for part, letter in (("q_proj", "Q"), ("k_proj", "K"), ("v_proj", "V"), ("out_proj", "O")):
            for kind, short in (("weight", "W"), ("bias", "b")):
                array = self.parameters.get(f"blocks.{self.layer}.attn.{part}.{kind}")
                if array is not None:
                    self.known[f"{short}_{letter}"] = array

    def of(self, name: str, head: int) -> int:
        """Return the index of a head's queries, keys or values; heads may share keys and values."""
        return head if name == "q" else head // self.shared

    def part(self, name: str, head: int) -> slice:
        """Return the range of a head's columns in a projection."""
        size, own = self.sizes[name], self.of(name, head)
        return slice(own * size, (own + 1) * size)


def head_steps(walk: Walk, at: AttentionInputs) -> Array:
    """Add the steps from the layer's input to the head's context; return the context."""
    for name in "qkv":
        _projection_step(walk, at, name)
    query, key = (_rotate_step(walk, at, n) for n in "qk") if at.rotated else ("Q", "K")
    return _attention_steps(walk, at, query, key)


def _projection_step(walk: Walk, at: AttentionInputs, name: str) -> None:
    """Add the step that computes queries, keys or values, and write out the sum of one number."""
    letter, own = name.upper(), at.of(name, walk.head)
    first, whose = own * at.shared, ""
    if name != "q" and at.shared > 1:
        whose = phrase("key head", of=own, first=first, last=first + at.shared - 1)
    given: dict[str, Any] = {
        "what": PHRASES[letter], "letter": letter, "columns": "dv" if name == "v" else "d",
        "side": "queries" if name == "q" else "keys",
    }  # fmt: skip
    if not at.known:
        walk.write("traced projection", hook=name, layer=at.layer, of=own, whose=whose, **given)
        return
    part, bias = at.part(name, walk.head), f"b_{letter}" if f"b_{letter}" in at.known else None
    walk.arrays |= {n: array[..., part] for n, array in at.known.items() if n[-1] == letter}
    walk.write(
        "projection", **given, **biased(bias), x=at.x[name], start=part.start, stop=part.stop,
        last=part.stop - 1, part=f" + {bias}[{part.start}:{part.stop}]" if bias else "",
        whose=f"{whose}," if whose else phrase("head", head=walk.head),
        cell=(walk.cell[0] if name == "q" or walk.same else walk.cell[1], 0),
    )  # fmt: skip


def _rotate_step(walk: Walk, at: AttentionInputs, name: str) -> str:
    """Add the step that rotates queries or keys by position; return the name of the result."""
    letter, side = name.upper(), "queries" if name == "q" else "keys"
    what = PHRASES[letter].partition(":")[0]
    given: dict[str, Any] = {"what": what, "letter": letter, "side": side}
    if at.rotary is None:
        of = at.of(name, walk.head)
        walk.write("traced rotated", hook=name, layer=at.layer, of=of, **given)
        return f"{letter}_rotated"
    base, dims = at.rotary.base, at.d if at.rotary.dims is None else at.rotary.dims
    start, count = (at.offset, at.length) if name == "q" else (0, at.keys)
    first, second = f":{dims // 2}", f"{dims // 2}:{dims}"
    if at.rotary.interleaved:
        first, second = f"0:{dims}:2", f"1:{dims}:2"
    walk.write(
        "rotated", **given, base=f"{base:g}", value=float(base), dims=dims,
        places=f"{f'{start}, {start} + ' if start else ''}{walk.count(side)}",
        first=first, second=second, interleaved=at.rotary.interleaved,
        positions=list(range(start, start + count)),
        rest=f"; the last {at.d - dims} numbers are not rotated" if dims < at.d else "",
        cell=(walk.cell[0 if name == "q" else 1], 0),
    )  # fmt: skip
    return f"{letter}_rotated"


def _attention_steps(walk: Walk, at: AttentionInputs, query: str, key: str) -> Array:
    """Add the steps for scores, scaling, mask, softmax and context; return the context."""
    cell, scale = walk.cell, at.settings.get("scale")
    walk.write("scores", query=query, key=key, cell=cell)
    hidden = at.hidden[walk.head]
    masked = bool(hidden.any()) or at.added is not None
    note = "" if masked else PHRASES["no mask"]
    if scale is None:
        scaled = walk.write("scaled", d=walk.arrays[query].shape[1], note=note, cell=cell)
    else:
        by, scale = f"{scale:g}", float(scale)
        scaled = walk.write("scaled by a number", by=by, scale=scale, note=note, cell=cell)
    if masked:
        scaled = _mask_step(walk, at, scaled, hidden)
    blind = np.asarray(np.isneginf(scaled).all(axis=1))
    walk.write(
        "weights of blind rows" if blind.any() else "weights", of="masked" if masked else "scaled",
        cell=None if blind[cell[0]] else cell, hidden=hidden if hidden.any() else None,
    )  # fmt: skip
    return walk.write("context", cell=(cell[0], 0))


def _mask_step(walk: Walk, at: AttentionInputs, scaled: Array, hidden: Array) -> Array:
    """Add the step that sets masked scores to -inf, or adds the numbers of a float mask."""
    given: dict[str, Any] = {"of": "scaled", "added": "", "line": "scaled", "mask": None}
    given["why"] = _why_hidden(at)
    if at.added is not None:
        walk.given["mask"] = walk.arrays["mask"] = at.added[walk.head].astype(scaled.dtype)
        given |= {"added": "scaled + mask[i, j], ", "line": "scaled + mask", "mask": "mask"}
    row, offset = "masked" if hidden.any() else "mask added", at.offset
    later = ~np.tri(at.length, at.keys, offset, dtype=bool)
    if at.settings.get("is_causal") and np.array_equal(hidden, later):
        row, sizes = "masked later", ["T"] if walk.same else ["L", "S"]
        if offset:
            sizes = [*sizes, *(["T"] if walk.same else []), str(offset)]
        given |= {"sizes": ", ".join(sizes), "later": f"j > i + {offset}" if offset else "j > i"}
    else:
        walk.given["hidden"] = hidden
    return walk.write(row, **given, hidden=hidden)


def _why_hidden(at: AttentionInputs) -> str:
    """Explain in words which rules mask a score."""
    changed = at.trace.changed
    heads, hidden = went_without(changed)
    rules = ("is_causal", "window", "query_lengths", "key_lengths")
    reasons = [PHRASES[name] for name in rules if at.settings.get(name) not in (None, False)]
    if changed:
        reasons.append(phrase("without", what="; ".join([*heads, *hidden])))
    elif at.settings.get("attn_mask") is not None:
        reasons.append(PHRASES["attn_mask"])
    return "; ".join(dict.fromkeys(reasons))


def embedding_steps(walk: Walk, parameters: Arrays, eps: float) -> None:
    """Add the steps from the tokens to the input of the first layer."""
    trace, table = walk.trace, parameters["embed.weight"]
    ids = list(trace.ids)
    walk.given |= {"table": table, "ids": ids}
    shown = ", ".join(map(str, ids[:12])) + (", …" if len(ids) > 12 else "")
    size = f"; the table is (V={table.shape[0]}, D={table.shape[1]})"
    walk.write("words", rows=ids, ids=shown, table=size)
    terms, note = ["E"], ""
    if "hook_pos_embed" in trace:
        _position_step(walk, parameters)
        terms.append("P")
    if "hook_token_type_embed" in trace:
        segment = parameters["token_type_embed.weight"][0]
        walk.given["segment"] = walk.arrays["segment"] = segment
        terms.append("segment")
        note = PHRASES["segment"]
    norm = under(parameters, "embed_norm.")
    if len(terms) > 1:
        name = "H" if norm else "X"
        walk.write("embedded", name=name, sum=" + ".join(terms), terms=terms, note=note)
    elif not norm:
        walk.write("words alone")
    if norm:
        norm_step(walk, walk.steps[-1].name, "X", norm, eps)


def _position_step(walk: Walk, parameters: Arrays) -> None:
    """Add the step of the position vectors, which are rows of a table or sine waves."""
    length, dim = walk.arrays["E"].shape
    if "pos_embed.weight" in parameters:
        walk.given["position_table"] = parameters["pos_embed.weight"]
        walk.write("positions", rows=list(range(length)))
        return
    walk.given["qkv"] = SimpleNamespace(sinusoidal_positions=sinusoidal_positions)
    walk.write("waves", length=length, dim=dim, type=walk.trace["hook_pos_embed"].dtype.name)

"""The steps of one head with real numbers, from the input words to the predicted words."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from qkv._argument_errors import invalid, value_error
from qkv.arrays import Array, ArrayLike, Arrays, as_array
from qkv.attend import trace_attention
from qkv.embed import sinusoidal_positions
from qkv.layers import Block, MultiHeadAttention, Rotary
from qkv.layers.base import settings as settings_of
from qkv.models import Model
from qkv.models.families.lessons import AttentionOnly
from qkv.models.network import Embedding
from qkv.models.vision import DualEncoder
from qkv.see.analysis import went_without
from qkv.see.analysis.head_weights import heads_of
from qkv.see.analysis.selection import ChosenHead, choose_head, key_of, span
from qkv.see.steps._later_steps import (
    block_steps,
    norm_step,
    parallel_steps,
    traced_steps,
    word_steps,
)
from qkv.see.steps.step import PHRASES, Step, Walk, bias_of, phrase
from qkv.text.gaps import MASKS
from qkv.trace import Trace
from qkv.trace.activations import parse

__all__ = ["Step", "Walk", "walk_head", "walk_layer"]

Layer = MultiHeadAttention | Block
# The options of attention that the steps support; a walk rejects all others.
KNOWN = {"is_causal", "window", "attn_mask", "scale", "q_offset", "query_lengths", "key_lengths"}


@dataclass(eq=False)
class AttentionInputs:
    """The queries, keys, values and options of a layer's attention.

    If the parameters are known, Q, K and V are computed from the layer's input. Otherwise, Q, K
    and V are read from the trace.

    Attributes:
        trace: the trace of one text.
        layer: the layer.
        parameters: the model's parameters; empty if Q, K and V are taken from the trace.
        rotary: the rotation of queries and keys. None if the layer does not rotate queries and
            keys, or if the layer also changes them in another way, such as by norms.
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
            raise value_error(
                f"this trace holds only summaries of layer {layer}, but a walk needs "
                "queries, keys and values: call walk(text, model=...), or qkv.show(trace) for "
                "the kept weights"
            )
        for name in ("q", "k", "v", "z", *(("rot_q", "rot_k") if self.rotated else ())):
            if (name, layer) not in trace:
                raise value_error(
                    f"the trace lacks hook_{name} of layer {layer}: trace it too, or call "
                    "walk(text, model=...); qkv.show(trace) shows the weights"
                )
        inputs = trace.attention_inputs(layer)
        self.settings = {n: v for n, v in inputs.items() if n not in ("query", "key", "value")}
        others = sorted(set(self.settings) - KNOWN)
        if others:
            raise value_error(
                f"layer {layer} uses {', '.join(others)}, which a walk cannot show: "
                "use qkv.show to see its weights"
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

    def start(self, name: str, letters: str = "qkv") -> None:
        """Record the array from which queries, keys or values are computed.

        Args:
            name: the name of the array.
            letters: one letter for each kind of vector; for example, "kv" means keys and values.
        """
        self.x |= dict.fromkeys(letters, name)
        for part, letter in (("q_proj", "Q"), ("k_proj", "K"), ("v_proj", "V"), ("out_proj", "O")):
            for kind, short in (("weight", "W"), ("bias", "b")):
                array = self.parameters.get(f"blocks.{self.layer}.attn.{part}.{kind}")
                if array is not None:
                    self.known[f"{short}_{letter}"] = array

    def of(self, name: str, head: int) -> int:
        """Return the index of a head's queries, keys or values.

        Several heads may share keys and values; these heads have the same index for them.
        """
        return head if name == "q" else head // self.shared

    def part(self, name: str, head: int) -> slice:
        """Return the range of a head's columns in a projection."""
        size, index = self.sizes[name], self.of(name, head)
        return slice(index * size, (index + 1) * size)


@np.errstate(invalid="ignore", over="ignore")
def walk_head(trace: Trace, layer: int, head: int, model: Model | None = None) -> Walk:
    """Compute every step of one head, and all later steps up to the words, in plain NumPy.

    After the head, the walk continues through the layer; all later layers are one step. The walk
    predicts words at one position: the first mask token or, in a text without a mask token, the
    query of the head's strongest link. The sums at this position are written out.

    Args:
        trace: a model's trace of one text.
        layer: the layer; -1 is the last.
        head: the head.
        model: the model. If no model is given, the walk takes Q, K and V from the trace. After the
            heads, it then has only the steps whose numbers are in the trace.

    Raises:
        IndexError: `layer` or `head` is out of range.
        ValueError: the trace lacks numbers that the walk needs, or the layer has a part that a
            walk cannot show.
    """
    if isinstance(model, DualEncoder):
        model = model.text  # a walk shows the text encoder, not the image encoder
    chosen, _ = choose_head(heads_of(trace), layer, head)
    layer, head, cell = chosen.layer, chosen.head, _first_cell(trace, chosen)
    _refuse_edits(trace, layer, model)
    block = None if model is None else model.layers[layer]
    unshown = (block.scale1, block.attn.clip, block.conv) if isinstance(block, Block) else ()
    if any(part is not None for part in unshown):
        block = None  # a walk has no step for these parts, so the numbers are taken from the trace
    attn = {} if block is None else block.attn.parameters
    parameters = {f"blocks.{layer}.attn.{name}": array for name, array in attn.items()}
    at = AttentionInputs(trace, layer, parameters, _plain_rotary(block))
    tokens = list(trace.tokens)
    walk = Walk(trace, layer, head, tokens, tokens, cell)
    if model is not None and layer == 0 and trace.ids and _is_plain(model):
        _embedding_steps(walk, model)
        at.start("X")
    elif ("resid_pre", layer) in trace:
        walk.write("input" if layer else "first input", layer=layer, before=layer - 1)
        at.start("X")
    _norm_first(walk, at, block)
    last = _from_projections_on(walk, at, block)
    if model is None or not at.known:
        traced_steps(walk)
    elif last:
        word_steps(walk, model, last)
    else:
        walk.end(
            f"the trace lacks hook_attn_out or hook_resid_mid of layer {layer}, where the walk "
            "continues: trace them too, or call walk(text, model=...)"
        )
    return walk


@np.errstate(invalid="ignore", over="ignore")
def walk_layer(
    layer: Layer,
    x: ArrayLike,
    context: ArrayLike | None = None,
    *,
    head: int = 0,
    tokens: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    **options: Any,
) -> Walk:
    """Compute every step of one head of a single layer, without a model.

    Args:
        layer: an attention layer of any kind, or a block. The walk ends at the layer's output.
        x: `(L, D)`, the word vectors of the queries.
        context: `(S, D)`, the word vectors of the keys and values; by default `x`. A block does not
            accept a context.
        head: the head.
        tokens: the names of the L rows of `x`; by default their indices.
        keys: the names of the S rows of `context`; by default their indices.
        options: options of attention: `is_causal`, `window`, `attn_mask`, `scale`, `q_offset`,
            `query_lengths` and `key_lengths`.

    Raises:
        IndexError: `head` is out of range.
        ValueError: shapes do not match, or a walk cannot show an option.

    >>> layer = MultiHeadAttention(8, num_heads=4, num_kv_heads=2, rotary={}, seed=0)
    >>> walk = walk_layer(layer, np.ones((5, 8)), head=3, is_causal=True)
    >>> [step.name for step in walk.steps][:6], walk.difference < 1e-6
    (['X', 'Q', 'K', 'V', 'Q_rotated', 'K_rotated'], True)
    """
    others = set(options) - KNOWN
    if others:
        raise value_error(
            f"{', '.join(sorted(others))} is not an option of a walk (the "
            f"options are {', '.join(sorted(KNOWN))}). To see the weights with other options, "
            "use qkv.show(layer.trace(x, ...))"
        )
    attn = layer.attn if isinstance(layer, Block) else layer
    if isinstance(layer, Block) and context is not None:
        raise value_error("a block attends only to x: for a context, walk through block.attn")
    if attn.clip is not None:
        raise value_error(
            f"the layer limits its queries, keys and values to {attn.clip:g}, which a walk cannot "
            "show: call qkv.show(layer.trace(x, ...)) for its weights"
        )
    inputs = [_one_text(x, "x")] + ([] if context is None else [_one_text(context, "context")])
    if not 0 <= head < attn.num_heads:
        heads = span(range(attn.num_heads))
        raise invalid(IndexError, f"there is no head {head}: the heads are {heads}")
    trace = _trace_layer(layer, inputs, options)
    names = _names(tokens, inputs[0], "tokens")
    key_names = names if context is None else _names(keys, inputs[1], "keys")
    trace = trace.with_tokens([names])
    parameters = {f"blocks.0.attn.{name}": array for name, array in attn.parameters.items()}
    at = AttentionInputs(trace, 0, parameters, _plain_rotary(layer))
    walk = Walk(trace, 0, head, names, key_names, _largest(trace, 0, head))
    sources = [("word vectors", "X", "qkv"), ("other vectors", "C", "kv")]
    for (row, name, letters), vectors in zip(sources, inputs, strict=False):
        walk.inputs[name] = vectors.astype(trace["q", 0].dtype)
        walk.write(row)
        at.start(name, letters)
    _norm_first(walk, at, layer)
    _from_projections_on(walk, at, layer)
    return walk


def _trace_layer(layer: Layer, inputs: Sequence[Array], options: dict[str, Any]) -> Trace:
    """Trace a single layer, with activations named as in a model with one layer."""
    arrays = dict(layer.trace(*inputs, **options))
    if isinstance(layer, MultiHeadAttention):  # the names in this trace have no block number
        arrays = {f"blocks.0.{'attn.' * (n in layer.hooks)}{n}": a for n, a in arrays.items()}
    numbers = [str(i) for i in range(len(inputs[0]))]
    settings = {0: settings_of(options, None)}
    return Trace(arrays, tokens=[numbers], settings=settings, model=type(layer).__name__)


def _norm_first(walk: Walk, at: AttentionInputs, block: Any) -> None:
    """Add the step of the norm before the attention, if the block has this norm."""
    norm = block.norm1 if isinstance(block, Block) and not block.post_norm else None
    if norm is None or "X" not in walk.arrays:
        return
    at.start(norm_step(walk, "X", "N", norm))


def _is_plain(model: Model) -> bool:
    """Return whether a walk can show the steps of the embedding."""
    embed = model.embedding
    plain = type(embed) is Embedding and embed.scale == 1 and embed.first_position == 0
    return plain and not embed.projection


def _plain_rotary(layer: Any) -> Rotary | None:
    """Return the rotation of queries and keys; None if a walk cannot show it."""
    attn = getattr(layer, "attn", layer)
    if attn is None or attn.rotary is None or attn.rotary.scaling is not None:
        return None
    return None if attn.q_norm is not None or attn.k_norm is not None else attn.rotary


def _from_projections_on(walk: Walk, at: AttentionInputs, layer: Any) -> str:
    """Add the steps from the layer's input to its output; return the name of the output.

    If the walk ends before the output, the name is empty.
    """
    trace, where = at.trace, f"blocks.{at.layer}."
    walk.inputs |= at.known
    context = _head_steps(walk, at)
    walk.inputs["contexts"] = _contexts(walk, at, context)
    width, head = context.shape[1], walk.head
    walk.write(
        "joined", heads="[head 0 | head 1 | ⋯]" if at.count > 1 else "head 0", count=at.count,
        width=width, head=head, start=head * width, last=(head + 1) * width - 1,
    )  # fmt: skip
    walk.compare(f"{where}attn.hook_z")
    if "W_O" not in at.known or ("attn_out", at.layer) not in trace:
        return ""
    walk.arrays |= {name: at.known[name] for name in ("W_O", "b_O") if name in at.known}
    walk.write("out", **bias_of("b_O" if "b_O" in at.known else None), cell=(walk.position, 0))
    output, block = "out", layer if isinstance(layer, Block) else None
    if block is not None and block.out_norm1 is not None:
        output = norm_step(walk, output, "A", block.out_norm1)
    walk.compare(f"{where}hook_attn_out")
    if block is not None and block.parallel and "X" in walk.arrays:
        return parallel_steps(walk, block, output)
    if ("resid_mid", at.layer) not in trace:
        return output if isinstance(block, AttentionOnly) else ""
    if "X" not in walk.arrays:
        return ""
    walk.write("attention added", given=output, cell=(walk.position, 0))
    walk.compare(f"{where}hook_resid_mid")
    return block_steps(walk, block) if type(block) is Block else ""


def _contexts(walk: Walk, at: AttentionInputs, context: Array) -> list[Array]:
    """Return each head's context; an ablated head has the edited context of the trace."""
    trace, layer, head = at.trace, at.layer, walk.head
    without = {number for at_layer, number in trace.changed.get("ablate", ()) if at_layer == layer}
    contexts = {other: trace["z", layer][0][:, other] for other in without}
    if head in contexts:
        walk.write("instead", layer=layer, head=head)
    contexts.setdefault(head, context)
    for other in set(range(at.count)) - set(contexts):  # computed, but not shown
        aside = replace(walk, head=other, steps=[], inputs=walk.known, arrays=dict(walk.arrays))
        contexts[other] = _head_steps(aside, at)
    return [contexts[other] for other in range(at.count)]


def _refuse_edits(trace: Trace, layer: int, model: Model | None) -> None:
    """Raise an error if the run was edited at an activation that the walk recomputes."""
    prefixes = (f"blocks.{layer}.", *["hook_"] * (layer == 0))
    for name in trace.changed.get("edit", ()):
        if name.startswith(prefixes) or (model is not None and parse(name).is_last):
            raise value_error(
                f"this run was edited at {name}, but a walk recomputes the model's own "
                "numbers: "
                "walk through a run without this edit, or call qkv.show(trace) for its weights"
            )


def _first_cell(trace: Trace, chosen: ChosenHead) -> tuple[int, int]:
    """Choose the query and the key whose sums are written out (see `walk_head`)."""
    layer, head, link = chosen.layer, chosen.head, chosen.link
    mask = next((position for position, token in enumerate(trace.tokens) if token in MASKS), None)
    if mask is not None:
        return mask, key_of(heads_of(trace), layer, head, mask)
    return _largest(trace, layer, head) if link is None else (link.query, link.key)


def _largest(trace: Trace, layer: int, head: int) -> tuple[int, int]:
    """Return the query and key of a head's largest weight."""
    if ("pattern", layer) not in trace:  # the walk rejects this trace later
        return 0, 0
    weights = trace.pattern(layer, head)
    i, j = np.unravel_index(int(np.nan_to_num(weights).argmax()), weights.shape)
    return int(i), int(j)


def _one_text(x: Any, name: str) -> Array:
    """Convert word vectors `(n, D)` or `(1, n, D)` to an array `(n, D)`."""
    array = as_array(x, name=name)
    if array.ndim == 3 and len(array) == 1:
        array = array[0]
    if array.ndim != 2 or 0 in array.shape:
        raise value_error(f"{name} has shape {array.shape}; pass one text, (L, D)")
    return array


def _names(words: Sequence[str] | None, x: Array, what: str) -> list[str]:
    """Return `words` as the names of the rows; if None, return the row indices as strings."""
    if words is None:
        return [str(i) for i in range(len(x))]
    names = [str(name) for name in words]
    if len(names) != len(x):
        raise value_error(
            f"there are {len(x)} vectors and {len(names)} {what}; pass one for each vector"
        )
    return names


def _head_steps(walk: Walk, at: AttentionInputs) -> Array:
    """Add the steps from the layer's input to the head's context; return the context."""
    for name in "qkv":
        _projection_step(walk, at, name)
    query, key = (_rotate_step(walk, at, n) for n in "qk") if at.rotated else ("Q", "K")
    return _attention_steps(walk, at, query, key)


def _projection_step(walk: Walk, at: AttentionInputs, name: str) -> None:
    """Add the step that computes queries, keys or values; write out the sum of one of its cells."""
    letter, index = name.upper(), at.of(name, walk.head)
    first, whose = index * at.shared, ""
    if name != "q" and at.shared > 1:
        whose = phrase("key head", of=index, first=first, last=first + at.shared - 1)
    values: dict[str, Any] = {
        "what": PHRASES[letter], "letter": letter, "columns": "dv" if name == "v" else "d",
        "side": "queries" if name == "q" else "keys",
    }  # fmt: skip
    if not at.known:
        walk.write("traced projection", hook=name, layer=at.layer, of=index, whose=whose, **values)
        return
    part, bias = at.part(name, walk.head), f"b_{letter}" if f"b_{letter}" in at.known else None
    walk.arrays |= {n: array[..., part] for n, array in at.known.items() if n[-1] == letter}
    walk.write(
        "projection", **values, **bias_of(bias), x=at.x[name], start=part.start, stop=part.stop,
        last=part.stop - 1, part=f" + {bias}[{part.start}:{part.stop}]" if bias else "",
        whose=f"{whose}," if whose else phrase("head", head=walk.head),
        cell=(walk.cell[0] if name == "q" or walk.same else walk.cell[1], 0),
    )  # fmt: skip


def _rotate_step(walk: Walk, at: AttentionInputs, name: str) -> str:
    """Add the step that rotates queries or keys by position; return the name of the result."""
    letter, side = name.upper(), "queries" if name == "q" else "keys"
    what = PHRASES[letter].partition(":")[0]
    values: dict[str, Any] = {"what": what, "letter": letter, "side": side}
    if at.rotary is None:
        index = at.of(name, walk.head)
        walk.write("traced rotated", hook=name, layer=at.layer, of=index, **values)
        return f"{letter}_rotated"
    base, dims = at.rotary.base, at.d if at.rotary.dims is None else at.rotary.dims
    start, count = (at.offset, at.length) if name == "q" else (0, at.keys)
    first, second = f":{dims // 2}", f"{dims // 2}:{dims}"
    if at.rotary.interleaved:
        first, second = f"0:{dims}:2", f"1:{dims}:2"
    walk.write(
        "rotated", **values, base=f"{base:g}", value=float(base), dims=dims,
        bounds=f"{f'{start}, {start} + ' if start else ''}{walk.count(side)}",
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
    """Add the mask step, which sets masked scores to -inf or adds the numbers of a float mask."""
    values: dict[str, Any] = {"of": "scaled", "added": "", "line": "scaled", "mask": None}
    values["why"] = _why_hidden(at)
    if at.added is not None:
        walk.inputs["mask"] = walk.arrays["mask"] = at.added[walk.head].astype(scaled.dtype)
        values |= {"added": "scaled + mask[i, j], ", "line": "scaled + mask", "mask": "mask"}
    row, offset = "masked" if hidden.any() else "mask added", at.offset
    later = ~np.tri(at.length, at.keys, offset, dtype=bool)
    if at.settings.get("is_causal") and np.array_equal(hidden, later):
        row, sizes = "masked later", ["T"] if walk.same else ["L", "S"]
        if offset:
            sizes = [*sizes, *(["T"] if walk.same else []), str(offset)]
        values |= {"sizes": ", ".join(sizes), "later": f"j > i + {offset}" if offset else "j > i"}
    else:
        walk.inputs["hidden"] = hidden
    return walk.write(row, **values, hidden=hidden)


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


def _embedding_steps(walk: Walk, model: Model) -> None:
    """Add the steps from the tokens to the input of the first layer."""
    trace, parameters, norm = walk.trace, model.parameters, model.embedding.norm
    table = parameters["embed.weight"]
    ids = list(trace.ids)
    walk.inputs |= {"table": table, "ids": ids}
    text = ", ".join(map(str, ids[:12])) + (", …" if len(ids) > 12 else "")
    size = f"; the table is (V={table.shape[0]}, D={table.shape[1]})"
    walk.write("words", rows=ids, ids=text, table=size)
    terms, note = ["E"], ""
    if "hook_pos_embed" in trace:
        _position_step(walk, parameters)
        terms.append("P")
    if "hook_token_type_embed" in trace:
        segment = parameters["token_type_embed.weight"][0]
        walk.inputs["segment"] = walk.arrays["segment"] = segment
        terms.append("segment")
        note = PHRASES["segment"]
    if len(terms) > 1:
        name = "H" if norm else "X"
        walk.write("embedded", name=name, sum=" + ".join(terms), terms=terms, note=note)
    elif not norm:
        walk.write("words alone")
    if norm:
        norm_step(walk, walk.steps[-1].name, "X", norm, cell=None)


def _position_step(walk: Walk, parameters: Arrays) -> None:
    """Add the step of the position vectors, which are rows of a table or sine waves."""
    length, dim = walk.arrays["E"].shape
    if "pos_embed.weight" in parameters:
        walk.inputs["position_table"] = parameters["pos_embed.weight"]
        walk.write("positions", rows=list(range(length)))
        return
    walk.inputs["qkv"] = SimpleNamespace(sinusoidal_positions=sinusoidal_positions)
    walk.write("waves", length=length, dim=dim, type=walk.trace["hook_pos_embed"].dtype.name)

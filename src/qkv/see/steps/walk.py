"""One head step by step, with its real numbers: from word vectors to the layer's output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from qkv.arrays import Array, as_array
from qkv.layers import Block, MultiHeadAttention, RMSNorm, Rotary
from qkv.layers.options import settings as settings_of
from qkv.models.network.embedding import Embedding
from qkv.see.analysis import selection
from qkv.see.analysis.heads import heads_of
from qkv.see.steps.attention_inputs import KNOWN, Source
from qkv.see.steps.step import (
    GIVEN,
    Notes,
    Step,
    attention_steps,
    embedding_steps,
    norm_step,
    product,
    projection_steps,
    rotate_step,
)
from qkv.see.steps.sums import spell
from qkv.trace import Trace

__all__ = ["Step", "Walk", "walk_head", "walk_layer"]


@dataclass(frozen=True, eq=False)
class Walk:
    """All steps of one head, and the recomputed output beside the model's own.

    Attributes:
        trace: of the text, or of the layer.
        layer: the layer.
        head: the head.
        tokens: what the queries belong to.
        keys: what the keys belong to: the tokens again, unless another text is looked at.
        cell: the query and the key whose sums are spelled out.
        steps: in order.
        arrays: what the steps give and what they are made of, by name; of weights and biases of
            the projections the columns of this head.
        given: what the lines start from, by name: running `step.code` one after the other on these
            gives the steps' values.
        own: the model's own output, by name in `own_name`.
        recomputed: the same from the steps.
    """

    trace: Trace
    layer: int
    head: int
    tokens: list[str]
    keys: list[str]
    cell: tuple[int, int]
    steps: list[Step]
    arrays: dict[str, Array]
    given: dict[str, Any]
    own_name: str
    own: Array
    recomputed: Array

    @property
    def difference(self) -> float:
        """The largest difference between the model's own output and the recomputed one."""
        return float(np.abs(self.own.astype(np.float64) - self.recomputed).max())

    def spell(self, step: Step, place: tuple[int, int], most: int = 3) -> str:
        """What the number at any place of a step is made of; `most` terms are written out."""
        return spell(step.name, step.op, place, self.arrays, step.rows, step.columns, most)


@np.errstate(invalid="ignore", over="ignore")
def walk_head(
    trace: Trace,
    layer: int,
    head: int,
    *,
    parameters: Mapping[str, Array] | None = None,
    embedding: Embedding | None = None,
    blocks: Sequence[Block] = (),
) -> Walk:
    """Every step of one head, computed anew with plain NumPy from the layer's input.

    Args:
        trace: a model's trace of one text.
        layer: the layer.
        head: the head.
        parameters: the model's; without them Q, K and V are taken from the trace and the walk ends
            before the output projection.
        embedding: the model's.
        blocks: the model's layers.

    Raises:
        IndexError: there is no such layer or head.
        ValueError: the trace lacks what the walk needs, or the layer does what it cannot show.
    """
    chosen, _ = selection.choose_head(heads_of(trace), layer, head, call="walk")
    block = blocks[layer] if blocks else None
    tokens = list(trace.tokens)
    at = Source(trace, layer, parameters or {}, _plain_rotary(block))
    notes = Notes(tokens, tokens, _cell_to_spell(trace, chosen))
    if parameters is not None and layer == 0 and trace.ids and _is_plain(embedding):
        norm = None if embedding is None else embedding.norm
        embedding_steps(notes, trace, parameters, 0.0 if norm is None else norm.eps)
        at.start(notes.steps[-1].values, "X")
    elif ("resid_pre", layer) in trace:
        x = trace["resid_pre", layer][0]
        notes.given["trace"] = trace
        notes.step(
            "The input of the layer", "X", f'X = trace["resid_pre", {layer}][0]', "X", x,
            GIVEN, f"D={x.shape[1]}", note=f"what layer {layer - 1} gave" if layer else "",
        )  # fmt: skip
        at.start(x, "X")
    if parameters is not None:
        _norm_first(notes, at, block)
    if isinstance(block, Block) and block.out_norm1 is not None:
        at.known.pop("W_O", None)  # what it gives is normed before it is added
    return _finish(notes, at, head)


@np.errstate(invalid="ignore", over="ignore")
def walk_layer(
    layer: MultiHeadAttention | Block,
    x: ArrayLike,
    context: ArrayLike | None = None,
    *,
    head: int = 0,
    tokens: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    **options: Any,
) -> Walk:
    """Every step of one head of a layer on its own, with a model around it or not.

    Args:
        layer: an attention layer, of whatever kind, or a block, of which its attention and the way
            past it are walked.
        x: `(L, D)`, the word vectors that ask.
        context: `(S, D)`, those that are looked at; `x` unless given, and always for a block.
        head: the head.
        tokens: L names for the rows of `x`; their numbers if left out.
        keys: S names for the rows of `context`.
        options: those of the formula: `is_causal`, `window`, `attn_mask`, `scale`, `q_offset` and
            the lengths.

    Raises:
        IndexError: there is no such head.
        ValueError: shapes that do not fit, or an option that a walk does not show.

    >>> layer = MultiHeadAttention(8, num_heads=4, num_kv_heads=2, rotary={}, seed=0)
    >>> walk = walk_layer(layer, np.ones((5, 8)), head=3, is_causal=True)
    >>> [step.name for step in walk.steps][:6], walk.difference < 1e-6
    (['X', 'Q', 'K', 'V', 'Q_turned', 'K_turned'], True)
    """
    others = set(options) - KNOWN
    if others:
        raise ValueError(
            f"walk: {', '.join(sorted(others))} is not among what a walk shows "
            f"({', '.join(sorted(KNOWN))}): qkv.show shows the weights of layer.trace(x, ...)"
        )
    attn = layer.attn if isinstance(layer, Block) else layer
    if isinstance(layer, Block) and context is not None:
        raise ValueError("walk: a block looks at x itself: walk through its attn for a context")
    words = _one_text(x, "x")
    other = words if context is None else _one_text(context, "context")
    if not 0 <= head < attn.num_heads:
        raise IndexError(
            f"walk: there is no head {head}: the heads are "
            + ("0 only" if attn.num_heads == 1 else f"0 to {attn.num_heads - 1}")
        )
    inputs = (words,) if context is None else (words, other)
    found = layer.trace(*inputs, **options)
    # an attention layer leaves names without a block's, and not its input
    arrays = {
        name
        if name.startswith("blocks.")
        else f"blocks.0.{'' if name == 'hook_attn_out' else 'attn.'}{name}": found[name]
        for name in found.names()
    }
    names = _names(tokens, words, "tokens")
    key_names = names if context is None else _names(keys, other, "keys")
    trace = Trace(
        arrays,
        tokens=[names],
        settings={0: settings_of(options, None)},
        model=type(layer).__name__,
    )
    prefix = "blocks.0.attn."
    parameters = {prefix + name: a for name, a in attn.parameters.items()}
    at = Source(trace, 0, parameters, rotary=_plain_rotary(layer))
    weights = trace["pattern", 0][0, head]
    place = np.unravel_index(int(np.nan_to_num(weights).argmax()), weights.shape)
    notes = Notes(names, key_names, (int(place[0]), int(place[1])))
    kind = trace["q", 0].dtype
    words, other = words.astype(kind), other.astype(kind)
    notes.given["X"] = words
    notes.step(
        "The word vectors that come in", "X", "X = X", "X", words, GIVEN, f"D={words.shape[1]}"
    )
    at.start(words, "X")
    if context is not None:
        notes.given["C"] = other
        notes.step(
            "The word vectors that are looked at", "C", "C = C", "C", other, GIVEN,
            f"D={other.shape[1]}", side="keys",
        )  # fmt: skip
        at.start_keys(other, "C")
    _norm_first(notes, at, layer)
    return _finish(notes, at, head)


def _norm_first(notes: Notes, at: Source, block: Any) -> None:
    """The norm before the attention, where there is one."""
    norm = block.norm1 if isinstance(block, Block) and not block.post_norm else None
    if norm is None or "X" not in notes.arrays:
        return
    parameters = dict(norm.parameters)
    if norm.offset:
        parameters["weight"] = parameters["weight"] + parameters["weight"].dtype.type(norm.offset)
    values = norm_step(
        notes,
        notes.arrays["X"],
        "X",
        "N",
        parameters,
        norm.eps,
        rms=isinstance(norm, RMSNorm),
    )
    at.start(values, "N")


def _is_plain(embedding: Embedding | None) -> bool:
    """Whether the steps of the embedding are those that a walk shows."""
    return embedding is None or (embedding.scale == 1 and embedding.first_position == 0)


def _plain_rotary(block: Any) -> Rotary | None:
    """How queries and keys are turned, where that is all that happens to them."""
    attn = getattr(block, "attn", block)
    if attn is None or attn.rotary is None or attn.rotary.scaling is not None:
        return None
    return None if attn.q_norm is not None or attn.k_norm is not None else attn.rotary


def _finish(notes: Notes, at: Source, head: int) -> Walk:
    """The steps from the layer's input on."""
    trace, layer = at.trace, at.number
    if not at.known or (at.rotated and at.rotary is None):
        notes.given["trace"] = trace
    notes.given |= at.known
    projection_steps(notes, at, head)
    query, key = ("Q", "K") if not at.rotated else (rotate_step(notes, at, n, head) for n in "qk")
    context = attention_steps(notes, at, head, query, key)
    contexts = [context if other == head else at.context(other) for other in range(at.count)]
    notes.given["contexts"] = contexts
    width = context.shape[1]
    joined = notes.step(
        "All heads side by side",
        "joined = [head 0 | head 1 | ⋯]" if at.count > 1 else "joined = head 0",
        "joined = np.concatenate(contexts, axis=1)", "joined", np.concatenate(contexts, axis=1),
        {"kind": "joined", "width": width}, f"Hq·dv={at.count}·{width}={at.count * width}",
        note=f"contexts: this step's context for each of the {at.count} heads; "
        f"head {head} has columns {head * width} to {(head + 1) * width - 1}",
    )  # fmt: skip
    if "W_O" not in at.known or ("attn_out", layer) not in trace:
        own = trace["z", layer][0].reshape(len(joined), -1)
        return _walk(notes, at, head, f"blocks.{layer}.attn.hook_z", own)
    bias = notes.given.get("b_O")
    notes.arrays |= {name: at.known[name] for name in ("W_O", "b_O") if name in at.known}
    out = joined @ at.known["W_O"] + (0 if bias is None else bias)
    plus = "" if bias is None else " + b_O"
    notes.step(
        "The output projection", f"out = joined·W_O{plus}", f"out = joined @ W_O{plus}", "out",
        out, product("joined", "W_O", "b_O" if plus else None), f"D={out.shape[1]}",
        cell=(notes.cell[0], 0),
    )  # fmt: skip
    if "X" not in notes.arrays or ("resid_mid", layer) not in trace:
        return _walk(notes, at, head, f"blocks.{layer}.hook_attn_out", trace["attn_out", layer][0])
    notes.step(
        "The way past: what came in is added", "R = X + out", "R = X + out", "R",
        notes.arrays["X"] + out, {"kind": "sum", "terms": ["X", "out"]}, f"D={out.shape[1]}",
        cell=(notes.cell[0], 0),
        note="attention adds to what a token was; it does not take its place",
    )  # fmt: skip
    return _walk(notes, at, head, f"blocks.{layer}.hook_resid_mid", trace["resid_mid", layer][0])


def _walk(notes: Notes, at: Source, head: int, own_name: str, own: Array) -> Walk:
    return Walk(
        trace=at.trace,
        layer=at.number,
        head=head,
        tokens=notes.tokens,
        keys=notes.keys,
        cell=notes.cell,
        steps=notes.steps,
        arrays=notes.arrays,
        given=notes.given,
        own_name=own_name,
        own=own,
        recomputed=notes.steps[-1].values,
    )


def _cell_to_spell(trace: Trace, chosen: selection.Head) -> tuple[int, int]:
    """The strongest link of the head; without one, its largest weight."""
    if chosen.link is not None:
        return chosen.link.query, chosen.link.key
    weights = trace.pattern(chosen.layer, chosen.head)
    i, j = np.unravel_index(int(np.nan_to_num(weights).argmax()), weights.shape)
    return int(i), int(j)


def _one_text(x: Any, name: str) -> Array:
    """Word vectors `(n, D)`, also given as a batch of one."""
    array = as_array(x, call="walk", name=name)
    if array.ndim == 3 and len(array) == 1:
        array = array[0]
    if array.ndim != 2 or 0 in array.shape:
        raise ValueError(f"walk: {name} has shape {array.shape}: give one text, (L, D)")
    return array


def _names(given: Sequence[str] | None, x: Array, what: str) -> list[str]:
    """What rows are called: their numbers unless somebody named them."""
    if given is None:
        return [str(i) for i in range(len(x))]
    names = [str(name) for name in given]
    if len(names) != len(x):
        raise ValueError(
            f"walk: there are {len(x)} vectors and {len(names)} {what}: give one for each"
        )
    return names

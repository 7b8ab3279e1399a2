"""The steps of one head with real numbers, from the input words to the predicted words."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qkv.arrays import Array, ArrayLike, as_array
from qkv.layers import Block, MultiHeadAttention, Rotary
from qkv.layers.base import settings as settings_of
from qkv.models import Model
from qkv.models.families.lessons import AttentionOnly
from qkv.models.network.embedding import Embedding
from qkv.models.vision import DualEncoder
from qkv.see.analysis.head_weights import heads_of
from qkv.see.analysis.selection import ChosenHead, choose_head, key_of, span
from qkv.see.steps.head_steps import KNOWN, AttentionInputs, embedding_steps, head_steps
from qkv.see.steps.later_steps import block_steps, normed, parallel_steps, traced_steps, word_steps
from qkv.see.steps.step import Step, Walk, biased
from qkv.text.tokenizer import MASKS
from qkv.trace import Trace

__all__ = ["Step", "Walk", "walk_head", "walk_layer"]


@np.errstate(invalid="ignore", over="ignore")
def walk_head(trace: Trace, layer: int, head: int, model: Model | None = None) -> Walk:
    """Compute every step of one head, and all later steps up to the words, in plain NumPy.

    After the head, the walk continues through the layer; all later layers are one step. The walk
    predicts words at one position: the first mask token, or else the query of the head's strongest
    link. The sums at the same position are written out.

    Args:
        trace: a model's trace of one text.
        layer: the layer; -1 is the last.
        head: the head.
        model: the model. Without a model, Q, K and V are taken from the trace, and the steps after
            the heads end where the trace lacks numbers.

    Raises:
        IndexError: `layer` or `head` is out of range.
        ValueError: the trace lacks numbers that the walk needs, or the layer has a part that a
            walk cannot show.
    """
    if isinstance(model, DualEncoder):
        model = model.text  # only the text encoder's parameters have the usual names
    chosen, _ = choose_head(heads_of(trace), layer, head, call="walk")
    layer, head, cell = chosen.layer, chosen.head, _first_cell(trace, chosen)
    _refuse_edits(trace, layer, model)
    block = None if model is None else model.layers[layer]
    if block is not None and block.scale1 is not None:
        block = None  # a walk has no step for this scale, so the numbers are taken from the trace
    parameters = {} if model is None else model.parameters
    attn = {} if block is None else block.attn.parameters
    own = {f"blocks.{layer}.attn.{name}": array for name, array in attn.items()}
    at = AttentionInputs(trace, layer, own, _plain_rotary(block))
    tokens = list(trace.tokens)
    walk = Walk(trace, layer, head, tokens, tokens, cell)
    if model is not None and layer == 0 and trace.ids and _is_plain(model):
        norm = model.embedding.norm
        embedding_steps(walk, parameters, 0.0 if norm is None else norm.eps)
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
            "goes on: trace them too, or walk(text, model=...)"
        )
    return walk


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
    """Compute every step of one head of a single layer, without a model.

    Args:
        layer: an attention layer of any kind, or a block. The walk ends at the layer's output.
        x: `(L, D)`, the word vectors of the queries.
        context: `(S, D)`, the word vectors of the keys and values; by default `x`. A block takes no
            context.
        head: the head.
        tokens: L names for the rows of `x`; by default their indices.
        keys: S names for the rows of `context`.
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
        raise ValueError(
            f"walk: {', '.join(sorted(others))} is not an option of a walk (the "
            f"options are {', '.join(sorted(KNOWN))}): qkv.show shows the weights of "
            "layer.trace(x, ...)"
        )
    attn = layer.attn if isinstance(layer, Block) else layer
    if isinstance(layer, Block) and context is not None:
        raise ValueError("walk: a block attends only to x: for a context, walk through block.attn")
    inputs = [_one_text(x, "x")] + ([] if context is None else [_one_text(context, "context")])
    if not 0 <= head < attn.num_heads:
        heads = span(range(attn.num_heads))
        raise IndexError(f"walk: there is no head {head}: the heads are {heads}")
    trace = _traced(layer, inputs, options)
    names = _names(tokens, inputs[0], "tokens")
    key_names = names if context is None else _names(keys, inputs[1], "keys")
    trace = trace.with_tokens([names])
    parameters = {f"blocks.0.attn.{name}": array for name, array in attn.parameters.items()}
    at = AttentionInputs(trace, 0, parameters, _plain_rotary(layer))
    walk = Walk(trace, 0, head, names, key_names, _largest(trace, 0, head))
    given = [("word vectors", "X", "qkv"), ("other vectors", "C", "kv")]
    for (row, name, of), vectors in zip(given, inputs, strict=False):
        walk.given[name] = vectors.astype(trace["q", 0].dtype)
        walk.write(row)
        at.start(name, of)
    _norm_first(walk, at, layer)
    _from_projections_on(walk, at, layer)
    return walk


def _traced(
    layer: MultiHeadAttention | Block, inputs: Sequence[Array], options: dict[str, Any]
) -> Trace:
    """Trace a single layer, with activations named as in a model with one layer."""
    arrays = dict(layer.trace(*inputs, **options))
    if isinstance(
        layer, MultiHeadAttention
    ):  # the names have no block number, and the trace has no input
        arrays = {f"blocks.0.{'attn.' * (n in layer.hooks)}{n}": a for n, a in arrays.items()}
    numbers = [str(i) for i in range(len(inputs[0]))]
    settings = {0: settings_of(options, None)}
    return Trace(arrays, tokens=[numbers], settings=settings, model=type(layer).__name__)


def _norm_first(walk: Walk, at: AttentionInputs, block: Any) -> None:
    """Add the step of the norm before the attention, if the block has this norm."""
    norm = block.norm1 if isinstance(block, Block) and not block.post_norm else None
    if norm is None or "X" not in walk.arrays:
        return
    at.start(normed(walk, "X", "N", norm))


def _is_plain(model: Model) -> bool:
    """Return whether a walk can show the steps of the embedding."""
    embed = model.embedding
    plain = type(embed) is Embedding and embed.scale == 1 and embed.first_position == 0
    return plain and not embed.projection


def _plain_rotary(layer: Any) -> Rotary | None:
    """Return the rotation of queries and keys; None without a rotation that a walk can show."""
    attn = getattr(layer, "attn", layer)
    if attn is None or attn.rotary is None or attn.rotary.scaling is not None:
        return None
    return None if attn.q_norm is not None or attn.k_norm is not None else attn.rotary


def _from_projections_on(walk: Walk, at: AttentionInputs, layer: Any) -> str:
    """Add the steps from the layer's input to its output; return the name of the output.

    If the walk ends before the output, the name is empty.
    """
    trace, where = at.trace, f"blocks.{at.layer}."
    walk.given |= at.known
    context = head_steps(walk, at)
    walk.given["contexts"] = _contexts(walk, at, context)
    width, head = context.shape[1], walk.head
    walk.write(
        "joined", heads="[head 0 | head 1 | ⋯]" if at.count > 1 else "head 0", count=at.count,
        width=width, head=head, start=head * width, last=(head + 1) * width - 1,
    )  # fmt: skip
    walk.compare(f"{where}attn.hook_z")
    if "W_O" not in at.known or ("attn_out", at.layer) not in trace:
        return ""
    walk.arrays |= {name: at.known[name] for name in ("W_O", "b_O") if name in at.known}
    walk.write("out", **biased("b_O" if "b_O" in at.known else None), cell=(walk.position, 0))
    given, block = "out", layer if isinstance(layer, Block) else None
    if block is not None and block.out_norm1 is not None:
        given = normed(walk, given, "A", block.out_norm1)
    walk.compare(f"{where}hook_attn_out")
    if block is not None and block.parallel and "X" in walk.arrays:
        return parallel_steps(walk, block, given)
    if ("resid_mid", at.layer) not in trace:
        return given if isinstance(block, AttentionOnly) else ""
    if "X" not in walk.arrays:
        return ""
    walk.write("attention added", given=given, cell=(walk.position, 0))
    walk.compare(f"{where}hook_resid_mid")
    return block_steps(walk, block) if type(block) is Block else ""


def _contexts(walk: Walk, at: AttentionInputs, context: Array) -> list[Array]:
    """Return each head's context in the traced run; for ablated heads, the edited context."""
    trace, layer, head = at.trace, at.layer, walk.head
    without = {number for at_layer, number in trace.changed.get("ablate", ()) if at_layer == layer}
    contexts = {other: trace["z", layer][0][:, other] for other in without}
    if head in contexts:
        walk.write("instead", layer=layer, head=head)
    contexts.setdefault(head, context)
    for other in set(range(at.count)) - set(contexts):  # computed with the same lines of NumPy
        aside = replace(walk, head=other, steps=[], given=walk.known, arrays=dict(walk.arrays))
        contexts[other] = head_steps(aside, at)
    return [contexts[other] for other in range(at.count)]


def _refuse_edits(trace: Trace, layer: int, model: Model | None) -> None:
    """Raise an error if the run was edited at an activation that the walk recomputes."""
    own = [f"blocks.{layer}.", *["hook_"] * (layer == 0), *["ln_final."] * (model is not None)]
    for name in trace.changed.get("edit", ()):
        if name.startswith(tuple(own)):
            raise ValueError(
                f"walk: this run was edited at {name}, but a walk recomputes the model's own "
                "numbers: "
                "walk through a run without this edit, or call qkv.show(trace) for its weights"
            )


def _first_cell(trace: Trace, chosen: ChosenHead) -> tuple[int, int]:
    """Choose the query and key for the sums: at the first mask token, or by the strongest link."""
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
    """Convert word vectors to `(n, D)`; a batch of one is allowed."""
    array = as_array(x, call="walk", name=name)
    if array.ndim == 3 and len(array) == 1:
        array = array[0]
    if array.ndim != 2 or 0 in array.shape:
        raise ValueError(f"walk: {name} has shape {array.shape}: give one text, (L, D)")
    return array


def _names(given: Sequence[str] | None, x: Array, what: str) -> list[str]:
    """Return the given names of the rows; without names, return the row indices as strings."""
    if given is None:
        return [str(i) for i in range(len(x))]
    names = [str(name) for name in given]
    if len(names) != len(x):
        raise ValueError(
            f"walk: there are {len(x)} vectors and {len(names)} {what}: give one for each"
        )
    return names

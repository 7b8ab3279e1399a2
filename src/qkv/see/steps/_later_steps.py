"""The steps after the heads: the rest of the block, the later blocks, and the predicted words."""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.layers import MLP, Block, LayerNorm, RMSNorm
from qkv.models import Model
from qkv.models.network.design import Design, under
from qkv.models.network.head import BuiltHead
from qkv.models.tasks.predict import in_words, likeliest
from qkv.see.analysis import name_of
from qkv.see.steps.step import FEW, PHRASES, ROWS, Walk, bias_of, linear_step, phrase

Norm = LayerNorm | RMSNorm


def parallel_steps(walk: Walk, block: Block, attended: str) -> str:
    """Add the steps of an MLP parallel to the attention, and a step that adds the two results.

    The attention and the MLP both read `X`. `attended` is the name of the attention's result. The
    function returns the name of the sum.
    """
    read = "X" if block.norm1 is None else "N"
    if block.norm2 is not None:
        read = _compared_norm(walk, "X", "N2", block.norm2, "ln2.hook_normalized")
    output = _mlp_steps(walk, read, block)
    walk.write("both added", attended=attended, given=output, cell=(walk.position, 0))
    walk.compare(f"blocks.{walk.layer}.hook_resid_post")
    return "Y"


def block_steps(walk: Walk, block: Block) -> str:
    """Add the steps after `R`, the attention's residual sum; return the name of the result."""
    after = block.post_norm
    first, second, last = (block.norm1, None, block.norm2) if after else (None, block.norm2, None)
    inner = _compared_norm(walk, "R", "N1", first, "ln1.hook_normalized")
    if block.mlp is None:
        return inner
    read = _compared_norm(walk, inner, "N2", second, "ln2.hook_normalized")
    output = _mlp_steps(walk, read, block)
    row = "MLP added before the norm" if after else "MLP added"
    walk.write(row, read=inner, given=output, note="", cell=(walk.position, 0))
    walk.compare(f"blocks.{walk.layer}.hook_resid_post")
    return _compared_norm(walk, walk.steps[-1].name, "Y", last, "hook_normalized_resid_post")


def _compared_norm(walk: Walk, x: str, name: str, norm: Norm | None, hook: str) -> str:
    """Add the step of a norm; return the name of the step's result.

    The function also compares the step's result with the model's own result. If `norm` is None,
    return `x` without adding a step.
    """
    if norm is None:
        return x
    norm_step(walk, x, name, norm)
    walk.compare(f"blocks.{walk.layer}.{hook}")
    return name


def norm_step(walk: Walk, x: str, name: str, norm: Norm, **others: Any) -> str:
    """Add the step of one of the model's norms; return the name of the result.

    `others` are arguments for `Walk.write`.
    """
    mark = "" if "gain" not in walk.arrays else f"_{name}"  # the first norm's `gain` has no suffix
    gain, least = f"gain{mark}", f"eps{mark}"
    shift = f"shift{mark}" if "bias" in norm.parameters else None
    learned = {gain: norm.scaled()} | ({shift: norm.parameters["bias"]} if shift else {})
    eps = float(norm.eps)
    walk.inputs |= learned | {least: eps}
    walk.arrays |= learned
    row = "rms norm" if isinstance(norm, RMSNorm) else "norm"
    note, others = PHRASES.get(name, ""), {"side": "queries", "cell": (walk.position, 0)} | others
    walk.write(
        row, of=x, name=name, gain=gain, least=least, eps=eps, note=note, **bias_of(shift), **others
    )
    return name


def activation_step(walk: Walk, x: str, name: str, activation: str, **others: Any) -> None:
    """Add the step of an activation function; `others` are arguments for `Walk.write`."""
    row = activation.replace("_bloom", "_tanh")
    if "erf(" in ROWS[row]["code"]:
        walk.inputs["erf"] = np.vectorize(math.erf, otypes=[walk.arrays[x].dtype])
    walk.write(row, x=x, name=name, **others)


def _mlp_steps(walk: Walk, read: str, block: Block) -> str:
    """Add the steps of a block's MLP and of the norm after the MLP; return the result's name."""
    if isinstance(block.mlp, MLP):
        _unit_steps(walk, read, block.mlp)
    else:
        walk.write("experts", layer=walk.layer)
    output = "mlp" if block.out_norm2 is None else norm_step(walk, "mlp", "M", block.out_norm2)
    walk.compare(f"blocks.{walk.layer}.hook_mlp_out")
    return output


def _unit_steps(walk: Walk, read: str, mlp: MLP) -> None:
    """Add the steps of the activation and of the up, down and (if present) gate projections.

    The steps show only the largest hidden units.
    """
    where, first, cell = f"blocks.{walk.layer}.mlp.hook_", len(walk.steps), (walk.position, 0)
    gate, up, down = (under(mlp.parameters, f"{name}_proj.") for name in ("gate", "up", "down"))
    row, learned = ("gate", gate) if mlp.gated else ("up", up)
    linear_step(walk, row, learned, x=read, cell=cell)
    walk.compare(f"{where}pre")
    name = "act" if mlp.gated else "post"
    activation_step(walk, "pre", name, mlp.activation, columns="F", side="queries", cell=cell)
    if mlp.gated:
        linear_step(walk, "up beside the gate", up, x=read, cell=cell)
        walk.compare(f"{where}pre_linear")
        walk.write("gated", cell=cell)
    walk.compare(f"{where}post")
    units = walk.show_units(range(first, len(walk.steps)), "post")
    linear_step(walk, "down", down, units=units, count=mlp.hidden, cell=cell)


def word_steps(walk: Walk, model: Model, last: str) -> None:
    """Add the steps after the walk's block, up to the probabilities of the words.

    One step stands for all later blocks. The steps of the final norm and the language-model head
    follow.

    Args:
        walk: the walk so far.
        model: the model.
        last: the name of the block's result.
    """
    kind = "normalized_resid_post" if model.layers[-1].post_norm else "resid_post"
    end = model.num_layers - 1
    if walk.layer < end:
        if (kind, end) not in walk.trace:
            walk.end(
                f"the trace lacks hook_{kind} of layer {end}, where the walk continues: trace it "
                "too, or call walk(text, model=...)"
            )
            return
        last = later_step(walk, kind, end, cell=(walk.position, 0))
    head = word_head(model)
    before = walk.trace[kind, end][0] if (kind, end) in walk.trace else walk.arrays[last]
    design = model.design
    norm = design.norm(model.parameters, "final_norm") if isinstance(design, Design) else None
    if norm is not None:
        last = norm_step(walk, last, "final", norm)
        walk.compare("ln_final.hook_normalized")
    if head is None:
        walk.end("the model has no language-model head, so the walk ends with the last vectors")
        return
    position = walk.position
    logits = walk.trace["logits"][0][[position]] if "logits" in walk.trace else None
    if logits is None:
        logits = model.unembed(before[[position]])
    words = _name_words(walk, model, logits)
    walk.write("position", last=last, position=position, cell=(0, 0))
    _head_steps(walk, head, logits, words)


def word_head(model: Model) -> BuiltHead | None:
    """Build the language-model head; None if the model does not predict words."""
    design = model.design
    if not isinstance(design, Design) or design.head is None:
        return None
    head = design.head.build(model.parameters, norm=design.norm)
    for weight in model.network.final_proj.values():  # shown as the head's first layer
        parameters = {**head.parameters, "head.dense_proj.weight": weight}
        head = replace(head, steps=replace(head.steps, dense=True), parameters=parameters)
    return head if head.predicts else None


def later_step(walk: Walk, hook: str, end: int, **others: Any) -> str:
    """Add all later blocks as one step; return the name of the step's result."""
    first = walk.layer + 1
    row = "later block" if first == end else "later blocks"
    walk.write(row, hook=hook, first=first, end=end, **others)
    return "Z"


def probabilities_step(walk: Walk, words: dict[int, str], where: str) -> None:
    """Add the step with the probabilities of words; `where` is a phrase for the position."""
    walk.write("probabilities", where=where, cell=(0, next(iter(words))), shown=words)


def _head_steps(walk: Walk, head: BuiltHead, logits: Array, words: dict[int, str]) -> None:
    """Add the steps of the language-model head, which reads `y`, the vector at the position."""
    how, last, cell = head.steps, "y", (0, 0)
    if how.dense:
        linear_step(walk, "head", under(head.parameters, "head.dense_proj."), cell=cell)
        last = "h"
    if how.activation is not None:
        activation_step(walk, last, "a", how.activation, columns="D", side="position", cell=cell)
        last = "a"
    if head.norm is not None:
        last = norm_step(walk, last, "u", head.norm, side="position", cell=cell)
    if how.scale != 1:
        scale = float(how.scale)
        walk.write("scaled before the words", x=last, by=f"{scale:g}", scale=scale, cell=cell)
        last = "s"
    few: dict[str, Any] = {"cell": (0, next(iter(words))), "shown": words}
    linear_step(
        walk, "logits", under(head.parameters, "head.out_proj."), x=last,
        name="logits" if how.softcap is None else "raw",
        note=phrase("words", words=len(words), count=how.outputs), **few,
    )  # fmt: skip
    if how.softcap is not None:
        walk.write("capped", by=f"{how.softcap:g}", cap=float(how.softcap), **few)
    walk.compare("logits", logits)
    where = "follows" if walk.next_word else "stands"
    probabilities_step(walk, words, phrase(where, token=name_of(walk.trace.tokens[walk.position])))


def _name_words(walk: Walk, model: Model, logits: Array) -> dict[int, str]:
    """Store the likeliest words and their probabilities; return the words, keyed by token id."""
    count, position = min(FEW, logits.shape[1]), walk.position
    finite = bool(np.isfinite(logits.max()))
    ranked = likeliest(logits, count)[0] if finite else [(token, np.nan) for token in range(count)]
    walk.next_word = model.generates
    behind = position if walk.next_word else position - 1
    ids, tokenizer = walk.trace.ids[max(0, behind) : behind + 1], model.tokenizer
    names = [tokenizer.token(token) for token in ids] if tokenizer is not None else []
    (walk.words,) = in_words([ranked], [[name for name in names if name is not None]], tokenizer)
    return {token: word for (token, _), (word, _) in zip(ranked, walk.words, strict=True)}


# The activations of a block after its heads, in order, with their names in a trace. `_NORMED` maps
# the norms to their names in a walk. A trace has only some of these activations, since models put
# norms at different positions.
_BLOCK = (
    *("attn_out", "resid_mid", "ln1.normalized", "ln2.normalized", "mlp.pre", "mlp.pre_linear"),
    *("mlp.post", "mlp_out", "resid_post", "normalized_resid_post"),
)
_NORMED = {"ln1.normalized": "N1", "ln2.normalized": "N2", "normalized_resid_post": "Y"}
_NEEDED = "walk(trace, model=...) shows how these numbers are computed"


def traced_steps(walk: Walk) -> None:
    """Add the steps from the heads to the logits, as far as the trace has their numbers."""
    trace, layer = walk.trace, walk.layer
    held = [name for name in _BLOCK if (name, layer) in trace and not _is_skipped(walk, name)]
    if not held:
        walk.end(
            "the trace holds no numbers after the heads: call walk(trace, model=...) for more steps"
        )
        return
    first = len(walk.steps)
    for name in held:
        if name in _NORMED:
            norm = _NORMED[name]
            walk.write("traced norm", name=norm, key=f'"{name}", {layer}', note=PHRASES[norm])
        elif name == "resid_post":
            result = "R2" if held[-1] == "normalized_resid_post" else "Y"
            source = f'trace["{name}", {layer}][0]'
            walk.write(_sum_row(walk), name=result, layer=layer, source=source)
        else:
            walk.write(f"traced {name}", layer=layer)
    if hidden := [k for k, step in enumerate(walk.steps) if k >= first and "F=" in step.shape]:
        walk.show_units(hidden, "post" if "post" in walk.arrays else "pre")
    _later(walk)
    if "logits" not in trace:
        walk.end(
            f"{_NEEDED}, and adds the steps up to the predicted words; without model=..., "
            "a walk shows the logits of a trace made with trace(text, logits=True)"
        )
        return
    logits, position = trace["logits"][0], walk.position
    order = np.argsort(-np.nan_to_num(logits[position], nan=-np.inf), kind="stable")[:FEW].tolist()
    words = {token: str(token) for token in order}
    note = phrase("words", words=len(words), count=logits.shape[1])
    walk.write("traced logits", position=position, shown=words, note=note)
    probabilities_step(walk, words, PHRASES["by number"])
    walk.end(f"{_NEEDED}, and which words they belong to")


def _sum_row(walk: Walk) -> str:
    """Choose a row of steps.json for the block's output (its last sum); return the row's name."""
    if ("mlp_out", walk.layer) not in walk.trace:
        return "output"
    both = ("resid_mid", walk.layer) not in walk.trace
    return "traced resid_post of both" if both else "traced resid_post"


def _is_skipped(walk: Walk, name: str) -> bool:
    """Return whether this norm precedes the heads and is therefore not a later step."""
    if name == "ln1.normalized":
        return ("normalized_resid_post", walk.layer) not in walk.trace
    return name == "ln2.normalized" and ("normalized_resid_post", walk.layer) in walk.trace


def _later(walk: Walk) -> None:
    """Add the steps of the later blocks and of the final norm, with results from the trace."""
    trace, end = walk.trace, walk.trace.num_layers - 1
    after = [kind for kind in ("normalized_resid_post", "resid_post") if (kind, end) in trace]
    if walk.layer < end and after:
        later_step(walk, after[0], end)
    if "ln_final.hook_normalized" in trace:
        key = '"ln_final.hook_normalized"'
        walk.write("traced norm", name="final", key=key, note=PHRASES["final"])

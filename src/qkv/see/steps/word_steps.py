"""From what a block gives to the likeliest words at the place that is walked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from qkv.arrays import Array
from qkv.attend import softmax
from qkv.models.network.design import Design, under
from qkv.models.network.head import BuiltHead
from qkv.models.tasks.predict import in_words, likeliest
from qkv.see.steps.block_steps import activation_step, normed
from qkv.see.steps.step import FEW, Walk, linear_step

if TYPE_CHECKING:
    from qkv.models import Model


def word_steps(walk: Walk, model: Model, last: str) -> None:
    """The later blocks in one step, the final norm, the head, and the chances of words.

    Args:
        walk: the walk so far.
        model: the model.
        last: what the walk calls what the block gives.
    """
    kind = "normalized_resid_post" if model.layers[-1].post_norm else "resid_post"
    end, layers = model.num_layers - 1, f"{walk.layer + 1} to {model.num_layers - 1}"
    if walk.layer < end:
        if (kind, end) not in walk.trace:
            walk.end(
                f"the trace lacks hook_{kind} of layer {end}, where the walk goes on: trace it "
                "too, or walk(text, model=...)"
            )
            return
        one = walk.layer + 1 == end
        walk.given["trace"] = walk.trace
        walk.write_given(
            f"Block {end} does the same with other weights" if one
            else f"Blocks {layers} do the same with other weights",
            "Z", f'trace["{kind}", {end}][0]', walk.trace[kind, end][0], "D",
            cell=(walk.place, 0), note=f"what block {end} gives",
        )  # fmt: skip
        last = "Z"
    head = word_head(model)
    before = walk.trace[kind, end][0] if (kind, end) in walk.trace else walk.arrays[last]
    design = model.design
    norm = design.norm(model.parameters, "final_norm") if isinstance(design, Design) else None
    if norm is not None:
        last = normed(walk, last, "final", norm, "the last vectors of the model")
        walk.compare("ln_final.hook_normalized")
    if head is None:
        walk.end("the model has no head over words, so the walk ends at its last vectors")
        return
    place = walk.place
    own = walk.trace["logits"][0][[place]] if "logits" in walk.trace else None
    if own is None:
        own = model.unembed(before[[place]])
    shown = _name_words(walk, model, own)
    walk.write(
        "The place that is walked: each goes through the head by itself", f"y = {last}[{place}]",
        f"y = {last}[[{place}]]", "y", walk.arrays[last][[place]],
        {"kind": "row", "of": last, "rows": [place]}, "D", side="place", cell=(0, 0),
    )  # fmt: skip
    _head_steps(walk, head, own, shown)


def word_head(model: Model) -> BuiltHead | None:
    """What gives a model's logits over words; None where there is no such head."""
    design = model.design
    if not isinstance(design, Design) or design.head is None:
        return None
    head = design.head.build(model.parameters, norm=design.norm)
    return head if head.predicts else None


def chances_step(walk: Walk, shown: dict[int, str], title: str) -> None:
    """The chance of each word."""
    best = next(iter(shown))
    walk.write(
        title, "chances[i] = exp(logits[i]) / Σₖ exp(logits[k])",
        "chances = np.exp(logits - logits.max())\nchances = chances / chances.sum()", "chances",
        softmax(walk.arrays["logits"].astype(np.float64)), {"kind": "softmax", "of": "logits"},
        "V", side="place", cell=(0, best), shown=shown, weights=True,
    )  # fmt: skip


def _head_steps(walk: Walk, head: BuiltHead, own: Array, shown: dict[int, str]) -> None:
    """The head at the place, from `y` on."""
    how, last = head.steps, "y"
    one: dict[str, Any] = {"side": "place", "cell": (0, 0)}
    if how.dense:
        own_part = under(head.parameters, "head.dense_proj.")
        linear_step(walk, "The head, a linear layer", last, "h", "head", own_part, "D", **one)
        last = "h"
    if how.activation is not None:
        activation_step(walk, last, "a", how.activation, columns="D", **one)
        last = "a"
    if head.norm is not None:
        last = normed(walk, last, "u", head.norm, "", side="place")
    if how.scale != 1:
        line = f"s = {last} * {how.scale!r}"
        walk.write(
            "Scaled before the words", line, line, "s",
            walk.arrays[last] * walk.arrays[last].dtype.type(how.scale),
            {"kind": "scaled", "of": last, "by": f"* {how.scale:g}"}, "D", **one,
        )  # fmt: skip
        last = "s"
    few: dict[str, Any] = {"side": "place", "cell": (0, next(iter(shown))), "shown": shown}
    count = f"the {len(shown)} largest of V={how.outputs}"
    name = "logits" if how.softcap is None else "raw"
    linear_step(
        walk, "A logit for each word: how well the vector fits the word's own", last, name, "U",
        under(head.parameters, "head.out_proj."), "V", note=count, **few,
    )  # fmt: skip
    if how.softcap is not None:
        cap = how.softcap
        line = f"logits = {cap!r} * np.tanh(raw / {cap!r})"
        walk.write(
            f"Capped: no logit is beyond {cap:g}", f"logits = {cap:g} · tanh(raw / {cap:g})", line,
            "logits", np.tanh(walk.arrays["raw"] / cap) * cap,
            {"kind": "capped", "of": "raw", "cap": float(cap)}, "V", **few,
        )  # fmt: skip
    walk.compare("logits", own)
    chances_step(walk, shown, _what_comes(walk))


def _what_comes(walk: Walk) -> str:
    """What the chances are of."""
    token = walk.tokens[walk.place]
    if walk.next_word:
        return f"Softmax: the chance of each word to follow {token}"
    return f"Softmax: the chance of each word to stand at {token}"


def _name_words(walk: Walk, model: Model, own: Array) -> dict[int, str]:
    """The likeliest words by their ids; they and their chances are kept with the walk."""
    count, place = min(FEW, own.shape[1]), walk.place
    finite = bool(np.isfinite(own.max()))
    ranked = likeliest(own, count)[0] if finite else [(one, np.nan) for one in range(count)]
    walk.next_word = model.generates
    behind = place if walk.next_word else place - 1
    ids, tokenizer = walk.trace.ids[max(0, behind) : behind + 1], model.tokenizer
    names = [tokenizer.token(one) for one in ids] if tokenizer is not None else []
    (walk.words,) = in_words([ranked], [[name for name in names if name is not None]], tokenizer)
    return {one: word for (one, _), (word, _) in zip(ranked, walk.words, strict=True)}

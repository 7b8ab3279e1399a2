"""From what a block gives to the likeliest words at the place that is walked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from qkv.arrays import Array
from qkv.models.network.design import Design, under
from qkv.models.network.head import BuiltHead
from qkv.models.tasks.predict import in_words, likeliest
from qkv.see.steps.block_steps import activation_step, normed
from qkv.see.steps.rows import phrase
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
    end = model.num_layers - 1
    if walk.layer < end:
        if (kind, end) not in walk.trace:
            walk.end(
                f"the trace lacks hook_{kind} of layer {end}, where the walk goes on: trace it "
                "too, or walk(text, model=...)"
            )
            return
        last = later_step(walk, kind, end, cell=(walk.place, 0))
    head = word_head(model)
    before = walk.trace[kind, end][0] if (kind, end) in walk.trace else walk.arrays[last]
    design = model.design
    norm = design.norm(model.parameters, "final_norm") if isinstance(design, Design) else None
    if norm is not None:
        last = normed(walk, last, "final", norm)
        walk.compare("ln_final.hook_normalized")
    if head is None:
        walk.end("the model has no head over words, so the walk ends at its last vectors")
        return
    place = walk.place
    own = walk.trace["logits"][0][[place]] if "logits" in walk.trace else None
    if own is None:
        own = model.unembed(before[[place]])
    shown = _name_words(walk, model, own)
    walk.write("place", last=last, place=place, cell=(0, 0))
    _head_steps(walk, head, own, shown)


def word_head(model: Model) -> BuiltHead | None:
    """What gives a model's logits over words; None where there is no such head."""
    design = model.design
    if not isinstance(design, Design) or design.head is None:
        return None
    head = design.head.build(model.parameters, norm=design.norm)
    return head if head.predicts else None


def later_step(walk: Walk, hook: str, end: int, **others: Any) -> str:
    """What the later blocks give, to the last; gives its name."""
    first = walk.layer + 1
    row = "later block" if first == end else "later blocks"
    walk.write(row, hook=hook, first=first, end=end, **others)
    return "Z"


def chances_step(walk: Walk, shown: dict[int, str], where: str) -> None:
    """The chance of each word; `where`, in words."""
    walk.write("chances", where=where, cell=(0, next(iter(shown))), shown=shown)


def _head_steps(walk: Walk, head: BuiltHead, own: Array, shown: dict[int, str]) -> None:
    """The head at the place, from `y` on."""
    how, last, cell = head.steps, "y", (0, 0)
    if how.dense:
        linear_step(walk, "head", under(head.parameters, "head.dense_proj."), cell=cell)
        last = "h"
    if how.activation is not None:
        activation_step(walk, last, "a", how.activation, columns="D", side="place", cell=cell)
        last = "a"
    if head.norm is not None:
        last = normed(walk, last, "u", head.norm, "place")
    if how.scale != 1:
        scale = float(how.scale)
        walk.write("scaled before the words", x=last, by=f"{scale:g}", scale=scale, cell=cell)
        last = "s"
    few: dict[str, Any] = {"cell": (0, next(iter(shown))), "shown": shown}
    linear_step(
        walk, "logits", under(head.parameters, "head.out_proj."), x=last,
        name="logits" if how.softcap is None else "raw",
        note=phrase("words", words=len(shown), count=how.outputs), **few,
    )  # fmt: skip
    if how.softcap is not None:
        walk.write("capped", by=f"{how.softcap:g}", cap=float(how.softcap), **few)
    walk.compare("logits", own)
    where = "follows" if walk.next_word else "stands"
    chances_step(walk, shown, phrase(where, token=walk.tokens[walk.place]))


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

"""One head step by step: `walk`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from qkv.layers import Block, MultiHeadAttention
from qkv.see.analysis import findings
from qkv.see.analysis.heads import heads_of
from qkv.see.analysis.inputs import model_of, texts_of
from qkv.see.analysis.words import quoted
from qkv.see.draw.colours import scale_end
from qkv.see.draw.panels import PICTURE, TERMINAL, HeatMap, Numbers, Panel, Prose
from qkv.see.page.payload import check_theme
from qkv.see.page.walk import walk_payload
from qkv.see.steps.step import Step
from qkv.see.steps.walk import Walk, walk_head, walk_layer
from qkv.see.views.head_panels import EACH_ROW, arrows_of, heading_of
from qkv.see.views.view import Heading, View
from qkv.trace import Seq2SeqTrace, Trace

if TYPE_CHECKING:
    from qkv.models import Model


# What `to_dict` gives of a step.
_SAID = ("title", "formula", "shape", "code", "name", "values", "sum", "note")


@dataclass(frozen=True, eq=False, repr=False)
class WalkView(View):
    """One head step by step, and the recomputed output beside the model's own."""

    walk: Walk

    @property
    def top(self) -> float:
        """Where the scale of weights ends."""
        return scale_end([step.values for step in self.walk.steps if step.weights], self.stretch)

    @property
    def steps(self) -> list[Step]:
        """The steps, in order."""
        return self.walk.steps

    @property
    def difference(self) -> float:
        """The largest difference between the recomputed output and the model's own."""
        return self.walk.difference

    @property
    def sentence(self) -> str:
        """How the recomputed output compares with the model's own, in words."""
        return (
            f"Recomputed by these lines against the model's own {self.walk.own_name}: "
            f"the largest difference is {self.difference:.1e}."
        )

    @property
    def title(self) -> str:
        """Which head it is."""
        return f"Layer {self.walk.layer}, head {self.walk.head}, step by step."

    def panels(self) -> list[list[Panel]]:
        """Each step; then both outputs, and as pictures scores, weights and words."""
        walk = self.walk
        steps = [[panel] for n, step in enumerate(walk.steps, 1) for panel in self._step(n, step)]
        outputs: list[Panel] = [
            Prose(text=self.sentence, shown_in=PICTURE),
            Numbers(
                title=self.sentence,
                values=np.concatenate([walk.recomputed[:1], walk.own[:1]]),
                rows=["recomputed", "own"],
            ),
        ]
        return [*steps, *([panel] for panel in outputs), self._pictures()]

    def _step(self, number: int, step: Step) -> list[Panel]:
        """One step as a terminal shows it."""
        title = f"{number}. {step.title}"
        line = Prose(text=f"{title}: {step.formula} {step.shape}", shown_in=PICTURE)
        code = Prose(text=step.code, style="green", indent=3, code=True, shown_in=TERMINAL)
        formula = replace(code, text=step.formula, style="italic")
        lines = [formula, code] if step.formula != step.code else [code]
        lines[0] = replace(lines[0], title=f"{title}  {step.shape}")
        values: Panel = Numbers(
            values=step.values, rows=step.rows, columns=step.columns, cell=step.cell,
            hidden=step.hidden,
        )  # fmt: skip
        if step.weights:
            values = HeatMap(
                values=step.values, rows=step.rows, columns=self.walk.keys, hidden=step.hidden,
                top=self.top, most_rows=12, shown_in=TERMINAL,
            )  # fmt: skip
        said = [
            Prose(text=text, style=style, indent=3, shown_in=TERMINAL)
            for text, style in ((step.sum, ""), (step.note, "dim"))
            if text
        ]
        return [line, *lines, values, *said]

    def _pictures(self) -> list[Panel]:
        """The scaled scores, the weights they become, and the words before and after."""
        walk, where = self.walk, f"layer {self.walk.layer}, head {self.walk.head}"
        by_name = {step.name: step for step in walk.steps}
        scores, weights = by_name.get("masked", by_name["scaled"]), by_name["weights"]
        own = walk.keys is walk.tokens
        score = weights.values
        if own:
            score = heads_of(walk.trace).between_content(weights.values)
        shown = HeatMap(
            title=f"Scaled scores of {where}", explained="each row: one query, every key",
            values=scores.values, rows=walk.tokens, columns=walk.keys, hidden=scores.hidden,
            score=score, top=None, of="score", shown_in=PICTURE,
        )  # fmt: skip
        softmax = replace(
            shown, title=f"Softmax of each row: the weights of {where}", explained=EACH_ROW,
            values=weights.values, top=self.top, of="weight",
        )  # fmt: skip
        return [shown, softmax, *arrows_of(walk.trace)]

    def _headings(self) -> list[Heading]:
        return [heading_of(self.walk.trace)]

    def _numbers(self) -> dict[str, Any]:
        """The numbers of the view."""
        walk = self.walk
        return {
            "model": walk.trace.model,
            "tokens": walk.tokens,
            "keys": None if walk.keys is walk.tokens else walk.keys,
            "layer": walk.layer,
            "head": walk.head,
            "steps": [{name: getattr(step, name) for name in _SAID} for step in walk.steps],
            "own_name": walk.own_name,
            "own": walk.own,
            "recomputed": walk.recomputed,
            "largest_difference": self.difference,
        }

    def _payload(self) -> dict[str, Any]:
        walk = self.walk
        title = quoted(walk.trace.text, walk.tokens, walk.trace.special)
        return self._page("walk", title, walk=walk_payload(walk) | {"sentence": self.sentence})


def walk(
    text_or_trace: str | Trace | MultiHeadAttention | Block,
    layer: int = 0,
    head: int = 0,
    *,
    model: Model | str | None = None,
    theme: str = "auto",
    stretch: bool = False,
    x: Any = None,
    context: Any = None,
    tokens: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    **options: Any,
) -> WalkView:
    """Each step of one head with its formula, its NumPy line and its real numbers.

    Computed anew, in plain NumPy, from the words to the layer's output, which is then compared with
    the model's own.

    Args:
        text_or_trace: a text, or a model's trace of one text. Without `model` the walk over a trace
            starts from its Q, K and V and ends before the output projection. Or a layer: a
            `MultiHeadAttention`, `SelfAttention` or `Block`, with `x`.
        layer: the layer, from 0, or from the end with -1.
        head: the head, from 0.
        model: the model, or its name; for a text the default model if left out.
        theme: of the page: "light", "dark", or "auto" for what the reader's system prefers.
        stretch: whether scales end at the largest weight that is shown, and not at 1.
        x: `(L, D)`, the word vectors that a layer is given.
        context: `(S, D)`, what a layer looks at where that is not `x`.
        tokens: L names for the rows of `x`.
        keys: S names for the rows of `context`.
        **options: what a layer runs with: `is_causal`, `window`, `attn_mask` and so on.

    Raises:
        ValueError: the text is empty, or the trace lacks what is needed.
        IndexError: there is no such layer or head; the message names the range.

    >>> view = walk("The cat sat on the mat", model="random")
    >>> [step.name for step in view.steps]
    ['E', 'P', 'X', 'Q', 'K', 'V', 'scores', 'scaled', 'weights', 'context', 'joined', 'out']
    >>> view.difference < 1e-6
    True
    """
    check_theme(theme, "walk")
    if isinstance(text_or_trace, MultiHeadAttention | Block):
        if x is None:
            raise TypeError("walk: a layer needs word vectors: walk(layer, x=...)")
        found = walk_layer(
            text_or_trace, x, context, head=head, tokens=tokens, keys=keys, **options
        )
        return WalkView(found, theme=theme, stretch=stretch)
    if hasattr(text_or_trace, "__array__") or isinstance(text_or_trace, list | tuple):
        raise TypeError(
            "walk: weights alone cannot be walked through, without queries, keys and values: give "
            "a text, a trace or a layer; qkv.show(weights, tokens=...) shows weights"
        )
    given = {"x": x, "context": context, "tokens": tokens, "keys": keys, **options}
    needless = [name for name, value in given.items() if value is not None]
    if needless:
        raise TypeError(f"walk: {needless[0]} is for a walk through a layer: leave it out")
    if isinstance(text_or_trace, Trace | Seq2SeqTrace):
        trace = findings.one_text(text_or_trace, "walk")
        if model is None:
            return WalkView(walk_head(trace, layer, head), theme=theme, stretch=stretch)
        used = model_of(model, [" ".join(trace.tokens)])
    else:
        (text,) = texts_of([text_or_trace], "walk")
        used = model_of(model, [text])
        trace = findings.readable(used.trace(text))
    found = walk_head(trace, layer, head, used)
    return WalkView(found, theme=theme, stretch=stretch)

"""The view `walk`, for one head step by step."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from qkv._argument_errors import public_call, type_error
from qkv.arrays import Array
from qkv.layers import Block, MultiHeadAttention
from qkv.models import Model
from qkv.see.analysis import (
    is_ids,
    labels_of,
    model_of,
    one_text,
    quote_words,
    readable_trace,
    reader_for,
    removal_of,
)
from qkv.see.analysis.head_weights import by_word, heads_of
from qkv.see.analysis.selection import ChosenHead, choose_head
from qkv.see.draw.colours import scale_end
from qkv.see.draw.panels import PICTURE, TERMINAL, Bars, HeatMap, Numbers, Panel, Prose
from qkv.see.page.html import about_model
from qkv.see.page.payload import check_theme, walk_payload
from qkv.see.steps.step import Step
from qkv.see.steps.walk import Walk, walk_head, walk_layer
from qkv.see.views.view import EACH_ROW, Heading, View, arrows_of
from qkv.trace import Seq2SeqTrace, Trace

# `to_dict` returns these attributes of each step.
_OF_A_STEP = ("title", "formula", "shape", "code", "name", "sum", "note")


@dataclass(frozen=True, eq=False, repr=False)
class WalkView(View):
    """The steps of a computation: from the words, through one head, to the predicted words.

    The view compares the recomputed numbers with the model's own numbers.

    Attributes:
        walk: the steps.
        model: the model whose parameters are used; None if it is not known.
        head: the head, and why it was chosen; None for a layer without a model.
    """

    walk: Walk
    model: Model | None = None
    head: ChosenHead | None = None

    @property
    def top(self) -> float:
        """Return the upper end of the weight scale."""
        maps = (step for step in self.walk.steps if step.weights and step.name != "probs")
        return scale_end([step.values for step in maps], self.stretch)

    @property
    def steps(self) -> list[Step]:
        """Return the steps, in order."""
        return self.walk.steps

    @property
    def words(self) -> list[tuple[str, float]]:
        """Return the likeliest words at the walk's position and their probabilities, largest first.

        The list is empty if the walk ends before the step that guesses words.
        """
        return self.walk.words

    @property
    def difference(self) -> float:
        """Return the largest difference between recomputed numbers and the model's own numbers."""
        return self.walk.difference

    @property
    def sentence(self) -> str:
        """Name the likeliest word; state how far recomputed numbers differ from the model's own."""
        first, last = self.walk.compared[0][1], self.walk.own_name
        names = last if first == last else f"numbers, from {first} to {last},"
        compared = (
            "The largest difference between the recomputed numbers and the model's own "
            f"{names} is {self.difference:.1e}."
        )
        return f"{self.walk.likeliest} {compared}" if self.words else compared

    @property
    def title(self) -> str:
        """Name the head."""
        which = f"Layer {self.walk.layer}, head {self.walk.head}, step by step."
        return f"{which} {self.head.headline}" if self.head and self.head.headline else which

    @property
    def reasons(self) -> list[str]:
        """Explain why the view chose this head; the list is empty if the caller chose the head."""
        if self.head is None or self.head.stands_out is None:
            return []
        return [f"This head is shown because {self.head.reason}."]

    def panels(self) -> list[list[Panel]]:
        """In a terminal, show all steps; in a picture, show only scores, weights and words."""
        walk = self.walk
        steps = [[panel] for n, step in enumerate(walk.steps, 1) for panel in self._step(n, step)]
        outputs: list[Panel] = [
            Prose(text=self.sentence, shown_in=PICTURE),
            Numbers(
                title=self.sentence,
                values=np.concatenate([self._few(walk.recomputed)[:1], self._few(walk.own)[:1]]),
                rows=["recomputed", "own"],
                columns=walk.last_compared.names,
            ),
        ]
        last = walk.steps[-1]
        bars = replace(self._probabilities(last), title=last.title, shown_in=PICTURE)
        rows: list[list[Panel]] = [[bars]] if last.name == "probs" else []
        return [*steps, *([panel] for panel in outputs), self._pictures(), *rows]

    def _few(self, values: Array) -> Array:
        """Return the numbers of the last compared step; columns that are not shown are left out."""
        columns = self.walk.last_compared.shown
        return values if columns is None else values[:, list(columns)]

    def _probabilities(self, step: Step) -> Bars:
        """Show the probability of each likely word with a bar."""
        values = [probability for _, probability in self.words] or step.few[0].tolist()
        return Bars(names=step.names or [], values=values, top=1.0, shown_in=TERMINAL)

    def _step(self, number: int, step: Step) -> list[Panel]:
        """Show one step in a terminal."""
        title = f"{number}. {step.title}"
        line = Prose(text=f"{title}: {step.formula} {step.shape}", shown_in=PICTURE)
        code = Prose(text=step.code, style="green", indent=3, code=True, shown_in=TERMINAL)
        formula = replace(code, text=step.formula, style="italic")
        lines = [formula, code] if step.formula != step.code else [code]
        lines[0] = replace(lines[0], title=f"{title}  {step.shape}")
        cell = step.cell
        if cell is not None and step.shown is not None:
            cell = cell[0], list(step.shown).index(cell[1])
        values: Panel = Numbers(
            values=step.few, rows=step.rows, columns=step.names, cell=cell, hidden=step.hidden
        )
        if step.name == "probs":
            values = self._probabilities(step)
        elif step.weights:
            values = HeatMap(
                values=step.values, rows=step.rows, columns=labels_of(self.walk.keys),
                hidden=step.hidden, top=self.top, most_rows=12, shown_in=TERMINAL,
            )  # fmt: skip
        notes = [
            Prose(text=text, style=style, indent=3, shown_in=TERMINAL)
            for text, style in ((step.sum, ""), (step.note, "dim"))
            if text
        ]
        return [line, *lines, values, *notes]

    def _pictures(self) -> list[Panel]:
        """Show the scaled scores, their softmax, and the words before and after attention."""
        walk, where = self.walk, f"layer {self.walk.layer}, head {self.walk.head}"
        by_name = {step.name: step for step in walk.steps}
        scores, weights = by_name.get("masked", by_name["scaled"]), by_name["weights"]
        same_text = walk.keys is walk.tokens
        score = weights.values
        if same_text:
            score = heads_of(walk.trace).between_content(weights.values)
        heat = HeatMap(
            title=f"Scaled scores of {where}", explained="each row: one query, every key",
            values=scores.values, rows=labels_of(walk.tokens), columns=labels_of(walk.keys),
            hidden=scores.hidden, score=score, top=None, of="score", shown_in=PICTURE,
        )  # fmt: skip
        softmax = replace(
            heat, title=f"Softmax of each row: the weights of {where}", explained=EACH_ROW,
            values=weights.values, top=self.top, of="weight",
        )  # fmt: skip
        return [heat, softmax, *arrows_of(walk.trace)]

    def _headings(self) -> list[Heading]:
        return [Heading.of(self.walk.trace)]

    def _numbers(self) -> dict[str, Any]:
        """Return the numbers of the view."""
        walk = self.walk
        return {
            "model": walk.trace.model,
            "tokens": walk.tokens,
            "keys": None if walk.keys is walk.tokens else walk.keys,
            "layer": walk.layer,
            "head": walk.head,
            "chosen": self.head and self.head.reason,
            "stands_out": self.head and self.head.stands_out,
            "place": walk.position,
            "steps": [
                {name: getattr(step, name) for name in _OF_A_STEP}
                | {"columns": step.names, "values": step.few}
                | {"shown": None if step.shown is None else list(step.shown)}
                for step in walk.steps
            ],
            "words": [
                {"word": word, "probability": probability} for word, probability in self.words
            ],
            "own_name": walk.own_name,
            "own": self._few(walk.own),
            "recomputed": self._few(walk.recomputed),
            "largest_difference": self.difference,
        }

    def _payload(self) -> dict[str, Any]:
        walk = self.walk
        title = quote_words(walk.trace.text, walk.tokens, walk.trace.special)
        texts = {"sentence": self.sentence, "which": self.title, "reasons": self.reasons}
        return self._page("walk", title, walk=walk_payload(walk) | texts)

    def _about(self) -> str:
        return about_model(self.model)


@public_call("walk")
def walk(
    text_or_trace: str | Trace | MultiHeadAttention | Block,
    layer: int | None = None,
    head: int | None = None,
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
    """Show each step of one head with its formula, its line of NumPy and its real numbers.

    Plain NumPy recomputes all steps from the words to the head, and then the rest of the layer:
    residual connections, norms and MLP. All later layers form one step, whose result comes from the
    trace. The last steps are the final norm, the LM head, and the likeliest words, with the same
    probabilities as in `model.predict`. All steps are compared with the model's own numbers.

    The walk writes out the sums for one token, and shows the guesses for this token. If the text
    has a mask token ("[MASK]"), the walk chooses the first mask token. Otherwise, the walk chooses
    the query of the head's strongest link. A decoder guesses the word after the chosen token.
    Without a language-model head, the walk ends at the word vectors after the last layer.

    Args:
        text_or_trace: a text, its token ids, or a model's trace of one text. Alternatively, a layer
            (`MultiHeadAttention`, `SelfAttention` or `Block`) together with `x`. If `model` is
            None, a walk over a trace starts from the trace's Q, K and V. After the heads, the walk
            shows the steps whose numbers are in the trace; the note on the last step names the
            missing numbers.
        layer: the layer, counted from 0; -1 is the last. The default is chosen as in
            `show`.
        head: the head, counted from 0. The default is chosen as in `show`. For a layer
            without a model, the default is head 0.
        model: a model or the name of a model. If `model` is omitted, the default model reads the
            text.
        theme: "light", "dark", or "auto"; "auto" follows the theme of the site or system.
        stretch: whether scales end at the largest shown weight instead of 1.
        x: `(L, D)`, the word vectors that a layer reads.
        context: `(S, D)`, the word vectors that a layer attends to, if they differ from `x`.
        tokens: L names for the rows of `x`.
        keys: S names for the rows of `context`.
        options: options of a layer: `is_causal`, `window`, `attn_mask` and so on.

    Raises:
        ValueError: the text is empty, or the trace lacks numbers that the walk needs.
        IndexError: `layer` or `head` is out of range; the message names the range.

    >>> view = walk("The cat sat on the mat", model="random")
    >>> [step.name for step in view.steps]
    ['E', 'P', 'X', 'Q', 'K', 'V', 'scores', 'scaled', 'weights', 'context', 'joined', 'out']
    >>> view.difference < 1e-6
    True
    >>> import qkv
    >>> view = walk("The sun rises in the [MASK].")
    >>> [step.name for step in view.steps][-12:]
    ['N1', 'pre', 'post', 'mlp', 'R2', 'Y', 'y', 'h', 'a', 'u', 'logits', 'probs']
    >>> (guesses,) = qkv.load().predict("The sun rises in the [MASK].", top_k=8)
    >>> [word for word, _ in view.words] == [word for word, _ in guesses]
    True
    """
    check_theme(theme)
    if isinstance(text_or_trace, MultiHeadAttention | Block):
        if x is None:
            raise type_error("a layer needs word vectors: call walk(layer, x=...)")
        steps = walk_layer(
            text_or_trace, x, context, head=head or 0, tokens=tokens, keys=keys, **options
        )
        return WalkView(steps, theme=theme, stretch=stretch)
    if not is_ids(text_or_trace) and (
        hasattr(text_or_trace, "__array__") or isinstance(text_or_trace, list | tuple)
    ):
        raise type_error(
            "a walk needs queries, keys and values, but weights alone have none; pass "
            "a text, a trace or a layer; qkv.show(weights, tokens=...) shows weights"
        )
    of_layers = {"x": x, "context": context, "tokens": tokens, "keys": keys, **options}
    for name in (name for name, value in of_layers.items() if value is not None):
        raise type_error(f"{name} applies only to a walk through a layer: leave it out")
    if isinstance(text_or_trace, Trace | Seq2SeqTrace):
        trace = one_text(text_or_trace)
        used = None if model is None else model_of(model, [" ".join(trace.tokens)])
    else:
        used = reader_for(text_or_trace, model)
        trace = readable_trace(used.trace(text_or_trace))
    chosen, _ = choose_head(
        by_word(heads_of(trace)), layer, head, removing=partial(removal_of, used, trace)
    )
    steps = walk_head(trace, chosen.layer, chosen.head, used)
    return WalkView(steps, used, chosen, theme=theme, stretch=stretch)

"""The views `show` and `head_view` (with bertviz's arguments), for one head of one text."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any

from qkv._argument_errors import public_call, type_error, value_error
from qkv.arrays import Array
from qkv.models import Model
from qkv.see.analysis import (
    heads_from,
    positions_in,
    readable_trace,
    removal_of,
    selection,
    trace_of,
)
from qkv.see.analysis.head_weights import Axis, Heads, Indices, by_word, heads_of, kept_in
from qkv.see.analysis.word_vectors import Movement, movement
from qkv.see.draw.panels import Panel
from qkv.see.page.payload import check_theme
from qkv.see.views.view import Heading, OneText, link_to_dict, movement_table
from qkv.trace import Seq2SeqTrace, Trace


@dataclass(frozen=True, eq=False, repr=False)
class ShowView(OneText):
    """One head of one text: its weights, its links, and how far each word moved.

    Attributes:
        trace: the trace of the text.
        movement: how far the layers moved each word, if the vectors were traced.
        heads: all heads, with weights between tokens.
    """

    trace: Trace
    movement: Movement | None
    heads: Heads

    @property
    def tokens(self) -> list[str]:
        """Return the tokens of the text."""
        return list(self.trace.tokens)

    @property
    def weights(self) -> Array:
        """Return the weights of the shown head, `(T, T)`.

        Raises:
            ValueError: the trace kept only the largest weights of each query (`top_k`); use
                `links`.
        """
        if not self.heads.weights:
            raise ValueError(
                "show: only the largest weights of each query were kept: use view.links"
            )
        return self.trace.pattern(self.head.layer, self.head.head)

    def panels(self) -> list[list[Panel]]:
        """Show the head, links of other heads, and how far the layers moved each word."""
        rows = super().panels()
        if self.movement is not None:
            rows.append([movement_table(self.shown, self.movement)])
        return rows

    def _headings(self) -> list[Heading]:
        return [Heading.of(self.trace)]

    def _numbers(self) -> dict[str, Any]:
        """Return the numbers of the view; the weights are equal to the weights in the trace.

        `weights` is None if only the largest weights of each query were kept. Each link
        connects two words, and each word has one entry in `movement`. If subwords are shown
        separately, each subword counts as a word. In a link, `from` is the position of the first
        token of the query's word, and `to` is the position of the first token of the key's word.
        """
        moved = self.movement
        return {
            "model": self.trace.model,
            "tokens": self.tokens,
            **self._head_numbers(),
            "weights": self.weights if self.heads.weights else None,
            "links": [link_to_dict(self.shown, link) for link in self.links],
            "other_heads": [link_to_dict(self.shown, link) for link in self.elsewhere],
            "movement": moved
            and [
                {"token": token} | {name: row[i] for name, row in vars(moved).items()}
                for i, token in enumerate(self.shown.queries.tokens)
            ],
        }

    def _payload(self) -> dict[str, Any]:
        return self._show_page([self.heads], merge=self.shown.queries.spans is not None)


@public_call("show")
def show(
    trace_or_text: Trace | str | Any,
    *,
    tokens: Iterable[str] | None = None,
    model: Model | str | None = None,
    layer: int | None = None,
    head: int | None = None,
    query: str | int | Sequence[int] | None = None,
    key: str | int | None = None,
    pieces: bool = False,
    theme: str = "auto",
    stretch: bool = False,
) -> ShowView:
    """Show one head's weights over a text, and how far the layers moved each word.

    Unless `layer` and `head` are given, all views choose the head by the same rule. In a text with
    a gap (the model's mask token), the view removes each head in turn and measures the guess at the
    first gap. The view chooses the head whose removal moves the most probability to other words. In
    a model with more than 48 heads, the view tries at most 48 heads, all from the last layers.

    In a text without a gap, a head's link is its largest weight between two different content
    words. The view compares this weight with a usual weight, and chooses the head whose link
    exceeds the usual weight most. To find the usual weight, the view computes two means of the
    head's weights. The first is the mean over all pairs of words that are as far apart as the two
    words of the link, in the same direction. The second is the mean weight from other words to the
    key of the link. The usual weight is the larger of two numbers: the second mean, and twice the
    first mean. If one of these means is 0.4 or more, the head attends to a position rather than to
    words, so its links do not count. Ties go to the lowest layer, then the lowest head.

    The rule for texts without a gap also applies if the view cannot measure the guess at a gap: if
    the input consists of weights, if the input is a trace and no `model` is given, or if the text
    has more than 512 tokens.

    In three cases, the view's sentence says that no head stands out: the link exceeds the usual
    weight by less than 0.1; removing the head moves less than 0.1 of the probability to other
    words; or the model is untrained.

    Content words are all words except special tokens, punctuation, words that the model does not
    know, and English function words (the, of, she, is). The list of function words is English, so
    in other languages almost every word is a content word. In a text with fewer than two content
    words, every word counts as a content word.

    Args:
        trace_or_text: a text, the token ids of a text, a model's trace of one text, or weights.
            Weights are one array `(layers, heads, L, L)` or the `outputs.attentions` of
            `transformers`; they need `tokens`.
        tokens: the L tokens, if weights are given.
        model: the model for a text, or a model's name; if omitted, the default model. A trace does
            not need `model`. If both a trace and `model` are given, the view also shows the length
            `|v W_O|` for each key, and can measure how removing a head changes the guess at a gap.
        layer: the layer to show, counted from 0; -1 is the last layer.
        head: the head to show, counted from 0.
        query: the word that attends, the position of its token, or a list of positions. If `query`
            is given, only the links of the query words count when heads are compared. If `query` is
            a list, only the links of these words are shown.
        key: the word that is attended to, or the position of its token. If both `query`
            and `key` are given, the heads are ranked by the link between these two words.
        pieces: whether subwords are shown separately, instead of merged into words. When subwords
            are merged, the weights on them are summed, and the weights from them are averaged.
        theme: "light", "dark", or "auto"; "auto" follows the theme of the site or system.
        stretch: whether scales end at the largest shown weight instead of 1.

    Raises:
        ValueError: the text is empty; the trace holds several texts or no weights; arrays and
            tokens do not match; or a word is not in the text.
        IndexError: a layer, head or position is out of range; the message names the range.

    >>> view = show("The cat sat on the mat", model="random", layer=0, head=1)
    >>> view.tokens, view.weights.shape
    (['the', 'cat', 'sat', 'on', 'the', 'mat'], (6, 6))
    >>> import numpy as np
    >>> show(np.full((1, 1, 2, 2), 0.5), tokens=["hello", "world"], layer=0, head=0).sentence
    'hello attends to world: 0.50 (layer 0, head 0).'
    """
    check_theme(theme)
    trace, used = trace_of(trace_or_text, tokens, model)
    heads = heads_of(trace, parameters=None if used is None else used.parameters)
    units = heads if pieces else by_word(heads)
    queries, keys = (
        None if word is None else units.queries.rows_of(positions_in(trace, used, word, name))
        for name, word in (("query", query), ("key", key))
    )
    removing = partial(removal_of, used, trace)
    chosen, links = selection.choose_head(
        units, layer, head, queries=queries, keys=keys, removing=removing
    )
    one_link = queries is not None and keys is not None
    return ShowView(
        trace,
        movement(trace, units.queries.spans),
        heads,
        head=chosen,
        shown=units,
        elsewhere=selection.other_heads(units, links, chosen, one_link),
        one_link=one_link,
        queries=queries if isinstance(query, list | tuple) else None,
        theme=theme,
        stretch=stretch,
    )


_ACTIONS = ("view", "return")


@dataclass(frozen=True, eq=False, repr=False)
class HeadView(OneText):
    """A view of one head, for attention weights from another library.

    Attributes:
        parts: the attention of one text, or the three kinds of attention of an encoder-decoder.
        marks: the heads that the caller marked.
        pieces: whether subwords are shown separately.
    """

    parts: list[Heads]
    marks: Sequence[int] | None = None
    pieces: bool = False

    @property
    def data(self) -> str:
        """Return the view's HTML for a notebook, as bertviz does with `html_action="return"`."""
        return self._repr_html_()

    def _numbers(self) -> dict[str, Any]:
        """Return the numbers of the view: the weights of the shown head."""
        heads = self.parts[0]
        index = heads.layers.index(self.head.layer)
        return {
            "tokens": heads.queries.tokens,
            "keys": heads.keys.tokens,
            **self._head_numbers(),
            "weights": heads.weights[index][self.head.head] if heads.weights else None,
        }

    def _headings(self) -> list[Heading]:
        parts = (part for part in self.parts if part.other_keys is None)
        return [
            Heading(part.queries.tokens, part.queries.special, name=part.name) for part in parts
        ]

    def _payload(self) -> dict[str, Any]:
        return self._show_page(self.parts, heads=self.marks, merge=not self.pieces)


@public_call("head_view")
def head_view(
    attention: Any = None,
    tokens: Iterable[str] | None = None,
    sentence_b_start: int | None = None,
    prettify_tokens: bool = True,
    layer: int | None = None,
    heads: Sequence[int] | None = None,
    encoder_attention: Any = None,
    decoder_attention: Any = None,
    cross_attention: Any = None,
    encoder_tokens: Iterable[str] | None = None,
    decoder_tokens: Iterable[str] | None = None,
    include_layers: Sequence[int] | None = None,
    html_action: str = "view",
    *,
    pieces: bool = False,
    theme: str = "auto",
    stretch: bool = False,
) -> HeadView | None:
    """Show attention from any model, with the same arguments as bertviz's `head_view`.

    To switch from bertviz, change `from bertviz import head_view` to `from qkv import head_view`.
    Arrays and tensors may be on any device. Nothing is loaded over a network, and a saved notebook
    keeps its pictures.

    Args:
        attention: an array `(1, heads, L, L)` or `(heads, L, L)` for each layer, like
            `outputs.attentions` of `transformers`, or one array `(layers, heads, L, L)`.
            `attention` may also be a text for the default model, or a trace, `model.trace(text)`.
            The trace of an encoder-decoder, `model.trace(text, target=...)`, contains all three
            kinds of attention.
        tokens: the L tokens. A text or a trace does not need `tokens`.
        sentence_b_start: the position at which the second of two sentences begins.
        prettify_tokens: whether tokenizer marks ("Ġ", "▁", "</w>") are removed.
        layer: the layer to show first.
        heads: the heads to mark; the first head is shown when the page opens.
        encoder_attention: the attention in the encoder of an encoder-decoder; it needs
            `encoder_tokens`.
        decoder_attention: the attention in the decoder; it needs `decoder_tokens`.
        cross_attention: the attention from decoder to encoder, `(1, heads, L, S)` for each layer;
            it needs `encoder_tokens` and `decoder_tokens`.
        encoder_tokens: the tokens of the encoder.
        decoder_tokens: the tokens of the decoder.
        include_layers: the layers to show; by default all layers.
        html_action: if "view", a notebook shows the view at once; outside a notebook, the
            function returns the view. If "return", the function always returns the view, with its
            HTML in `.data`.
        pieces: whether subwords are shown separately, instead of merged into words.
        theme: "light", "dark", or "auto"; "auto" follows the theme of the site or system.
        stretch: whether scales end at the largest shown weight instead of 1.

    Returns:
        The view, or None if a notebook has already shown it.

    Raises:
        TypeError: an argument is missing or conflicts with another argument.
        ValueError: shapes and tokens do not match.

    >>> weights = [[[[0.25, 0.75], [0.5, 0.5]]]]
    >>> print(head_view(weights, ["Ġhello", "Ġworld"]).sentence)
    No head stands out in this sentence: the strongest content link is hello → world, 0.75 (layer 0,
    head 0), less than 0.10 above the usual weight.
    """
    if html_action not in _ACTIONS:
        raise value_error(f"html_action is {html_action!r}: choose {' or '.join(_ACTIONS)}")
    check_theme(theme)
    attentions = {
        "attention": attention,
        "encoder_attention": encoder_attention,
        "decoder_attention": decoder_attention,
        "cross_attention": cross_attention,
    }
    words = {"tokens": tokens, "encoder": encoder_tokens, "decoder": decoder_tokens}
    parts = _of_arguments(attentions, words, include_layers)
    if prettify_tokens:
        parts = [_readable(part) for part in parts]
    if sentence_b_start is not None:
        parts[0] = _split(parts[0], sentence_b_start)
    marks = None if heads is None else [int(head) for head in heads]
    for head in marks or ():
        selection.checked_head(parts[0], None, head)
    marks = marks and [parts[0].from_start(head, of="head") for head in marks]
    units = parts[0] if pieces else by_word(parts[0])
    first = marks[0] if marks else None
    chosen, links = selection.choose_head(units, layer, first)
    others = selection.other_heads(units, links, chosen, one_link=False)
    options: dict[str, Any] = {"theme": theme, "stretch": stretch}
    view = HeadView(parts, marks, pieces, head=chosen, shown=units, elsewhere=others, **options)
    if html_action == "view" and _in_notebook():
        import_module("IPython.display").display(view)
        return None
    return view


def _of_arguments(
    attentions: Mapping[str, Any], words: Mapping[str, Any], layers: Indices
) -> list[Heads]:
    """Read the attention from the arguments, as a list of `Heads`."""
    attentions = {name: arrays for name, arrays in attentions.items() if arrays is not None}
    if not attentions:
        raise type_error("attention is missing; pass attention and tokens")
    attention = attentions.get("attention")
    if attention is not None and len(attentions) > 1:
        raise type_error(
            f"`attention` and `{[*attentions][1]}` were both given: for one text, "
            "pass only `attention`; for two texts, omit `attention`"
        )
    if isinstance(attention, Trace) and words["tokens"] is not None:
        attentions = {"attention": _weights_of(attention)}
    elif isinstance(attention, str | Trace | Seq2SeqTrace):
        return [
            _only(part, layers, f"the trace holds {part.layers}") for part in _of_trace(attention)
        ]
    return _of_arrays(attentions, words, layers)


def _of_trace(source: str | Trace | Seq2SeqTrace) -> list[Heads]:
    """Read the attention of a text or a trace; an encoder-decoder has three kinds of attention."""
    if not isinstance(source, Seq2SeqTrace):
        trace, _ = trace_of(source, None, None)
        return [replace(heads_of(trace), scores={}, scale={})]
    if len(source) > 1:
        raise value_error(
            f"this trace holds {len(source)} pairs; pass one of them, for example trace[0]"
        )
    pair = source[0]
    read, written = (
        replace(heads_of(readable_trace(side)), scores={}, scale={}, name=name)
        for side, name in ((pair.encoder, "Encoder"), (pair.decoder, "Decoder"))
    )
    arrays = kept_in(pair, range(pair.num_layers), "cross_attn.")
    cross = Heads(written.queries, *arrays, other_keys=read.queries, name="Cross")
    parts = [part for part in (read, written, cross) if part.layers]
    if not parts:
        raise value_error("this trace holds no weights: trace hook_pattern too")
    return parts


def _of_arrays(
    attentions: Mapping[str, Any], words: Mapping[str, Any], layers: Indices
) -> list[Heads]:
    """Read attentions from plain arrays, each with its tokens."""
    known = {
        name: tokens if tokens is None or isinstance(tokens, str) else list(tokens)
        for name, tokens in words.items()
    }
    parts = []
    for name, arrays in attentions.items():
        side = name.partition("_")[0]
        rows = {"attention": "tokens", "cross": "decoder"}.get(side, side)
        columns = "encoder" if side == "cross" else None
        for need in filter(None, (rows, columns)):
            if known[need] is None:
                full = need if need == "tokens" else f"{need}_tokens"
                raise type_error(f"{name} needs tokens; pass {full} too")
        part = heads_from(
            arrays, known[rows] or [], None if columns is None else known[columns], name=name
        )
        part = replace(part, name="" if name == "attention" else side.capitalize())
        parts.append(_only(part, layers, f"{name} holds 0 to {len(part.layers) - 1}"))
    return parts


def _only(heads: Heads, layers: Indices, there: str) -> Heads:
    """Keep only these layers.

    Errors end with the string in `there`, which lists all layers that `heads` contains.
    """
    if layers is None:
        return heads
    numbers = {layer: heads.from_start(layer, of="layer") for layer in layers}
    wrong = [f" {layer}" for layer, number in numbers.items() if number not in heads.layers]
    if wrong or not numbers:
        raise value_error(f"there is no layer{wrong[0] if wrong else ' left'}: {there}")
    indices = [heads.layers.index(numbers[layer]) for layer in layers]
    return replace(
        heads,
        layers=[heads.layers[index] for index in indices],
        weights=[heads.weights[index] for index in indices if heads.weights],
        summary=[heads.summary[index] for index in indices if heads.summary],
    )


def _weights_of(trace: Trace) -> list[Array]:
    """Return the weights of all layers of one text's trace."""
    layers = range(1 + max(trace.layers, default=-1))
    lacking = [n for n in layers if ("pattern", n) not in trace]
    if lacking or not layers:
        has_top = any(("top_weights", n) in trace for n in lacking)
        which = f"layer {lacking[0]}" if lacking else "any layer"
        remedy = "omit tokens to show the trace's summary" if has_top else "trace hook_pattern"
        raise value_error(f"this trace does not hold the weights of {which}: {remedy}")
    return [trace["pattern", layer] for layer in layers]


def _readable(heads: Heads) -> Heads:
    """Remove the marks that tokenizers put on tokens."""

    def pretty(axis: Axis) -> Axis:
        return replace(axis, labels=[_pretty(token) for token in axis.tokens])

    keys = None if heads.other_keys is None else pretty(heads.other_keys)
    return replace(heads, queries=pretty(heads.queries), other_keys=keys)


def _pretty(token: str) -> str:
    """Remove the marks for spaces and word ends from a token.

    >>> _pretty("Ġriver"), _pretty("river</w>"), _pretty("##ing"), _pretty("▁")
    ('river', 'river', '##ing', '▁')
    """
    return token.replace("Ġ", " ").replace("▁", " ").removesuffix("</w>").strip() or token


def _split(heads: Heads, start: Any) -> Heads:
    at, size = int(start), len(heads.queries.tokens)
    if heads.other_keys is not None or not 0 < at < size:
        raise value_error(
            f"sentence_b_start is {at}, but there are {size} tokens; pass "
            f"1 to {size - 1}, the position where the second sentence begins"
        )
    return replace(heads, split=at)


def _in_notebook() -> bool:
    """Return whether a notebook's kernel runs this code."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return hasattr(shell, "kernel")

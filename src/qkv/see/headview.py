"""Attention that came from elsewhere, with bertviz's arguments."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from qkv.arrays import Array
from qkv.models.pairs import Seq2SeqTrace
from qkv.see import choice, findings
from qkv.see.choice import Head
from qkv.see.findings import Link
from qkv.see.heads import Heads, heads_from
from qkv.see.lines import head_lines, link_lines, title
from qkv.see.merged import by_word
from qkv.see.onehead import link_in_words, show_payload, show_picture
from qkv.see.page import check_theme
from qkv.see.terminal import Screen, prose
from qkv.see.view import View
from qkv.trace import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.text import Text

_ACTIONS = ("view", "return")


@dataclass(frozen=True, eq=False, repr=False)
class HeadView(View):
    """One head of attention that came from elsewhere.

    Attributes:
        parts: the attentions: one, or those of an encoder-decoder.
        shown: the first one as words; as it is where pieces are shown as they are.
        head: the head of the first one that is shown.
        elsewhere: the link of each other head that stands out most.
        asked: the heads that were asked for.
        pieces: whether the pieces of words are shown as they are.
        theme: "auto", "light" or "dark".
    """

    parts: list[Heads]
    shown: Heads
    head: Head
    elsewhere: list[Link]
    asked: list[int] | None = None
    pieces: bool = False
    theme: str = "auto"

    @property
    def data(self) -> str:
        """The view as a piece of HTML, as bertviz's `html_action="return"` has it."""
        return self._repr_html_()

    @property
    def sentence(self) -> str:
        """What is most striking about this head, in words."""
        return link_in_words(self.shown, self.head)

    def to_dict(self) -> dict[str, Any]:
        """The numbers of the view, ready for JSON: the weights of the head that is shown."""
        place = self.parts[0].layers.index(self.head.layer)
        return {
            "tokens": self.parts[0].tokens,
            "keys": self.parts[0].all_keys,
            "layer": self.head.layer,
            "head": self.head.head,
            "chosen": self.head.reason,
            "sentence": self.sentence,
            "weights": self.parts[0].weights[place][self.head.head].tolist(),
        }

    def figure(self) -> Figure:
        """The weights of the head that is shown, as a grid."""
        from qkv.see.figures import head_figure

        return head_figure(self.shown, self.head)

    def _payload(self) -> dict[str, Any]:
        return show_payload(
            self.parts,
            self.shown,
            self.head,
            "",
            self.theme,
            asked=self.asked,
            merge=not self.pieces,
        )

    def _picture(self) -> str:
        return show_picture(self.shown, self.head)

    def _lines(self, screen: Screen) -> Iterator[Text]:
        from rich.text import Text

        yield from prose(screen, self.sentence, "bold")
        yield from prose(screen, f"This head is shown because {self.head.reason}.", "dim")
        yield Text()
        yield from head_lines(screen, self.shown, self.head)
        if self.elsewhere:
            yield Text()
            yield title("Other heads worth a look", "the link of each that stands out")
            yield from link_lines(screen, self.shown, self.elsewhere)


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
) -> HeadView | None:
    """Attention from any model, called as bertviz's `head_view` is.

    Changing `from bertviz import head_view` to `from qkv import head_view` is enough. Arrays and
    tensors are taken wherever they are; nothing is loaded from a network, and a saved notebook
    keeps its pictures.

    Args:
        attention: for each layer `(1, heads, L, L)` or `(heads, L, L)`, as
            `outputs.attentions` of `transformers`, or one array `(layers, heads, L, L)`. Or a trace
            of one text, `model.trace(text)`; or what `model.trace(text, target=...)` of an
            encoder-decoder gives, for all three at once.
        tokens: the L tokens; a trace has its own.
        sentence_b_start: where the second of two sentences begins.
        prettify_tokens: whether the marks of tokenizers ("Ġ", "▁", "</w>") are taken off.
        layer: the layer to show first.
        heads: the heads to mark; the first is shown first.
        encoder_attention: of an encoder-decoder, with `encoder_tokens`.
        decoder_attention: of an encoder-decoder, with `decoder_tokens`.
        cross_attention: for each layer `(1, heads, L, S)`, from decoder to encoder, with both.
        encoder_tokens: the tokens of the encoder.
        decoder_tokens: the tokens of the decoder.
        include_layers: the layers to take; all unless given.
        html_action: "view" shows the view at once where this runs in a notebook, and returns it
            elsewhere; "return" returns it, with its HTML in `.data`.
        pieces: whether the pieces of a word are shown as they are, not merged into it.
        theme: "light", "dark", or "auto" for what the reader's system prefers.

    Returns:
        The view, or None where a notebook has shown it.

    Raises:
        TypeError: what is needed is missing, or given twice.
        ValueError: shapes and tokens do not fit each other.

    >>> weights = [[[[0.25, 0.75], [0.5, 0.5]]]]
    >>> print(head_view(weights, ["Ġhello", "Ġworld"]).sentence)
    hello looks at world: 0.75 (layer 0, head 0).
    """
    if html_action not in _ACTIONS:
        raise ValueError(
            f"head_view: html_action is {html_action!r}: choose {' or '.join(_ACTIONS)}"
        )
    check_theme(theme, "head_view")
    if isinstance(attention, Seq2SeqTrace):
        pair, attention = attention, None
        if len(pair) > 1:
            raise ValueError(f"head_view: this trace holds {len(pair)} pairs: take one, trace[0]")
        pair = pair[0]  # whose tokens are lists of strings
        encoder_attention, decoder_attention = pair.encoder.attentions, pair.decoder.attentions
        cross_attention = pair.cross_attentions
        encoder_tokens, decoder_tokens = pair.encoder.tokens, pair.decoder.tokens
    elif isinstance(attention, Trace):
        if tokens is None:
            findings.one_text(attention, "head_view")  # for its errors
            tokens = attention[0].tokens
        attention = _weights_of(attention)
    names = {"tokens": tokens, "encoder_tokens": encoder_tokens, "decoder_tokens": decoder_tokens}
    known = {
        name: given if given is None or isinstance(given, str) else list(given)
        for name, given in names.items()
    }
    wanted = [
        ("attention", attention, "tokens", None),
        ("encoder_attention", encoder_attention, "encoder_tokens", None),
        ("decoder_attention", decoder_attention, "decoder_tokens", None),
        ("cross_attention", cross_attention, "decoder_tokens", "encoder_tokens"),
    ]
    given = [row for row in wanted if row[1] is not None]
    if not given:
        raise TypeError("head_view: there is no attention: give attention and tokens")
    if attention is not None and len(given) > 1:
        raise TypeError(
            f"head_view: attention is of one text and {given[1][0]} of two: give one or the other"
        )
    parts = []
    for name, arrays, rows, columns in given:
        for need in (rows, columns):
            if need is not None and known[need] is None:
                raise TypeError(f"head_view: {name} comes without words: give {need} as well")
        part = heads_from(
            arrays,
            known[rows] or [],
            None if columns is None else known[columns],
            layers=include_layers,
            call="head_view",
            name=name,
            title="" if name == "attention" else name.partition("_")[0].capitalize(),
        )
        parts.append(_readable(part) if prettify_tokens else part)
    if sentence_b_start is not None:
        parts[0] = _split(parts[0], sentence_b_start)
    asked = None if heads is None else [int(head) for head in heads]
    for head in asked or ():
        if head not in range(parts[0].count):
            raise IndexError(
                f"head_view: there is no head {head}: the heads are 0 to {parts[0].count - 1}"
            )
    shown = parts[0] if pieces else by_word(parts[0])
    chosen, links = choice.choose_head(shown, layer, asked[0] if asked else None, call="head_view")
    others = choice.other_heads(links, chosen, 5)
    view = HeadView(parts, shown, chosen, others, asked, pieces, theme)
    if html_action == "view" and _in_notebook():
        import_module("IPython.display").display(view)
        return None
    return view


def _weights_of(trace: Trace) -> list[Array]:
    """The weights of all layers of one text's trace."""
    lacking = [n for n in range(trace.num_layers) if ("pattern", n) not in trace]
    if lacking or not trace.num_layers:
        kept = any(("top_weights", n) in trace for n in lacking)
        what = f"layer {lacking[0]}" if lacking else "any layer"
        raise ValueError(
            f"head_view: this trace does not hold the weights of {what}: "
            + ("it holds summaries, which qkv.show(trace) shows" if kept else "trace hook_pattern")
        )
    return list(trace.attentions)


def _readable(heads: Heads) -> Heads:
    """The same with tokens to read: without the marks that tokenizers put on them."""
    keys = None if heads.keys is None else [_pretty(token) for token in heads.keys]
    return replace(heads, shown=[_pretty(token) for token in heads.tokens], shown_keys=keys)


def _pretty(token: str) -> str:
    """A token without the marks by which tokenizers write blanks and ends of words.

    >>> _pretty("Ġriver"), _pretty("river</w>"), _pretty("##ing"), _pretty("▁")
    ('river', 'river', '##ing', '▁')
    """
    return token.replace("Ġ", " ").replace("▁", " ").removesuffix("</w>").strip() or token


def _split(heads: Heads, start: Any) -> Heads:
    at, size = int(start), len(heads.tokens)
    if heads.keys is not None or not 0 < at < size:
        raise ValueError(
            f"head_view: sentence_b_start is {at} and there are {size} tokens: the second sentence "
            f"begins at 1 to {size - 1}"
        )
    return replace(heads, split=at)


def _in_notebook() -> bool:
    """Whether a kernel runs this, so that what is displayed goes to a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return hasattr(shell, "kernel")

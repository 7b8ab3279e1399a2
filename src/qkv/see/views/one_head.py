"""One head of a text in words, as a page and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qkv.see.analysis.heads import Heads
from qkv.see.analysis.selection import Head
from qkv.see.analysis.words import quoted
from qkv.see.draw import svg
from qkv.see.page.payload import payload_of, start_at, text_payload


def link_in_words(heads: Heads, head: Head) -> str:
    """The strongest link of a head as a sentence."""
    where = f"layer {head.layer}, head {head.head}"
    if head.link is None:
        return f"In {where} no content word looks at another one."
    query, key = heads.query_names[head.link.query], heads.key_names[head.link.key]
    return f"{query} looks at {key}: {head.link.weight:.2f} ({where})."


def show_payload(
    parts: Sequence[Heads],
    shown: Heads,
    head: Head,
    model: str,
    theme: str,
    *,
    stretch: bool = False,
    at: int = 0,
    asked: Sequence[int] | None = None,
    merge: bool = True,
) -> dict[str, Any]:
    """What a page reads of one text, or of the attentions of an encoder-decoder; `at` is first.

    `shown` are its heads as words, or as they are.
    """
    heads = parts[at]
    return payload_of(
        "show",
        quoted(heads.text, heads.query_names, heads.special),
        [text_payload(part, head.layer) for part in parts],
        model=model,
        theme=theme,
        stretch=stretch,
        start=start_at(
            head.layer,
            head.head,
            shown.place(first_query(shown, head)),
            chosen=head.reason,
            sentence=link_in_words(shown, head),
            text=at,
            heads=asked,
            merge=merge,
        ),
    )


def show_picture(heads: Heads, head: Head, notes: Sequence[str] = (), top: float = 1.0) -> str:
    """The static picture of one head: lines beside a heat map."""
    block = heads.block(head.layer, head.head, svg.MOST_ROWS)
    where = f"layer {head.layer}, head {head.head}"
    query = first_query(heads, head)
    at = block.places.index(query) if query in block.places else 0
    parts = [
        svg.links(block.values, block.rows, block.columns, at, f"Links of {where}"),
        svg.heat_map(
            block.values,
            block.rows,
            block.columns,
            top=top,
            hidden=block.hidden,
            caption=f"Weights of {where}",
            outlined=[at],
            missing=block.missing,
        ),
    ]
    notes = [f"This head is shown because {head.reason}.", *notes]
    if len(block.rows) < len(heads.tokens) or len(block.columns) < len(heads.all_keys):
        notes.append(
            f"Shown: {len(block.rows)} of {len(heads.tokens)} queries and {len(block.columns)} of "
            f"{len(heads.all_keys)} keys, those of the largest weights."
        )
    return svg.picture(link_in_words(heads, head), notes, [parts])


def first_query(heads: Heads, head: Head) -> int:
    """The token to begin with: the one of the strongest link, else of the largest weight."""
    if head.link is not None:
        return head.link.query
    weights = np.nan_to_num(heads.known(head.layer, head.head))
    return int(weights.argmax()) // int(weights.shape[1])

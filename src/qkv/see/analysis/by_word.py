"""The heads of words in place of those of their pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from qkv.see.analysis.heads import Axis, Heads, Summary
from qkv.see.analysis.measures import merge_words
from qkv.see.analysis.words import Span, spans_of


def by_word(heads: Heads) -> Heads:
    """The heads of a text's words, their pieces merged; the same where no token is a piece.

    What the pieces of a word receive is summed, what they look at is averaged.

    >>> axis = Axis(["a", "##b", "c"], [False] * 3)
    >>> heads = Heads(axis, [0], [np.full((1, 3, 3), 1 / 3)])
    >>> merged = by_word(heads)
    >>> merged.queries.tokens, merged.weights[0].round(2).tolist(), merged.queries.place(1)
    (['ab', 'c'], [[[0.67, 0.33], [0.67, 0.33]]], 2)
    """
    rows, columns = (spans_of(axis.tokens, axis.special) for axis in (heads.queries, heads.keys))
    if len(rows) == len(heads.queries.tokens) and len(columns) == len(heads.keys.tokens):
        return heads
    split = heads.split
    return replace(
        heads,
        queries=_merged(heads.queries, rows),
        other_keys=None if heads.other_keys is None else _merged(heads.other_keys, columns),
        weights=[merge_words(layer, rows, columns) for layer in heads.weights],
        summary=[_merged_summary(part, rows, columns) for part in heads.summary],
        scale={},
        norms=[],
        split=None if split is None else int(np.searchsorted([span[0] for span in rows], split)),
    )


def _merged(axis: Axis, spans: list[Span]) -> Axis:
    """Words in place of tokens; a token that is a word is called as it was."""
    names = axis.shown
    return Axis(
        [word for _, _, word in spans],
        [axis.special[first] for first, _, _ in spans],
        names and [names[first] if end - first == 1 else word for first, end, word in spans],
        spans,
    )


def _merged_summary(part: Summary, rows: Sequence[Span], columns: Sequence[Span]) -> Summary:
    """The largest weights between words, of the weights between pieces that were kept."""
    row_of, key_of = (
        np.repeat(np.arange(len(spans)), [end - first for first, end, _ in spans])
        for spans in (rows, columns)
    )
    heads, _, top_k = part.indices.shape
    there = part.indices >= 0
    head, query, _ = np.nonzero(there)
    line = head * len(rows) + row_of[query]  # a row of a head
    cells, at = np.unique(line * len(columns) + key_of[part.indices[there]], return_inverse=True)
    sizes = np.array([end - first for first, end, _ in rows])
    shares = np.nan_to_num(part.weights[there]).astype(np.float64) / sizes[row_of[query]]
    sums = np.bincount(at, shares, len(cells))
    line, key = np.divmod(cells, len(columns))
    order = np.lexsort((key, -sums, line))
    line, key, sums = line[order], key[order], sums[order]
    place = np.arange(len(line)) - np.searchsorted(line, line)  # of a weight in its row
    kept = place < top_k
    indices = np.full((heads * len(rows), top_k), -1, np.int64)
    weights = np.zeros(indices.shape, part.weights.dtype)
    indices[line[kept], place[kept]] = key[kept]
    weights[line[kept], place[kept]] = sums[kept]
    received = np.add.reduceat(part.received, [first for first, _, _ in columns], axis=-1)
    shape = heads, len(rows), top_k
    return Summary(indices.reshape(shape), weights.reshape(shape), received)

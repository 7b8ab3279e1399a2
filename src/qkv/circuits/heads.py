"""What each head looks at, counted over many texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.attend import attention
from qkv.circuits.checks import check_model
from qkv.layers.packed import padded, starts_of
from qkv.models.model import Model
from qkv.models.tasks.inputs import ids_given
from qkv.models.tasks.truncation import Truncator
from qkv.text.tokenizer import check_text
from qkv.trace import Trace

NAMES = ("previous", "next", "same", "first", "last", "induction", "entropy")
CELLS = 2**22  # weights of one layer that are held at once
TOKENS = 2**13  # that are traced at once, or one text
TEXTS, LETTERS = 1024, 2**19  # that are read and sorted at once, or fewer


@dataclass(frozen=True)
class HeadSums:
    """What `head_scores` divides: sums over queries, and how many queries they are over.

    Those of two parts of a corpus add up to those of the whole: `one + other`.

    Attributes:
        sums: name to (layers, heads) of float64.
        counts: name to the number of queries.
    """

    sums: dict[str, Array]
    counts: dict[str, int]

    def __add__(self, other: HeadSums) -> HeadSums:
        return HeadSums(
            {name: part + other.sums[name] for name, part in self.sums.items()},
            {name: count + other.counts[name] for name, count in self.counts.items()},
        )

    def means(self) -> dict[str, Array]:
        """Each name's mean (layers, heads), NaN where no query counts."""
        return {
            name: part / self.counts[name] if self.counts[name] else np.full_like(part, np.nan)
            for name, part in self.sums.items()
        }


def head_scores(
    model: Model, texts: Iterable[Any] | Array, of: str | Iterable[str] = NAMES
) -> dict[str, Array]:
    """What each head does, as means over all queries of all texts, special tokens included.

    Texts are read once, as they come; memory grows neither with their number nor with the square
    of their length. A text is cut as in `trace`, and a warning counts what was cut. One without a
    token adds nothing.

    Args:
        model: one that `qkv.load` has read, of one text at a time.
        texts: any iterable of texts, or of the ids of their tokens, (T,) integers each.
        of: which means:

            - "previous", "next": the weight on the place before the query's, and behind it.
            - "first", "last": the weight on the first place of the text, and on its last.
            - "same": the weight on earlier places that hold the query's token.
            - "induction": the weight on the places that follow those, over the queries whose
              token stands earlier in the text too.
            - "entropy": the entropy of the query's weights, in nats.

    Returns:
        For each name an array (layers, heads) of float64; NaN where no query counts.

    Raises:
        TypeError: a text is neither a string nor ids, or the model is none.
        ValueError: there is no such mean, the model is of two texts or of images, or ids are not
            the model's.

    Source:
        Induction: Olsson et al. 2022, "In-context Learning and Induction Heads", prefix matching.
        Entropy: Clark et al. 2019, "What Does BERT Look At?", section 3.3.

    >>> import qkv
    >>> found = head_scores(qkv.load("random"), ["the cat sat", "I love you"], ["first", "entropy"])
    >>> found["first"].shape, bool((found["entropy"] <= np.log(3)).all())
    ((1, 2), True)
    """
    return head_sums(model, texts, of).means()


def head_sums(
    model: Model, texts: Iterable[Any] | Array, of: str | Iterable[str] = NAMES
) -> HeadSums:
    """The sums and counts behind `head_scores`, to which those of other texts can be added."""
    names, heads = checked_names(of), check_model(model, "head_scores").num_heads
    found = HeadSums(
        {name: np.zeros((model.num_layers, heads)) for name in names}, dict.fromkeys(names, 0)
    )
    rotated = any(layer.attn.rotary or layer.attn.q_norm for layer in model.layers)
    inputs = ["q", "k", "v", *["rot_q", "rot_k"] * rotated]  # what weights are made of
    for batch in _batches(_windows(model, texts), CELLS // heads):
        trace = model.trace(batch, names=inputs)
        ids = padded(np.concatenate(batch), starts_of(map(len, batch)))  # (B, T)
        step = max(1, CELLS // (heads * ids.size))  # queries of a text, where it is alone
        step = ids.shape[1] if len(batch) > 1 else step
        for first in range(0, ids.shape[1], step):
            _add(found, trace, ids, np.arange(first, min(first + step, ids.shape[1])))
    return found


def checked_names(of: str | Iterable[str]) -> tuple[str, ...]:
    """The means asked for, each once."""
    names = tuple(dict.fromkeys([of] if isinstance(of, str) else of))
    odd = [name for name in names if name not in NAMES]
    if odd or not names:
        what = f"has {odd[0]!r:.40}" if odd else "is empty"
        raise ValueError(f"head_scores: of {what}: choose among {', '.join(NAMES)}")
    return names


class _Reader:
    """Texts, or the ids of their tokens, as ids (T,), cut as in `trace`."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.truncator = model.tokenizer and Truncator(model.tokenizer, model.max_seq_length)

    def checked(self, text: Any, number: int) -> str | Array:
        """A text that can be read, or ids that are the model's."""
        model, name = self.model, f"text {number}"
        if not isinstance(text, np.ndarray | list | tuple):
            if self.truncator is None:
                raise ValueError(
                    f"head_scores: {name} is no list of ids and {model.name} has no "
                    "tokenizer: give the ids of tokens"
                )
            return check_text(text, call="head_scores", name=name)
        rows, limit = len(model.embedding.table), model.max_seq_length
        found = ids_given([text], rows=rows, limit=limit, call="head_scores", first=number)
        assert found is not None
        return found[1][0].ids

    def __call__(self, window: Sequence[str | Array]) -> list[Array]:
        """The ids of texts that were checked, those without a token left out."""
        strings = [self.model.prepared(text) for text in window if isinstance(text, str)]
        cut = iter(self.truncator(strings) if self.truncator else ())
        found = (next(cut).ids if isinstance(text, str) else text for text in window)
        return [ids for ids in found if len(ids)]


def _windows(model: Model, texts: Any) -> Iterator[list[Array]]:
    """The ids of texts, some hundred texts at a time; at the end a warning if some were cut."""
    if isinstance(texts, str) or _is_ids(texts):
        texts = [texts]
    if not isinstance(texts, Iterable):
        kind = type(texts).__name__
        raise TypeError(f"head_scores: texts is {kind}: give strings, or the ids of their tokens")
    read = _Reader(model)
    window: list[str | Array] = []
    size = 0
    for number, text in enumerate(texts):
        window.append(read.checked(text, number))
        size += len(window[-1])
        if len(window) == TEXTS or size >= LETTERS:
            yield read(window)
            window, size = [], 0
    yield read(window)
    if read.truncator:
        read.truncator.cut.warn()


def _is_ids(texts: Any) -> bool:
    """Whether it is the ids of one text."""
    if isinstance(texts, np.ndarray):
        return texts.ndim == 1 and texts.dtype.kind in "iu"
    return isinstance(texts, list | tuple) and isinstance(next(iter(texts), None), int | np.integer)


def _batches(windows: Iterable[list[Array]], most: int) -> Iterator[list[Any]]:
    """Texts of like length together, of at most so many weights a head and `TOKENS`, or one."""
    for window in windows:
        batch: list[Array] = []
        for ids in sorted(window, key=len, reverse=True):
            padded_to = (1 + len(batch)) * len((batch or [ids])[0])
            if batch and (padded_to > TOKENS or padded_to * len(batch[0]) > most):
                yield batch
                batch = []
            batch.append(ids)
        if batch:
            yield batch


def _add(found: HeadSums, trace: Trace, ids: Array, queries: Array) -> None:
    """Add the weights of some queries (Q,) of texts whose ids are (B, T), 0 in the padding."""
    keys = np.arange(ids.shape[1])
    ends = trace.lengths[:, None, None]  # (B, 1, 1)
    rows = queries[:, None]  # (Q, 1)
    there = (rows < ends) & (keys < ends)  # (B, Q, K)
    same = there & (ids[:, queries, None] == ids[:, None]) & (keys < rows)
    after = np.zeros_like(same)
    after[..., 1:] = same[..., :-1]
    masks = {
        "previous": keys == rows - 1,
        "next": keys == rows + 1,
        "same": same,
        "first": keys == 0,
        "last": keys == ends - 1,
        "induction": after,
    }
    cells = {name: np.nonzero(masks[name] & there) for name in found.sums if name in masks}
    for name in found.counts:
        counted = same if name == "induction" else there
        found.counts[name] += int(counted.any(axis=-1).sum())
    for layer in range(trace.num_layers):
        weights = _weights(trace, layer, queries)
        for name, sums in found.sums.items():
            if name == "entropy":
                sums[layer] += _entropy(weights)
            else:
                text, query, key = cells[name]
                sums[layer] += weights[text, :, query, key].sum(axis=0, dtype=np.float64)


def _weights(trace: Trace, layer: int, queries: Array) -> Array:
    """The weights (B, H, Q, K) of some queries, 0 in the padding."""
    inputs = trace.attention_inputs(layer)
    length, first, end = inputs["query"].shape[-2], int(queries[0]), int(queries[-1]) + 1
    if end - first < length:  # of one text alone, which has no padding
        inputs["query"] = inputs["query"][..., first:end, :]
        inputs["q_offset"] = first
        if "bias" in inputs:
            inputs["bias"] = inputs["bias"][..., first:end, :]
    weights: Array = attention(**inputs, return_weights=True)[1]
    return weights


def _entropy(weights: Array) -> Array:
    """The sum over queries of `-sum(w * ln(w))`, (H,), of weights (B, H, Q, K)."""
    logs = np.log(weights, out=np.zeros_like(weights), where=weights > 0)
    found: Array = np.einsum("bhqk,bhqk->h", weights, logs, dtype=np.float64)
    return -found

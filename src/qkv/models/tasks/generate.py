"""Text out of a decoder: token by token, each chosen from the logits behind the one before."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from qkv.arrays import Array, is_whole_number, shown
from qkv.models.files.read import ModelError, is_whole
from qkv.models.network.transformer import Transformer
from qkv.models.run.edit import CANNOT, EditedRun
from qkv.models.tasks.sampling import Measured, Sampling, measured
from qkv.models.tasks.spelling import TextStream
from qkv.text import Tokenized, Tokenizer
from qkv.trace import Seq2SeqTrace, Trace

AT_ONCE = 32  # tokens of a prompt whose logits are in memory at once
DEFAULT_NEW = 64  # tokens that are added where nobody says how many


class Generated(str):
    """New text, with what is known of how it came about.

    It is the text itself, without the prompt: `result.prompt + result` is both.

    Attributes:
        prompt: what it continues.
        ids: the new tokens, the one that ended the text included.
        finish_reason: "eos" for a token that ends texts, "stop" for a stop string, "length" for
            `max_new_tokens`, or for what the model has places for.
        trace: with `trace=True` the run over prompt and new tokens, as `model.trace` gives it.
        logits: with `trace=True` the logit of each new token, (n,).
        probabilities: with `trace=True` the model's probability of each, before any temperature.
    """

    prompt: str
    ids: list[int]
    finish_reason: Literal["eos", "stop", "length"]
    trace: Trace | Seq2SeqTrace | None = None
    logits: Array | None = None
    probabilities: Array | None = None

    def looked_at(self, token: int) -> list[Array]:
        """What new token number `token` looked at while it was chosen.

        A token is chosen by the one before it: these are that one's weights over all up to it. Of a
        model that reads one text and writes another, they are the weights over the text that was
        read; those in its own text are row `token` of `trace.decoder`'s weights.

        Returns:
            For each layer (Hq, K); K counts the prompt and the new tokens before this one, or the
            tokens of the text that was read.

        Raises:
            TypeError: `token` is not a whole number.
            ValueError: it was generated without `trace=True`.
            IndexError: there is no such token.
        """
        if self.trace is None:
            raise ValueError("looked_at: nothing was traced: generate with trace=True")
        count = len(self.ids)
        if not is_whole_number(token):
            raise TypeError(f"looked_at: token is {shown(token)}: give the number of a token")
        if not -count <= token < count:
            raise IndexError(f"looked_at: there is no token {token}: {count} are new")
        number = token % count
        if isinstance(self.trace, Seq2SeqTrace):
            return [weights[0, :, number] for weights in self.trace.cross_attentions]
        row = len(self.trace.tokens) - count + number - 1
        return [weights[0, :, row, : row + 1] for weights in self.trace.attentions]


def tokens_to_add(
    which: str,
    given: int,
    wanted: int | None,
    limit: int | None,
    name: str,
    usual: int = DEFAULT_NEW,
) -> int:
    """How many tokens are added to a prompt of `given`: those wanted, or the usual as far as fits.

    Raises:
        ValueError: they do not fit, or none does, or the prompt has none.

    >>> [tokens_to_add("the prompt", given, None, 256, "tiny") for given in (202, 2)]
    [54, 64]
    """
    if not given:
        raise ValueError(f"generate: {which} is empty: there is no token to go on from")
    left = sys.maxsize if limit is None else limit - given
    if left < min(usual, 1):
        raise ValueError(
            f"generate: {which} has {given} tokens and {name} takes texts of at most {limit}: "
            "there is no room for a new one: shorten it"
        )
    if wanted is not None and wanted > left:
        raise ValueError(
            f"generate: {which} has {given} tokens and max_new_tokens is {wanted}: "
            f"{name} takes texts of at most {limit}: give at most {left}"
        )
    return wanted or min(usual, left)


@dataclass
class Row:
    """One prompt and what follows it.

    Attributes:
        prompt: its text.
        given: its tokens.
        max_new_tokens: the most that are added.
        stream: the text that follows.
        rng: what is drawn with.
        ids: the new tokens.
        measured: what the model made of each new token, where that was asked for.
        measured_prompt: and of each token of the prompt but the first.
        finish_reason: as in `Generated`, once it has ended.
    """

    prompt: str
    given: Tokenized
    max_new_tokens: int
    stream: TextStream
    rng: np.random.Generator
    ids: list[int] = field(default_factory=list)
    measured: list[Measured] = field(default_factory=list)
    measured_prompt: list[Measured] = field(default_factory=list)
    finish_reason: Literal["eos", "stop", "length"] | None = None

    def __post_init__(self) -> None:
        if not self.max_new_tokens:
            self.finish_reason = "length"

    @property
    def is_measured(self) -> bool:
        """Whether all tokens of the prompt but the first are measured."""
        return len(self.measured_prompt) >= len(self.given) - 1

    def add(self, token: int, eos_ids: frozenset[int]) -> str:
        """The text that is whole with one more token."""
        self.ids.append(token)
        ended = token in eos_ids
        piece = "" if ended else self.stream.add(token)
        if not self.stream.stopped and (ended or len(self.ids) == self.max_new_tokens):
            self.finish_reason = "eos" if ended else "length"
            piece += self.stream.finish()
        if self.stream.stopped:
            self.finish_reason = "stop"
        return piece

    def added(self, tokenizer: Tokenizer | None, begin: int = 0) -> Tokenized:
        """The new tokens, whose text begins at this character of another."""
        end = begin + len(self.stream.text)
        spans = [(begin + a, min(begin + b, end)) for a, b in self.stream.spelling.spans]
        known = [(tokenizer and tokenizer.token(token)) or str(token) for token in self.ids]
        special = [bool(tokenizer and tokenizer.is_special(token)) for token in self.ids]
        spans += [(0, 0)] * (len(self.ids) - len(spans))
        return Tokenized(np.array(self.ids), known, spans, special)

    def whole(self, tokenizer: Tokenizer | None) -> Tokenized:
        """The tokens of the prompt and the new ones; those stand in `prompt + text`."""
        given, new = self.given, self.added(tokenizer, len(self.prompt))
        return Tokenized(
            ids=np.concatenate([given.ids, new.ids]),
            tokens=given.tokens + new.tokens,
            offsets=given.offsets + new.offsets,
            special=given.special + new.special,
            text=self.prompt + self.stream.text,
        )

    def result(self, trace: Trace | Seq2SeqTrace | None) -> Generated:
        """What a user gets of it."""
        found = Generated(self.stream.text)
        found.prompt, found.ids = self.prompt, self.ids
        found.finish_reason = self.finish_reason or "length"
        if trace is not None:
            found.trace, found.logits = trace, np.array([one.logit for one in self.measured])
            found.probabilities = np.exp([one.log_probability for one in self.measured])
        return found


def steps(
    body: Transformer,
    rows: Sequence[Row],
    *,
    sampling: Sampling,
    eos_ids: frozenset[int],
    top: int | None = None,
    measure_prompts: bool = False,
    edited: EditedRun,
) -> Iterator[list[tuple[int, str]]]:
    """Generate a token of each row at a time: give the text that is whole with it, by its row.

    Rows that have new tokens already continue behind them.

    Args:
        body: the model.
        rows: the prompts, which the new tokens are added to.
        sampling: how a token is chosen.
        eos_ids: tokens that end a text.
        top: measure each new token, with so many of the likeliest; None measures none.
        measure_prompts: whether the tokens of the prompts are measured too, before the first step.
        edited: what is done otherwise.
    """
    if not measure_prompts and all(row.finish_reason for row in rows):
        return
    texts = [row.given.ids for row in rows]
    caches, ids, lengths = body.begin(texts, **edited.begin(texts))
    ids, lengths = _behind(ids, lengths, [row.ids for row in rows])
    seen = np.zeros(len(rows), np.int64)
    step = 0
    while lengths.any():
        even = bool((lengths == ids.shape[1]).all())
        options = edited.step(step, seen, lengths, ids.shape[1])
        x = body.step(ids, caches, None if even else lengths, **options)  # (B, n, D)
        seen, step = seen + lengths, step + 1
        if measure_prompts:
            for row, vectors in zip(rows, x, strict=True):
                for _ in _prompt_measured(body, row, vectors, top or 0):
                    yield []
            measure_prompts = False
        last = x[:, -1] if even else x[np.arange(len(x)), lengths - 1]
        logits = body.logits(last)  # (B, V)
        ids = np.zeros((len(rows), 1), np.int64)
        lengths = np.zeros(len(rows), np.int64)
        pieces = []
        for number, row in enumerate(rows):
            if row.finish_reason is not None:
                continue
            count = len(row.given) + len(row.ids)
            _check_finite(logits[number], count, edited.why)
            token = sampling(logits[number], row.rng)
            if top is not None:
                row.measured.append(measured(logits[number], token, top))
            if piece := row.add(token, eos_ids):
                pieces.append((number, piece))
            ids[number], lengths[number] = token, row.finish_reason is None
        yield pieces


def _behind(ids: Array, lengths: Array, new: Sequence[Sequence[int]]) -> tuple[Array, Array]:
    """Ids (B, n), of which (B,) are real, with those of each row behind them."""
    counts = np.array([len(one) for one in new])
    if not counts.any():
        return ids, lengths
    whole = np.zeros((len(ids), int((lengths + counts).max())), np.int64)
    for row, given, count, more in zip(whole, ids, lengths, new, strict=True):
        row[:count], row[count : count + len(more)] = given[:count], more
    return whole, lengths + counts


def _prompt_measured(body: Transformer, row: Row, vectors: Array, top: int) -> Iterator[None]:
    """Measure the tokens of a prompt by its last vectors (n, D), some at a time.

    It begins behind those that are measured.
    """
    ids = row.given.ids[1:].tolist()
    for begin in range(len(row.measured_prompt), len(ids), AT_ONCE):
        part = ids[begin : begin + AT_ONCE]
        for place, logits in enumerate(body.logits(vectors[begin : begin + len(part)])):
            _check_finite(logits, begin + place + 1)
            row.measured_prompt.append(measured(logits, part[place], top))
        yield


def _check_finite(logits: Array, count: int, why: str = CANNOT) -> None:
    """An error where no token can be chosen by these logits (V,), behind so many tokens."""
    if not np.isfinite(logits.max()):
        raise FloatingPointError(
            f"generate: the model's logits behind {count} tokens are not finite: {why}"
        )


def eos_ids(config: Mapping[str, Any], generation: Mapping[str, Any], name: str) -> frozenset[int]:
    """The ids that end a text, as generation_config.json says, or else config.json."""
    found = generation.get("eos_token_id")
    if found is None:
        found = config.get("eos_token_id")
    ids = found if isinstance(found, list) else [] if found is None else [found]
    for token in ids:
        if not is_whole(token):
            raise ModelError(
                f"generate: eos_token_id of {name} is {found!r:.40}: it must be a whole number, "
                "or a list of such"
            )
    return frozenset(ids)

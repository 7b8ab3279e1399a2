"""Text out of a decoder: token by token, each chosen from the logits behind the one before."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

from qkv.arrays import Array, is_whole_number, real_number, shown, whole_number
from qkv.models.files.read import ModelError, is_whole
from qkv.models.network.transformer import Transformer
from qkv.models.tasks.edit import CANNOT, Edits
from qkv.text import Tokenized, Tokenizer
from qkv.text.tokenizer import check_text
from qkv.trace import Seq2SeqTrace, Trace

CONTEXT = 8  # tokens of the prompt that the first new ones are spelled with
AT_ONCE = 32  # tokens of a prompt whose logits are in memory at once
DEFAULT_NEW = 64  # tokens that are added where nobody says how many
_BROKEN = "\ufffd"  # what bytes that are no character, or not yet one, are shown as

# What is read without blanks between words: Thai to Khmer, and Chinese, Japanese and their like.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_LAST_WORD = re.compile(rf"\s*[^\s{_UNSPACED}]*\Z")


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


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen from logits, as `transformers` does it, in this order.

    Attributes:
        temperature: what logits are divided by; 0 takes the largest.
        top_k: how many of the largest may be chosen, and what is as large as the last of them.
        top_p: the likeliest tokens may be chosen until their probabilities sum to this.

    Raises:
        TypeError: one is not a number.
        ValueError: one makes no sense.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        temperature = real_number(self.temperature, call="generate", name="temperature")
        if not 0 <= temperature < math.inf:
            raise ValueError(
                f"generate: temperature is {temperature}: it must be finite, and 0 or above"
            )
        if self.top_k is not None:
            whole_number(self.top_k, call="generate", name="top_k", least=1)
        if self.top_p is not None:
            top_p = real_number(self.top_p, call="generate", name="top_p")
            if not 0 < top_p <= 1:
                raise ValueError(f"generate: top_p is {top_p}: it must be above 0 and at most 1")

    def allowed(self, logits: Array) -> tuple[Array, Array]:
        """Which of the tokens (V,) may be chosen, and their probabilities.

        >>> ids, probabilities = Sampling(1.0, top_k=2).allowed(np.log([0.1, 0.6, 0.3]))
        >>> ids, probabilities.round(2)
        (array([1, 2]), array([0.67, 0.33]))
        """
        with np.errstate(over="ignore"):
            wide = logits.astype(np.float64)
            scores = (wide - wide.max()) / (self.temperature or 1.0)
        ids = np.arange(len(scores))
        if self.top_k is not None and self.top_k < len(scores):
            least = np.partition(scores, -self.top_k)[-self.top_k]
            ids = np.flatnonzero(scores >= least)
        probabilities = np.exp(scores[ids])
        probabilities /= probabilities.sum()
        if self.top_p is not None and self.top_p < 1:
            order = np.argsort(-probabilities, kind="stable")
            likelier = np.cumsum(probabilities[order]) - probabilities[order]
            kept = np.sort(order[likelier < self.top_p])
            ids, probabilities = ids[kept], probabilities[kept] / probabilities[kept].sum()
        return ids, probabilities

    def __call__(self, logits: Array, rng: np.random.Generator) -> int:
        """One token, drawn from logits (V,)."""
        if self.temperature == 0:
            return int(logits.argmax())
        ids, probabilities = self.allowed(logits)
        sums = np.cumsum(probabilities)
        return int(ids[np.searchsorted(sums, rng.random() * sums[-1], side="right")])


class Spelling:
    """Tokens as text, as soon as a character of it is whole.

    Args:
        decode: from ids to their text.
        before: the tokens that the text continues.

    Attributes:
        spans: for each token that is spelled, from which character of the text to which it stands;
            those that make one character together have the same.

    >>> spelling = Spelling(lambda ids: bytes(ids).decode(errors="replace"))
    >>> [spelling.add(byte) for byte in "né".encode()], spelling.spans
    (['n', '', 'é'], [(0, 1), (1, 2), (1, 2)])
    """

    def __init__(self, decode: Callable[[list[int]], str], before: Sequence[int] = ()) -> None:
        self._decode = decode
        self._ids = [int(token) for token in before[-CONTEXT:]]
        # Ids from `_done` on are not yet text; those from `_first` on say how they are spelled.
        self._first, self._done = 0, len(self._ids)
        self.spans: list[tuple[int, int]] = []

    def add(self, token: int) -> str:
        """What is whole with this token, and was not before."""
        self._ids.append(token)
        return self._spelled(final=False)

    def finish(self) -> str:
        """The rest: there is no further token."""
        return self._spelled(final=True)

    def _spelled(self, *, final: bool) -> str:
        """The text of the ids that had none; nothing if it ends on half a character."""
        before = self._decode(self._ids[self._first : self._done])
        whole = self._decode(self._ids[self._first :])
        new = whole[len(before) :]
        if not final and (not new or new.endswith(_BROKEN)):
            return ""
        begin = self.spans[-1][1] if self.spans else 0
        self.spans += [(begin, begin + len(new))] * (len(self._ids) - self._done)
        self._first, self._done = self._done, len(self._ids)
        return new

    def named(self, token: int) -> str:
        """How a token would be spelled next; nothing if it is no whole character, or special."""
        before = self._ids[-CONTEXT:]
        known, whole = self._decode(before), self._decode([*before, token])
        new = whole[len(known) :]
        return "" if new.endswith(_BROKEN) or not whole.startswith(known) else new


class TextStream:
    """Tokens as text, as soon as a word of it is whole.

    Args:
        decode: from ids to their text.
        before: the tokens that the text continues.
        stop: the text ends before any of these.

    >>> words = {0: "one", 1: " tw", 2: "o", 3: " three"}
    >>> stream = TextStream(lambda ids: "".join(words[i] for i in ids), [0])
    >>> [stream.add(i) for i in (1, 2, 3)], stream.finish(), stream.text
    (['', '', ' two'], ' three', ' two three')
    """

    def __init__(
        self, decode: Callable[[list[int]], str], before: Sequence[int], stop: Sequence[str] = ()
    ) -> None:
        self.spelling, self._stop = Spelling(decode, before), stop
        self._held = ""
        self.text = ""
        self.stopped = False

    def add(self, token: int) -> str:
        """What is whole with this token, and was not before."""
        return self._release(self.spelling.add(token), final=False)

    def finish(self) -> str:
        """The rest: there is no further token."""
        return self._release(self.spelling.finish(), final=True)

    def _release(self, new: str, *, final: bool) -> str:
        """What of the held text and this can be let go."""
        held = self._held + new
        found = [at for at in map(held.find, self._stop) if at >= 0]
        if found:
            held, self.stopped = held[: min(found)], True
        size = len(held)
        if not final and not found:
            last = _LAST_WORD.search(held)
            assert last is not None
            size = min(last.start(), *(_begun(held, stop) for stop in self._stop), size)
            size = len(held[:size].rstrip())  # a blank comes with the word behind it
        self._held = held[size:]
        self.text += held[:size]
        return held[:size]


def _begun(text: str, stop: str) -> int:
    """Where `stop` may have begun at the end of `text`; the length of `text` if it has not."""
    for size in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:size]):
            return len(text) - size
    return len(text)


class Measured(NamedTuple):
    """What the model made of one token, before any temperature.

    Attributes:
        logit: of the token.
        log_probability: the same after the softmax, in nats.
        top: the likeliest tokens in its place and their log probabilities, the likeliest first.
    """

    logit: float
    log_probability: float
    top: list[tuple[int, float]]


def measured(logits: Array, token: int, top: int = 0) -> Measured:
    """What logits (V,) say of a token, and of so many of the likeliest.

    >>> found = measured(np.log([0.1, 0.6, 0.3]), 2, top=2)
    >>> round(found.log_probability, 4), [(token, round(log, 4)) for token, log in found.top]
    (-1.204, [(1, -0.5108), (2, -1.204)])
    """
    wide = logits.astype(np.float64)
    wide -= wide.max()
    logs = wide - np.log(np.exp(wide).sum())
    top = min(top, len(logs))
    if not top:
        return Measured(float(logits[token]), float(logs[token]), [])
    ids = np.flatnonzero(logs >= np.partition(logs, -top)[-top])
    ids = ids[np.argsort(-logs[ids], kind="stable")][:top]
    likeliest = list(zip(ids.tolist(), logs[ids].tolist(), strict=True))
    return Measured(float(logits[token]), float(logs[token]), likeliest)


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
    edited: Edits,
) -> Iterator[list[tuple[int, str]]]:
    """Generate a token of each row at a time: give the text that is whole with it, by its row.

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
    opening = edited.begin(len(texts), max(map(len, texts), default=0))
    caches, ids, lengths = body.begin(texts, **opening)
    seen = np.zeros(len(rows), np.int64)
    while lengths.any():
        even = bool((lengths == ids.shape[1]).all())
        options = edited.step(seen, lengths, ids.shape[1])
        x = body.step(ids, caches, None if even else lengths, **options)  # (B, n, D)
        seen += lengths
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


def _prompt_measured(body: Transformer, row: Row, vectors: Array, top: int) -> Iterator[None]:
    """Measure the tokens of a prompt by its last vectors (n, D), some at a time."""
    ids = row.given.ids[1:].tolist()
    for begin in range(0, len(ids), AT_ONCE):
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


def spelled(tokenizer: Tokenizer | None) -> Callable[[list[int]], str]:
    """From ids to their text; numbers where there is no tokenizer."""
    if tokenizer is None:
        return lambda ids: " ".join(map(str, ids))
    # a token table may have more rows than there are tokens
    return lambda ids: tokenizer.decode([i for i in ids if tokenizer.token(i) is not None])


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


def check_stop(stop: Any) -> tuple[str, ...]:
    """Stop strings, as one or several were given."""
    given = (stop,) if isinstance(stop, str) else stop
    try:
        strings = tuple(given)
    except TypeError:
        raise TypeError(f"generate: stop is {given!r:.40}: give strings") from None
    for text in strings:
        if not check_text(text, call="generate", name="a stop string"):
            raise ValueError("generate: stop has an empty string: leave it out")
    return strings

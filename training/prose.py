"""Measure how a decoder reads and writes prose: `python -m training.prose MODEL BOOKS`.

MODEL is a folder or a name, BOOKS is as for `training.books`. The module measures three things:

- perplexity per word on held-out books, for the words on which `training.counting` measures the
  Kneser-Ney model (`python -m training.counting BOOKS --first 10000`);
- induction: the highest induction score of a head on repeated tokens, words and sentences;
- loops: repeated text in continuations of the 100 beginnings of `beginnings.txt`.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import qkv
from qkv.arrays import Array
from qkv.circuits import head_scores
from qkv.text import Tokenizer
from training import books, command, counting, everyday
from training.fits import PARTS, WORD, words_of
from training.shares import in_words

BEGINNINGS = Path(__file__).with_name("beginnings.txt")
FIRST = 10_000  # the number of words of each book
WORDS = 40  # the number of words of a continuation
COPIED = 24  # the number of random tokens that occur twice
ROLE = 0.4  # the minimum score of an induction head
TURNS = 6  # the maximum number of paragraphs of a continuation
RUN, LONG = 4, 8  # a text loops if 4 words in a row occur three times, or 8 words twice
_TOKENS = 100  # the number of tokens that suffices for `WORDS` words
_WINDOWS = 16  # the number of windows in a batch
_COPIES = 64  # the number of texts with repeated words or sentences
_TWICE = 20  # the number of random words in a text, before the text repeats them
_SENTENCE = 8, 16  # the minimum and maximum number of words in a repeated sentence

_PARTS = re.compile(r"[^.!?]+[.!?]+")
_CONTINUES = re.compile(r"[a-zA-Z0-9\u00c3-]|'[a-z]")  # \u00c3 is the first byte of "é"
_ENDS = re.compile(r"[.!?][\"')]*(?:\s|$)")


class Surprise(NamedTuple):
    """The surprise (negative log probability) of some words.

    Attributes:
        nats: the sum of the words' negative log probabilities.
        words: the number of words.
    """

    nats: float
    words: int

    @property
    def perplexity(self) -> float:
        """Return the perplexity per word.

        >>> round(Surprise(2 * math.log(50), 2).perplexity, 6)
        50.0
        """
        return math.exp(self.nats / self.words) if self.words else math.nan


def surprise(model: qkv.Model, text: str, known: Container[str]) -> Surprise:
    """Return the surprise of a decoder at the known words of a text.

    The model has T positions, and reads the text in windows of T tokens. Each window begins half a
    window after the previous window. In each window, only the second half of the tokens counts. So
    each token has at least T/2 tokens of context, except at the beginning of the text. A Kneser-Ney
    5-gram model always has four words of context, also across sentences.

    A word is a token of `training.counting` that begins with a letter and is known. To compute its
    probability, multiply the probabilities of its tokens. (Capitals in the text stay capitals in
    the tokens.) Multiply the product by the probability that the word ends after these tokens:
    otherwise the probability of "cat" would include the probability of "cats". Then divide by the
    probability that the previous word has ended. Punctuation and the end of a text do not count.
    The model does not predict the first token of the text, so the word of this token does not
    count.

    Args:
        model: a decoder whose tokens keep the blank before a word, as GPT-2's do.
        text: one book.
        known: words in lower case.

    Raises:
        ValueError: no token of the tokenizer begins with a blank.

    Source:
        Pimentel and Meister 2024, "How to Compute the Probability of a Word", theorem 1.
    """
    tokenizer = model.tokenizer
    assert tokenizer is not None
    found = tokenizer.tokenize(text)
    spans = found.offsets
    tokens, closed = _log_probabilities(model, found.ids, _closing(tokenizer, model.name))
    for at, (begin, _) in enumerate(spans):
        if not text[max(0, begin - 1) : begin].isalnum():
            closed[at] = 0  # the probability that the previous word has ended before this token
    nats, count, at = 0.0, 0, 0
    for match in counting.TOKEN.finditer(text):
        while spans[at][1] <= match.start():
            at += 1
        end = at
        while end < len(spans) and spans[end][0] < match.end():
            end += 1
        word = match[0].casefold()
        if at and word[0].isalpha() and word in known:
            nats -= float(tokens[at:end].sum() + closed[end] - closed[at])
            count += 1
    return Surprise(nats, count)


def _closing(tokenizer: Tokenizer, name: str) -> Array:
    """Return which tokens (V,) cannot continue the word before them."""
    found = np.zeros(len(tokenizer), bool)
    for token, number in tokenizer.vocabulary.items():
        found[number] = not _CONTINUES.match(token)
    if not any(token.startswith("\u0120") for token in tokenizer.vocabulary):
        raise ValueError(
            f"prose: no token of {name} begins with a blank; pass a decoder with byte-level "
            "tokens, such as GPT-2"
        )
    return found


def _log_probabilities(model: qkv.Model, ids: Array, closing: Array) -> tuple[Array, Array]:
    """Return two arrays (N + 1,): the log probabilities of tokens, and those of word ends.

    The second array holds, for each token, the log probability that a word ends before the token.
    Both arrays are 0 at index 0 (the first token) and at index N (after the last token).
    """
    length = model.max_seq_length or 2 * len(ids)
    half = length // 2
    found = np.zeros((2, len(ids) + 1))
    starts = [0, *range(length - half, len(ids) - 1 - half, length - half)]
    for first in range(0, len(starts), _WINDOWS):
        part = starts[first : first + _WINDOWS]
        batch = np.zeros((len(part), length), np.int64)
        seen = np.zeros(batch.shape, bool)
        for row, there, begin in zip(batch, seen, part, strict=True):
            window = ids[begin : begin + length]
            row[: len(window)], there[: len(window)] = window, True
        logits = model(batch, seen).logits  # (B, T, V)
        assert logits is not None
        for begin, row in zip(part, logits, strict=True):
            skipped = half if begin else 0
            targets = ids[begin + skipped + 1 : begin + length + 1]
            rows = row[skipped : skipped + len(targets)]
            most = rows.max(-1, keepdims=True)
            powers = np.exp(rows - most)
            whole = np.log(powers.sum(-1, dtype=np.float64))
            at = slice(begin + skipped + 1, begin + skipped + 1 + len(targets))
            chosen = rows[np.arange(len(targets)), targets] - most[:, 0]
            found[0, at] = chosen - whole
            found[1, at] = np.log(powers[:, closing].sum(-1, dtype=np.float64)) - whole
    return found[0], found[1]


def perplexity(
    model: qkv.Model, read: Iterable[Iterable[Sequence[str]]], known: Container[str]
) -> dict[str, float]:
    """Measure a decoder's perplexity per known word on some books.

    Args:
        model: as for `surprise`.
        read: the passages of each book.
        known: words in lower case.

    Returns:
        A dict with "perplexity" (per known word) and "words", the number of words in the mean.
    """
    texts = ("\n".join(map(" ".join, passages)) for passages in read)
    each = [surprise(model, text, known) for text in texts]
    total = Surprise(sum(one.nats for one in each), sum(one.words for one in each))
    return {"perplexity": total.perplexity, "words": total.words}


def copying(model: qkv.Model, seed: int = 0) -> dict[str, Any]:
    """Measure how well a model copies a sequence of different random tokens that occurs twice.

    Returns:
        "tokens": the number of tokens that occur twice; "first" and "second": the loss of a token
        in the first and in the second copy, in nats; "heads": an array (layers, heads) of each
        head's mean weight from a token to the token after this token's earlier copy.

    Source:
        Olsson et al. 2022, "In-context Learning and Induction Heads".
    """
    tokenizer = model.tokenizer
    assert tokenizer is not None
    plain = [index for index in range(len(tokenizer)) if not tokenizer.is_special(index)]
    rng = np.random.default_rng(seed)
    count = min(COPIED, len(plain), (model.max_seq_length or 2 * COPIED) // 2)
    once = np.stack([rng.choice(plain, count, replace=False) for _ in range(_COPIES)])
    twice = np.concatenate([once, once], axis=1)  # (B, T)
    losses = np.concatenate(
        [_losses(model, twice[at : at + _WINDOWS]) for at in range(0, _COPIES, _WINDOWS)]
    )
    return {
        "tokens": count,
        "heads": head_scores(model, list(twice), "induction")["induction"],
        "first": float(losses[:, : count - 1].mean()),
        "second": float(losses[:, count:].mean()),
    }


def _losses(model: qkv.Model, ids: Array) -> Array:
    """Return the loss (B, T - 1) of each token (B, T) except the first."""
    logits = model(ids).logits
    assert logits is not None
    wide = logits[:, :-1].astype(np.float64)
    wide -= wide.max(-1, keepdims=True)
    logs = wide - np.log(np.exp(wide).sum(-1, keepdims=True))
    found: Array = -np.take_along_axis(logs, ids[:, 1:, None], -1)[..., 0]
    return found


def induction(model: qkv.Model, sentences: Sequence[str], seed: int = 0) -> dict[str, Any]:
    """Measure the induction score of each head on three kinds of texts.

    The score is the mean weight on the tokens after earlier copies of the current token, as in
    `qkv.circuits.head_scores`. The texts consist of random tokens ("tokens", as in `copying`), of
    random everyday words ("words"), or of held-out sentences ("sentences"). Each text is
    followed by a copy of itself.

    Args:
        model: a decoder.
        sentences: sentences of held-out books; only sentences of 8 to 16 words are used.
        seed: the seed of all random draws.

    Returns:
        For each kind of text, "heads", the scores (layers, heads) as lists, and "best", a dict with
        the keys "score", "layer" and "head".
    """
    rng = np.random.default_rng(seed)
    shortest, longest = _SENTENCE
    usable = [one for one in sentences if shortest <= len(one.split()) <= longest]
    drawn = [usable[at] for at in rng.permutation(len(usable))[:_COPIES]]
    words = [" ".join(rng.permutation(everyday.WORDS)[:_TWICE]) for _ in range(_COPIES)]
    scores = {"tokens": copying(model, seed)["heads"]}
    for name, texts in (("words", words), ("sentences", drawn)):
        twice = [f"{text} {text}" for text in texts]
        scores[name] = head_scores(model, twice, "induction")["induction"]
    return {name: {"heads": one.tolist(), "best": _best(one)} for name, one in scores.items()}


def _best(scores: Array) -> dict[str, float]:
    layer, head = np.unravel_index(int(scores.argmax()), scores.shape)
    return {"score": float(scores.max()), "layer": int(layer), "head": int(head)}


def loops(text: str) -> bool:
    """Return whether a text loops.

    A text loops if four words in a row occur three times, if eight words in a row occur twice, or
    if a sentence of at least four words occurs twice; the runs of words may overlap. Ordinary prose
    often repeats three words ("he said that") and short sentences in dialogue ("I see."), so these
    repetitions do not count as loops. We applied this rule to the 5,666 passages of 48 words in the
    part "choose" of the books. Only 7 of these passages loop, and each of the 7 contains a refrain,
    or an answer that quotes the question. So a loop is almost always a fault of the model.

    >>> loops("He ran and he ran and he ran and he ran."), loops("He ran, and she ran.")
    (True, False)
    >>> loops("It was late. It was late."), loops("It was very late. It was very late.")
    (False, True)
    """
    words = words_of(text)
    sentences = [tuple(words_of(one)) for one in _PARTS.findall(text)]
    long = Counter(one for one in sentences if len(one) >= RUN)
    return _most(words, RUN) >= 3 or _most(words, LONG) >= 2 or any(n > 1 for n in long.values())


def _most(words: Sequence[str], run: int) -> int:
    """Return how often the most common sequence of `run` words occurs."""
    runs = Counter(tuple(words[at : at + run]) for at in range(len(words) - run + 1))
    return max(runs.values(), default=0)


def beginnings(path: Path = BEGINNINGS) -> list[str]:
    """Return the beginnings of texts that a decoder continues.

    >>> len(beginnings())
    100
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


class Continued(NamedTuple):
    """A continuation of a text.

    Attributes:
        text: the new words.
        ended: whether the model ended the text before it had 40 words.
    """

    text: str
    ended: bool


def continuations(model: qkv.Model, texts: Sequence[str], seed: int = 0) -> list[Continued]:
    """Continue texts by 40 words, at temperature 0.8 and with top-k 40.

    Short texts cannot loop. So if the model ends a text before it has 40 new words, the model
    continues with a new paragraph, up to `TURNS` times or until all positions are used.

    Args:
        model: a decoder.
        texts: the beginnings.
        seed: the seed of all random draws.
    """
    written, ended = [""] * len(texts), [False] * len(texts)
    for turn in range(TURNS):
        short = [k for k, text in enumerate(written) if len(words_of(text)) < WORDS]
        prompts = [texts[k] + written[k] for k in short]
        free = _free(model, prompts)
        if not short or free < 1:
            break
        found = model.generate(
            prompts, max_new_tokens=free, temperature=0.8, top_k=40, seed=seed + turn
        )
        for k, one in zip(short, found, strict=True):
            stopped = one.finish_reason == "eos"
            ended[k] |= stopped
            written[k] += f"{one}\n" if stopped else _whole(str(one))
    return [Continued(_cut(text), end) for text, end in zip(written, ended, strict=True)]


def _free(model: qkv.Model, prompts: Sequence[str]) -> int:
    """Return the number of tokens that the model can add to every prompt."""
    assert model.tokenizer is not None
    longest = max((len(ids) for ids in model.tokenizer.ids_batch(prompts)), default=0)
    return min(_TOKENS, (model.max_seq_length or 2 * _TOKENS) - longest)


def _whole(text: str) -> str:
    """Return a text without its last word, which may be incomplete."""
    spans = [match.start() for match in WORD.finditer(text)]
    return text[: spans[-1]].rstrip() if spans else text


def _cut(text: str) -> str:
    """Return the first 40 words of a text."""
    spans = [match.start() for match in WORD.finditer(text)]
    return (text[: spans[WORDS]] if len(spans) > WORDS else text).rstrip(" \n\"'(")


def continued(
    model: qkv.Model, known: Container[str], texts: Sequence[str] | None = None, seed: int = 0
) -> dict[str, Any]:
    """Count loops, unfinished sentences and unknown words in continuations.

    Args:
        model: a decoder.
        known: words in lower case.
        texts: the texts to continue; by default the beginnings of the file.
        seed: the seed of all random draws.

    Returns:
        A dict. "texts" is the number of texts. To count "loop", each text is joined with its
        continuation; "loop" is the number of joined texts that loop. "end" is the number of
        continuations that contain the end of a sentence. "closed" is the number of continuations
        that the model ended before they had 40 words. "words" is the number of words in all
        continuations, and "unknown" is the number of these words that are not in `known`.
        "continuations" is the list of the continuations.
    """
    texts = beginnings() if texts is None else texts
    found = continuations(model, texts, seed)
    written = [one.text for one in found]
    words = [word for text in written for word in words_of(text) if word[0].isalpha()]
    return {
        "texts": len(texts),
        "loop": sum(loops(a + b) for a, b in zip(texts, written, strict=True)),
        "end": sum(bool(_ENDS.search(text)) for text in written),
        "closed": sum(one.ended for one in found),
        "words": len(words),
        "unknown": sum(word not in known for word in words),
        "continuations": written,
    }


def figures(
    model: qkv.Model,
    read: Sequence[Sequence[Sequence[str]]],
    known: Container[str],
    seed: int = 0,
) -> dict[str, Any]:
    """Return all measurements of a decoder, as values that JSON can store.

    Args:
        model: the decoder.
        read: the passages of each held-out book.
        known: the words of the training books in lower case.
        seed: the seed of all random draws.

    Returns:
        A dict. "model" is the name of the model. "perplexity", "induction" and "continued" are the
        results of the functions `perplexity`, `induction` and `continued`.
    """
    sentences = [one for passages in read for passage in passages for one in passage]
    return {
        "model": model.name,
        "perplexity": perplexity(model, read, known),
        "induction": induction(model, sentences, seed),
        "continued": continued(model, known, seed=seed),
    }


def in_card(found: Mapping[str, Any]) -> str:
    """Return a Markdown table of the results of `figures`, for a model card."""
    of, read = found["continued"], found["perplexity"]
    n = of["texts"]
    lines = [
        "| measured | figure |",
        "| --- | --- |",
        f"| perplexity per known word of held-out books ({read['words']:,} words) | "
        f"{read['perplexity']:.1f} |",
    ]
    for name, text in _INDUCTION.items():
        best = found["induction"][name]["best"]
        lines.append(
            f"| induction score on {text} | {best['score']:.2f} (head {best['layer']}."
            f"{best['head']}) |"
        )
    return "\n".join(
        [
            *lines,
            f"| continuations that loop, of {n} with {WORDS} words | "
            f"{of['loop']}, {in_words(of['loop'], n)} |",
            "| continuations in which the model ended a paragraph early and began another | "
            f"{of['closed']}, {in_words(of['closed'], n)} |",
            "| continuations that contain the end of a sentence | "
            f"{of['end']}, {in_words(of['end'], n)} |",
            "| words of the continuations that the training books lack | "
            f"{of['unknown']} of {of['words']:,} |",
        ]
    )


_INDUCTION = {
    "tokens": "random tokens that occur twice",
    "words": "random words that occur twice",
    "sentences": "held-out sentences that occur twice",
}


def main(arguments: Sequence[str] | None = None, say: Callable[[str], None] = print) -> None:
    """Measure a decoder."""
    parser = argparse.ArgumentParser(prog="python -m training.prose", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("models", nargs="+", help="folders or names of decoders")
    parser.add_argument("books", type=Path, help="a clone of the repository, or an archive")
    parser.add_argument(
        "--choose", action="store_true", help="measure on the part kept for choosing models"
    )
    parser.add_argument(
        "--first", type=int, default=FIRST, help=f"number of words of each book ({FIRST})"
    )
    parser.add_argument(
        "--json", action="store_true", help="print numbers and texts as JSON, not a table"
    )
    given = parser.parse_args(arguments)
    known = counting.numbered(
        counting.tokens(one)
        for _, passages in books.read(given.books, ["train"])
        for passage in passages
        for one in passage
    )
    part = PARTS[given.choose]
    read = [
        counting.beginning(passages, given.first) for _, passages in books.read(given.books, [part])
    ]
    for name in given.models:
        found = figures(qkv.load(name), read, known)
        say(json.dumps(found, indent=2) if given.json else f"{name}\n\n{in_card(found)}\n")


if __name__ == "__main__":
    command(main)

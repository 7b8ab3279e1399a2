"""Measure how well a model's vectors distinguish word senses, and what its heads attend to.

`python -m training.senses MODEL` prints both results. MODEL is a folder or a name; by default, it
is the default model.

Method. WordNet gives examples for its synsets (words with the same meaning). A use is a pair: a
held-out example, and a word of the example's synset. The example contains the word as WordNet
spells it, with or without an added ending. The vector of a use is the mean of the vectors of the
word's tokens. The vector of a sense is the mean of the vectors of all tokens of its definition,
including [CLS] and [SEP]. Both vectors are read at the same point of the model: the token table,
the embeddings (including positions and norm), or the output of a layer, counted from 0.

Each use is compared with all senses that its word has in the same part of speech. *Sense* is the
share of uses for which the vector of the right sense has the largest cosine with the vector of the
use. Only words with at least two such senses count. *AUC* compares pairs of uses. The two uses
contain the same word, and the word is the same part of speech in both. The AUC is the probability
that a pair of uses with the same sense has a larger cosine than a pair of uses with different
senses.

We measured all-MiniLM-L6-v2 at the embeddings, layer 4 and the last layer. There, the model's
*sense* is 0.299, 0.351 and 0.374 (random guessing: 0.292), from 2,723 uses. The model's *AUC* is
0.609, 0.716 and 0.627 (random guessing: 0.500), from 562 pairs. In only 72 of the pairs, the two
uses have the same sense, so the error of an AUC is about 0.03.

We also tried the following choices, and did not keep them. The numbers are for the same three
points of the model. With all inflected forms, *sense* is 0.294, 0.347 and 0.371, and *AUC* is
0.625, 0.739 and 0.665. If we use all inflected forms, and also leave [CLS] and [SEP] out of the
mean of a definition's vectors, the three values of *sense* are 0.288, 0.341 and 0.368. If each use
is compared with all senses of its word, whatever their part of speech, the three values of *sense*
are 0.258, 0.296 and 0.317. If the word and its synonyms are put before each definition, the three
values of *sense* are 0.294, 0.347 and 0.428; but then the text contains the word itself, so the
comparison is too easy.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np

import qkv
from qkv.arrays import Array
from qkv.text.tokenized import is_piece
from qkv.trace import Trace
from training import command
from training.guesses import named
from training.shares import in_words
from training.wordnet import CHOSEN, FOLDER, REPORTED, Use, WordNet, is_in, read

LETTERS = 16_000  # the number of letters of the texts in one batch
MASKED = 0.15  # the share of masked words in a sentence
HEAD_SCORES = ("previous", "next", "same", "first", "last", "uniform")


def evaluate(model: qkv.Model, wordnet: WordNet, twelfth: int = REPORTED) -> dict[str, Any]:
    """Return all measurements of a model, as values that JSON can store."""
    uses = held_out_uses(wordnet, twelfth)
    sentences = held_out_sentences(wordnet, twelfth)
    return {
        "model": model.name,
        **senses(model, wordnet, uses),
        "masked": masked_words(model, sentences),
        "masked tokens": masked_tokens(model, sentences),
        "heads": heads(model, sentences),
    }


def held_out_uses(wordnet: WordNet, twelfth: int = REPORTED) -> list[Use]:
    """Select the uses in which the word has WordNet's spelling, with or without an added ending."""
    return [
        use
        for use in wordnet.uses(twelfth)
        if use.sentence[use.start : use.end].lower().startswith(use.lemma)
    ]


def held_out_sentences(wordnet: WordNet, twelfth: int = REPORTED) -> list[str]:
    """Return all held-out sentences, each once."""
    examples = (sentence for synset in wordnet.synsets for sentence in synset.examples)
    return list(dict.fromkeys(sentence for sentence in examples if is_in(sentence, twelfth)))


def senses(model: qkv.Model, wordnet: WordNet, uses: Sequence[Use]) -> dict[str, Any]:
    """Return the scores *sense* and *AUC* for each layer, and for random guessing."""
    choices = [wordnet.senses(use.lemma, wordnet.synsets[use.synset].part) for use in uses]
    needed = sorted({number for found in choices if len(found) > 1 for number in found})
    spans = [(use.start, use.end) for use in uses]
    words = _unit(vectors(model, [use.sentence for use in uses], spans))  # (K, uses, D)
    meanings = _unit(vectors(model, [wordnet.synsets[number].definition for number in needed]))
    row = {number: place for place, number in enumerate(needed)}

    right, tries, chance = np.zeros(len(words)), 0, 0.0
    for at, (use, found) in enumerate(zip(uses, choices, strict=True)):
        if len(found) > 1:
            cosines = meanings[:, [row[number] for number in found]] @ words[:, at, :, None]
            right += np.array(found)[cosines[..., 0].argmax(1)] == use.synset
            tries, chance = tries + 1, chance + 1 / len(found)

    first, second, same = _pairs(wordnet, uses)
    layers = ["token table", "embeddings", *(f"layer {n}" for n in range(model.num_layers))]
    tries = max(tries, 1)
    return {
        "uses": tries,
        "pairs": len(same),
        "pairs_of_one_sense": int(same.sum()),
        "chance": {"sense": chance / tries, "auc": 0.5},
        "layers": {
            name: {
                "sense": float(right[k] / tries),
                "auc": auc((words[k, first] * words[k, second]).sum(-1), same),
            }
            for k, name in enumerate(layers)
        },
    }


def _pairs(wordnet: WordNet, uses: Sequence[Use]) -> tuple[Array, Array, Array]:
    """Return pairs of uses of one word in two sentences, and whether their senses are equal."""
    groups: dict[tuple[str, str], list[int]] = {}
    for at, use in enumerate(uses):
        groups.setdefault((use.lemma, wordnet.synsets[use.synset].part), []).append(at)
    found = [
        (a, b)
        for group in groups.values()
        for a, b in combinations(group, 2)
        if uses[a].sentence != uses[b].sentence
    ]
    first, second = np.array(found, np.int64).reshape(-1, 2).T
    of = np.array([use.synset for use in uses], np.int64)
    return first, second, of[first] == of[second]


def auc(scores: Array, positive: Array) -> float:
    """Return the probability that a positive has a higher score than a negative; ties count half.

    Scores that differ by less than 1e-6 count as equal. The result is NaN if there are no positives
    or no negatives.

    >>> auc(np.array([0.9, 0.5, 0.5, 0.1]), np.array([True, True, False, False]))
    0.875
    """
    _, place, counts = np.unique(scores.round(6), return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    n = int(positive.sum())
    m = len(positive) - n
    return float((ranks[positive].sum() - n * (n + 1) / 2) / (n * m)) if n and m else float("nan")


def vectors(
    model: qkv.Model, texts: Sequence[str], spans: Sequence[tuple[int, int]] | None = None
) -> Array:
    """Return the mean of the token vectors of each text, or of a span of its characters.

    Returns:
        (K, n, D): one array (n, D) for the token table, one for the embeddings, and one for each
        layer.
    """
    names = ["embed", "blocks.0.hook_resid_pre", "resid_post"]
    design: Any = getattr(model.design, "encoder", model.design)
    names += ["normalized_resid_post"] * (design.norms == "after")
    names += ["ln_final.hook_normalized"] * design.final_norm
    found: Array | None = None
    for part, trace in traces(model, texts, names):
        weights = np.zeros((len(part), int(trace.lengths.max())), np.float32)  # (B, T)
        for row, text, offsets in zip(weights, part, trace.offsets, strict=True):
            begin, end = (0, len(texts[text])) if spans is None else spans[text]
            row[: len(offsets)] = [spans is None or (a < end and b > begin) for a, b in offsets]
        weights /= np.maximum(weights.sum(1, keepdims=True), 1)
        states = (trace["embed"], *trace.hidden_states)
        means = [(weights[:, None] @ state)[:, 0] for state in states]
        if found is None:
            found = np.zeros((len(states), len(texts), means[0].shape[-1]), np.float32)
        found[:, part] = means
    assert found is not None
    return found


def masked_words(model: qkv.Model, sentences: Sequence[str], seed: int = 0) -> Any:
    """Count the masked words that a model predicts correctly. Every subword must be correct.

    In each sentence, 15% of the words are masked, but at least one word. The choice of words
    depends only on the seed, not on the vocabulary. The result is None for a model without a head.
    """
    return _masked(model, sentences, seed, is_piece, "words")


def masked_tokens(model: qkv.Model, sentences: Sequence[str], seed: int = 0) -> Any:
    """Count the masked tokens that a model predicts correctly.

    In each sentence, 15% of the tokens are masked, but at least one token. The result is None for a
    model without a head.
    """
    return _masked(model, sentences, seed, lambda token: False, "tokens")


def _masked(
    model: qkv.Model, sentences: Sequence[str], seed: int, joins: Callable[[str], bool], name: str
) -> Any:
    """Count the masked units (tokens or whole words) that a model predicts correctly."""
    tokenizer = model.tokenizer
    assert tokenizer is not None
    rng = np.random.default_rng(seed)
    hidden: list[
        tuple[Array, list[list[int]]]
    ] = []  # the ids, and the positions of each masked unit
    for text in tokenizer.tokenize_batch(sentences):
        real = [k for k, special in enumerate(text.special) if not special]
        starts = [k for k in real if not joins(text.tokens[k])]
        ends = [*starts[1:], real[-1] + 1]
        count = max(1, round(MASKED * len(starts)))
        chosen = rng.choice(len(starts), count, replace=False)
        hidden.append((text.ids, [list(range(starts[k], ends[k])) for k in chosen]))
    positions = [[k for one in found for k in one] for _, found in hidden]
    guesses = named(model, [ids for ids, _ in hidden], positions)
    if guesses is None:
        return None
    right = tries = 0
    for (true, found), at, guess in zip(hidden, positions, guesses, strict=True):
        good = dict(zip(at, guess == true[at], strict=True))
        right += sum(all(good[k] for k in one) for one in found)
        tries += len(found)
    return {"top1": right / tries, name: tries}


def heads(model: qkv.Model, sentences: Sequence[str]) -> list[dict[str, Any]]:
    """Return each head's mean weight on certain tokens, over all queries.

    Each result is named after its tokens. `previous` and `next` are the tokens beside the query.
    `same` stands for all tokens equal to the query's token, including the query's token itself.
    `first` and `last` are the first and the last token of the text ([CLS] and [SEP] in a BERT).
    `uniform` does not stand for tokens: it is the entropy of the head's weights, divided by the
    maximum possible entropy.
    """
    sums = np.zeros((len(HEAD_SCORES), model.num_layers, model.num_heads))
    counts = np.zeros(len(HEAD_SCORES))
    for _, trace in traces(model, sentences, ["pattern"]):
        ids = np.full((len(trace), int(trace.lengths.max())), -1)
        for row, text in zip(ids, trace.ids, strict=True):
            row[: len(text)] = text
        real = ids >= 0
        same = (ids[:, :, None] == ids[:, None]) & real[:, None]  # (B, T, T)
        rows, last = np.arange(len(ids)), trace.lengths - 1
        most = np.maximum(np.log2(trace.lengths), 1)  # a text of one token has only one weight
        counts += [real[:, 1:].sum()] * 2 + [real.sum()] * 4
        for layer, weights in enumerate(trace.attentions):  # (B, H, T, T), with 0 in the padding
            behind = real[:, None, 1:]  # the first token has no previous token
            bits = -weights * np.log2(weights, where=weights > 0, out=np.zeros_like(weights))
            for k, found in enumerate(
                (
                    np.diagonal(weights, -1, 2, 3) * behind,
                    np.diagonal(weights, 1, 2, 3) * behind,
                    np.einsum("bhqk,bqk->bhq", weights, same),
                    weights[..., 0],
                    weights[rows, :, :, last],
                    bits.sum(-1) / most[:, None, None],
                )
            ):
                sums[k, layer] += found.sum((0, 2), dtype=np.float64)
    scores = sums / np.maximum(counts, 1)[:, None, None]
    return [
        {"layer": layer, "head": head}
        | {name: float(scores[k, layer, head]) for k, name in enumerate(HEAD_SCORES)}
        for layer in range(model.num_layers)
        for head in range(model.num_heads)
    ]


def traces(
    model: qkv.Model, texts: Sequence[str], names: Sequence[str]
) -> Iterator[tuple[list[int], Trace]]:
    """Yield traces of batches of texts with similar lengths, and the indices of these texts."""
    order = sorted(range(len(texts)), key=lambda k: len(texts[k]))
    sizes = np.cumsum([len(texts[k]) for k in order]) // LETTERS
    cuts = [0, *(np.flatnonzero(np.diff(sizes)) + 1), len(order)]
    for begin, end in pairwise(int(cut) for cut in cuts):
        part = order[begin:end]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # do not warn about truncated texts
            yield part, model.trace([texts[k] for k in part], names=names)


def _unit(rows: Array) -> Array:
    found: Array = rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-12)
    return found


def shown(found: dict[str, Any]) -> str:
    """Format the result as tables of plain text."""
    lines = [
        f"{found['model']}: {found['uses']} uses, {found['pairs']} pairs, "
        f"{found['pairs_of_one_sense']} of them of one sense",
        "",
        f"{'':12} sense   AUC",
        *(
            f"{name:12} {row['sense']:5.3f} {row['auc']:5.3f}"
            for name, row in {"chance": found["chance"], **found["layers"]}.items()
        ),
        "",
        *(_masked_in_words(found[key], unit) for key, unit in _MASKED.items() if key in found),
        "",
        "head  " + " ".join(f"{name:>8}" for name in HEAD_SCORES),
        *(
            f"{row['layer']}.{row['head']:<3} "
            + " ".join(f"{row[name]:8.2f}" for name in HEAD_SCORES)
            for row in found["heads"]
        ),
    ]
    return "\n".join(lines)


_MASKED = {"masked": "words", "masked tokens": "tokens"}


def _masked_in_words(found: dict[str, Any] | None, unit: str) -> str:
    if found is None:
        return f"masked {unit}: no head"
    right = round(found["top1"] * found[unit])
    return f"masked {unit}: {in_words(right, found[unit])} of {found[unit]:,} named"


def main(arguments: Sequence[str] | None = None, say: Callable[[str], None] = print) -> None:
    """Measure one model."""
    parser = argparse.ArgumentParser(prog="python -m training.senses", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "model", nargs="?", help="folder or name of a model (default: qkv's default model)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, not tables")
    parser.add_argument(
        "--choose", action="store_true", help="measure on the examples kept for choosing models"
    )
    parser.add_argument("--wordnet", type=Path, default=FOLDER, help="folder of WordNet's files")
    given = parser.parse_args(arguments)
    twelfth = CHOSEN if given.choose else REPORTED
    found = evaluate(qkv.load(given.model), read(given.wordnet), twelfth)
    say(json.dumps(found, indent=2) if given.json else shown(found))


if __name__ == "__main__":
    command(main)

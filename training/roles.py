"""Find the heads of a model that have a role: apply a rule to weights on held-out examples.

`python -m training.roles MODEL` prints these heads. MODEL is the folder or the name of a model. If
MODEL is omitted, the script measures the default model.

The rule. A head has a role if one of these weights is 0.4 or more:

- the five mean weights that `training.senses` measures: the weight from a token to the previous
  token, to the next token, to all copies of this token (including the token itself), to the first
  token ([CLS]), or to the last token ([SEP]). This weight must also be 0.1 or more above the weight
  in a head that attends to all visible tokens equally;
- for a decoder, the mean weight of *induction*: a sentence is written twice, and a token of the
  second copy attends to the token that followed the same token in the first copy. The control is
  the weight on the token after that; the rule is the rule of related words below;
- the mean weight between two related words, over all pairs with the same relation. This weight must
  also exceed the weight between unrelated words at the same positions: the lower end of the 95%
  interval of the difference must be 0.1 or more. A relation must pass both tests twice: on the
  examples kept for choosing models, and on the examples kept for reports.

The script counts the heads with a role. Heads whose only roles are *first* or *last* add at most
three to the count.

The relations are those of `training.pairs`. Heads of a masked language model act most at the masked
word, so each relation is measured twice: in the unchanged sentence, and in the sentence with its
query word masked. For example, [MASK] replaces the verb in the relation *hidden verb to object*,
which measures the weight from the verb to the object. To get one weight from a query word to a key
word, we sum the weights over the key word's subwords, and take the mean over the query word's
subwords (Clark et al. 2019, "What Does BERT Look At?", section 4). Each pair is compared with a
pair of unrelated words: the words at the same positions of another sentence. If the query word of
the pair is masked, the query word of the unrelated pair is masked as well. Punctuation does not
count as a position. Before any measurement, we chose three relations: *verb and object*,
*preposition and noun* and *article and noun*. Then we measured the heads on the examples kept for
choosing models. We knew these results when we chose the other relations of `training.pairs`, and
when we decided to mask words.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import qkv
from qkv.arrays import Array
from training import command
from training.pairs import Pair, Span, hidden, others_at, pairs_of
from training.senses import heads, held_out_sentences, traces
from training.wordnet import CHOSEN, FOLDER, REPORTED, WordNet, read

LEAST, MORE = 0.4, 0.1
OF_POSITIONS = ("previous", "next", "same")
OF_ENDS = ("first", "last")
MOST_OF_ENDS = 3
INDUCTION, DOUBLED = "induction", 500  # a role, and the maximum number of sentences written twice
_HIDDEN = "hidden "


@dataclass(frozen=True)
class Measured:
    """The weight between the words of a relation.

    Attributes:
        mean: (layers, heads), the mean weight over all pairs.
        other: (layers, heads), the mean weight over unrelated words at the same positions.
        low: the lower end of the 95% interval of `mean - other`.
        pairs: the number of pairs.
    """

    mean: Array
    other: Array
    low: Array
    pairs: int

    def holds(self) -> Array:
        """Return which heads have this relation as a role, judged by these examples."""
        return (self.mean >= LEAST) & (self.low >= MORE)


def weights_between(model: qkv.Model, pairs: Sequence[Pair]) -> Array:
    """Return the weight from the first to the second word of each pair: (n, layers, heads)."""
    found = np.zeros((len(pairs), model.num_layers, model.num_heads))
    of: dict[str, list[int]] = {}  # the indices of the pairs of each text
    for number, (text, _, _) in enumerate(pairs):
        of.setdefault(text, []).append(number)
    texts = list(of)
    for part, trace in traces(model, texts, ["pattern"]) if texts else ():
        for row, place in enumerate(part):
            for number in of[texts[place]]:
                _, looks, at = pairs[number]
                queries, keys = (_tokens(trace.offsets[row], span) for span in (looks, at))
                if queries and keys:  # both words are within the model's maximum length
                    for layer, weights in enumerate(trace.attentions):
                        block = weights[row][:, queries][:, :, keys]
                        found[number, layer] = block.sum(-1).mean(-1)
    return found


def _tokens(offsets: Sequence[Span], span: Span) -> list[int]:
    return [k for k, (a, b) in enumerate(offsets) if a < span[1] and b > span[0]]


def relations(model: qkv.Model, wordnet: WordNet, twelfth: int) -> dict[str, Measured]:
    """Measure each relation on one twelfth of the examples.

    If the tokenizer has a mask token, also measure each relation with its query words masked.
    """
    assert model.tokenizer is not None
    mask = model.tokenizer.mask
    sentences = held_out_sentences(wordnet, twelfth)
    # for each relation, a list of `(pair of related words, pair of unrelated words)`
    both: dict[str, list[tuple[Pair, Pair]]] = {}
    for name, pairs in pairs_of(sentences, list(wordnet.uses(twelfth)), wordnet).items():
        others = others_at(pairs, sentences)
        both[name] = [(a, b) for a, b in zip(pairs, others, strict=True) if b is not None]
    if mask is not None:
        both |= {
            f"{_HIDDEN}{name}": [(hidden(a, mask), hidden(b, mask)) for a, b in kept]
            for name, kept in both.items()
        }
    weights = weights_between(model, [one for kept in both.values() for two in kept for one in two])
    ends = np.cumsum([2 * len(kept) for kept in both.values()])
    parts = np.split(weights, ends[:-1])
    found = {name: compared(of[::2], of[1::2]) for name, of in zip(both, parts, strict=True)}
    return found | ({INDUCTION: induction(model, sentences)} if model.generates else {})


def induction(model: qkv.Model, sentences: Sequence[str]) -> Measured:
    """Measure induction in texts that consist of a sentence, written twice (see the rule above)."""
    twice = [f" {sentence} {sentence}" for sentence in sentences[:DOUBLED]]
    weights: list[tuple[Array, Array]] = []
    for _, trace in traces(model, twice, ["pattern"]):
        for row, ids in enumerate(trace.ids):
            half = len(ids) // 2
            if half < 3 or list(ids[:half]) != list(ids[half:]):
                continue  # the two copies have different tokens
            queries = np.arange(half, 2 * half - 2)
            both = [
                [layer[row][:, queries, queries - half + by].mean(-1) for layer in trace.attentions]
                for by in (1, 2)
            ]
            weights.append((np.array(both[0]), np.array(both[1])))
    none = np.zeros((0, model.num_layers, model.num_heads))
    related, others = (
        (np.array(of) for of in zip(*weights, strict=True)) if weights else (none, none)
    )
    return compared(related, others)


def by_chance(model: qkv.Model, sentences: Sequence[str]) -> dict[str, float]:
    """Return the mean weights of a head that attends to all visible tokens equally."""
    sums, counts = np.zeros(5), np.zeros(5)
    for sentence in sentences:
        ids = np.array(model.tokenize(sentence).ids)
        size = len(ids)
        seen = np.tri(size) if model.generates else np.ones((size, size))
        weights = seen / seen.sum(1, keepdims=True)
        same = (weights * (ids[:, None] == ids)).sum()
        sums += [
            *(np.diagonal(weights, by).sum() for by in (-1, 1)),
            *(same, weights[:, 0].sum(), weights[:, -1].sum()),
        ]
        counts += [size - 1, size - 1, size, size, size]
    return dict(zip((*OF_POSITIONS, *OF_ENDS), sums / np.maximum(counts, 1), strict=True))


def compared(pairs: Array, others: Array) -> Measured:
    """Compare weights (n, layers, heads) with the weights between unrelated words."""
    count = len(pairs)
    if count < 2:
        nothing = np.zeros(pairs.shape[1:])
        return Measured(nothing, nothing, nothing, count)
    more = pairs - others
    half = 1.96 * more.std(axis=0, ddof=1) / np.sqrt(count)
    return Measured(pairs.mean(axis=0), others.mean(axis=0), more.mean(axis=0) - half, count)


def roles(
    model: qkv.Model, wordnet: WordNet, twelfth: int = REPORTED
) -> tuple[list[dict[str, Any]], dict[str, Measured]]:
    """Return the roles of each head, and the result of each relation.

    A relation must hold on the examples kept for choosing models. In a report, the relation must
    also hold on the examples kept for reports.
    """
    found = relations(model, wordnet, twelfth)
    holds = {name: one.holds() for name, one in found.items()}
    if twelfth != CHOSEN:
        before = relations(model, wordnet, CHOSEN)
        holds = {name: good & before[name].holds() for name, good in holds.items()}
    rows = []
    sentences = held_out_sentences(wordnet, twelfth)
    chance = by_chance(model, sentences)
    for row in heads(model, sentences):
        at = row["layer"], row["head"]
        own = {name: row[name] for name in chance if row[name] >= max(LEAST, chance[name] + MORE)}
        own |= {name: float(found[name].mean[at]) for name, good in holds.items() if good[at]}
        rows.append({"layer": at[0], "head": at[1], "roles": own})
    return rows, found


def counted(rows: Sequence[dict[str, Any]]) -> int:
    """Count the heads with a role.

    Heads whose only roles are *first* or *last* add at most three to the count.

    >>> counted([{"roles": {"first": 0.5}}] * 5 + [{"roles": {"first": 0.4, "next": 0.8}}])
    4
    """
    ends = sum(bool(row["roles"]) and set(row["roles"]) <= set(OF_ENDS) for row in rows)
    return sum(bool(row["roles"]) for row in rows) - max(0, ends - MOST_OF_ENDS)


def shown(rows: Sequence[dict[str, Any]], found: dict[str, Measured]) -> str:
    """Format the result as plain text."""
    lines = [f"heads with a role: {counted(rows)} of {len(rows)}", ""]
    for row in rows:
        own = ", ".join(f"{name} {value:.2f}" for name, value in row["roles"].items())
        if own:
            lines.append(f"{row['layer']}.{row['head']}  {own}")
    lines += ["", f"{'relation':29} {'pairs':>6} {'best':>5} {'mean':>6} {'other':>6} {'low':>6}"]
    for name, one in found.items():
        at = np.unravel_index(int(one.low.argmax()), one.low.shape)
        cells = " ".join(f"{array[at]:6.2f}" for array in (one.mean, one.other, one.low))
        lines.append(f"{name:29} {one.pairs:6} {at[0]:3}.{at[1]} {cells}")
    return "\n".join(lines)


def in_card(rows: Sequence[dict[str, Any]]) -> str:
    """Format the result for a model card, each head's roles sorted by weight, the largest first.

    >>> own = {"next": 0.5, "hidden noun to article": 0.75}
    >>> print(in_card([{"layer": 0, "head": 1, "roles": own}]))
    By the rule of `training/roles.py`, 1 of 1 heads have a role: a mean weight of 0.4 or more on
    certain tokens or words. The count includes at most three heads that only attend to [CLS] or
    [SEP]. In roles such as *hidden verb to object*, [MASK] replaces the word whose weights are
    measured (here the verb); 0 of the heads have only roles of this kind.
    <BLANKLINE>
    | head | roles |
    | --- | --- |
    | 0.1 | hidden noun to article 0.75, next 0.50 |
    """
    alone = sum(bool(row["roles"]) and all(map(_is_hidden, row["roles"])) for row in rows)
    table = [
        f"| {row['layer']}.{row['head']} | {', '.join(_largest_first(row['roles']))} |"
        for row in rows
        if row["roles"]
    ]
    return "\n".join([_CARD.format(counted(rows), len(rows), alone), *table])


_CARD = """\
By the rule of `training/roles.py`, {} of {} heads have a role: a mean weight of 0.4 or more on
certain tokens or words. The count includes at most three heads that only attend to [CLS] or
[SEP]. In roles such as *hidden verb to object*, [MASK] replaces the word whose weights are
measured (here the verb); {} of the heads have only roles of this kind.

| head | roles |
| --- | --- |"""


def _is_hidden(name: str) -> bool:
    return name.startswith(_HIDDEN)


def _largest_first(own: dict[str, float]) -> list[str]:
    return [f"{name} {own[name]:.2f}" for name in sorted(own, key=lambda name: -own[name])]


def main(arguments: Sequence[str] | None = None, say: Callable[[str], None] = print) -> None:
    """Print the roles of one model's heads."""
    parser = argparse.ArgumentParser(prog="python -m training.roles", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "model", nargs="?", help="folder or name of a model (default: qkv's default model)"
    )
    parser.add_argument(
        "--choose", action="store_true", help="measure on the examples kept for choosing models"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, not a table")
    parser.add_argument("--wordnet", type=Path, default=FOLDER, help="folder of WordNet's files")
    given = parser.parse_args(arguments)
    twelfth = CHOSEN if given.choose else REPORTED
    rows, found = roles(qkv.load(given.model), read(given.wordnet), twelfth)
    say(json.dumps({"counted": counted(rows), "heads": rows}) if given.json else shown(rows, found))


if __name__ == "__main__":
    command(main)

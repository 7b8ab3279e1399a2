"""Measure two circuits of SmolLM2: `python -m training.two_circuits` writes the pages' numbers.

The pages are docs/indirect-objects.md and docs/agreement.md. Both tasks have pairs of a clean and a
corrupted text. The heads were chosen on the `search` pairs. Every number of the pages is measured
on the `held` pairs, which have other templates and other words. The command writes
docs/data/two-circuits.json and the findings in docs/findings/smollm2. The parts of the file can be
measured one at a time: `python -m training.two_circuits attention paths`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import qkv
from qkv import circuits
from qkv.arrays import Array
from qkv.files import replacing
from training import command

NAME = "smollm2"
DOCS = Path(__file__).resolve().parents[1] / "docs"
FILE, FINDINGS = DOCS / "data" / "two-circuits.json", DOCS / "findings" / NAME
# Each name is one token after a space.
NAMES = (
    "Mary John Tom James Anna Sarah Emily David Paul Mark Peter Lisa Laura Kate Jane Alice Susan "
    "Robert Michael Daniel Jack Sam Ben Helen Rachel Simon Karen Linda Andrew Steven Ruth Henry "
    "Charles George Martin Adam Lucy Julia Maria Frank Alex Jason Kevin Brian Scott Eric Ryan Nick "
    "Amy Emma Olivia Sophie Ellen Carol Nancy Barbara Jennifer Elizabeth William Thomas Richard "
    "Edward Joseph Matthew"
)
HALF = {"search": slice(0, 32), "held": slice(32, None)}
OBJECTS = {
    "search": [
        "When {} and {} went to the store, {} gave a drink to",
        "After {} and {} met in the park, {} handed the ball to",
        "While {} and {} were at the office, {} showed a letter to",
        "Then {} and {} had lunch together, and {} passed the salt to",
    ],
    "held": [
        "Because {} and {} worked at the school, {} sent a book to",
        "As soon as {} and {} arrived at the station, {} gave the keys to",
        "Once {} and {} sat down in the garden, {} told a story to",
        "Before {} and {} left the museum, {} offered a ticket to",
    ],
}
# The singular and the plural of each noun are one token after a space.
NOUNS = {
    "search": "key dog car boy picture letter friend teacher",
    "held": "book cat girl house student doctor song window",
}
SUBJECTS = {
    "search": ["The {} near the {}", "The {} that the {} liked", "The {} in front of the {}"],
    "held": ["The {} behind the {}", "The {} that the {} saw", "The {} on the left of the {}"],
}
EACH = 5  # the number of pairs for each template and order
ORDERS = ("ABB", "BAB")  # A is the indirect object; B is the subject, who occurs twice
LINKS = {
    "END to IO": ("END", "IO"),
    "END to S1": ("END", "S1"),
    "END to S2": ("END", "S2"),
    "S2 to S1": ("S2", "S1"),
    "S2 to S1+1": ("S2", "S1+1"),
    "S1+1 to S1": ("S1+1", "S1"),
}
# The heads of each role, chosen on the search pairs.
MOVERS, SUPPRESSOR, NEGATIVE = ("23.0", "23.1", "23.2", "23.7"), "23.3", ("24.4", "29.0")
INHIBITORS, INDUCTION, PREVIOUS, DUPLICATE = ("20.0", "19.2"), "17.4", "16.0", "8.1"
# Edges between heads: the senders, the receiver's input, its position, and the changed token.
EDGES: dict[str, tuple[tuple[str, ...], str, str, str]] = {
    "movers": (INHIBITORS, "attn.23.0.q", "END", "S2"),
    "inhibitors": ((INDUCTION, DUPLICATE), "attn.20.0.v", "S2", "S2"),
    "keys": ((PREVIOUS,), "attn.17.4.k", "S1+1", "S1"),
}
LATE = "29.1"
NAMED = {*MOVERS, SUPPRESSOR, *NEGATIVE, *INHIBITORS, INDUCTION, PREVIOUS, DUPLICATE, LATE}
# Heads that are ablated together: the heads of a role, and controls in the same layers.
VERBS = {"heads": ("26.0", "27.8"), "controls": ("26.4", "27.4")}
# Findings: a name, the text, the edits and the claim. All are held-out texts.
EMMA = "Because Emma and Brian worked at the school, Brian sent a book to"
LUCY = "Once Lucy and Frank sat down in the garden, Frank told a story to"
BOOKS = "The books behind the house"


def ablate(*heads: str) -> list[dict[str, Any]]:
    """Return the edits that set the output of heads to 0."""
    places = (map(int, head.split(".")) for head in heads)
    return [{"op": "ablate", "layer": layer, "head": head} for layer, head in places]


def mask(query: int, key: int, head: str) -> list[dict[str, Any]]:
    """Return the edit that masks one link of a head."""
    layer, number = map(int, head.split("."))
    return [{"op": "mask", "query": query, "key": key, "layer": layer, "head": number}]


CLAIMS: dict[str, tuple[str, list[dict[str, Any]], str]] = {
    "names-1-swap": (
        EMMA,
        [{"op": "swap", "token": 9, "with": "ĠEmma"}],
        "The guess is the name that occurs once: with Emma in place of the second Brian, "
        "the guess is Brian.",
    ),
    "names-2-movers": (
        LUCY,
        ablate(*MOVERS),
        "Without the four name movers, Lucy is not among the five most probable words.",
    ),
    "names-3-others-of-23": (
        LUCY,
        ablate("23.4", "23.5", "23.6", "23.8"),
        "Control: without four other heads of the same layer, Lucy stays first, with a "
        "smaller probability.",
    ),
    "names-4-suppressor": (
        EMMA,
        ablate(SUPPRESSOR),
        "Without head 23.3, Emma keeps its probability, but the wrong name, Brian, "
        "enters the five most probable words.",
    ),
    "names-5-link": (
        EMMA,
        mask(13, 9, SUPPRESSOR),
        "Masking one link of head 23.3 is enough: from the last token to the second Brian.",
    ),
    "names-6-another-of-23": (
        EMMA,
        ablate("23.5"),
        "Control: without head 23.5, Brian does not enter the five most probable words.",
    ),
    "names-7-inhibitors": (
        EMMA,
        ablate(*INHIBITORS),
        "Without the S-inhibition heads 20.0 and 19.2, Emma is not first, and Brian is "
        "among the five most probable words.",
    ),
    "names-8-others-of-19-and-20": (
        EMMA,
        ablate("19.6", "20.5"),
        "Control: without two other heads of the same layers, Emma stays first.",
    ),
    "names-9-negative": (
        EMMA,
        ablate(*NEGATIVE),
        "Without the negative heads 24.4 and 29.0, Emma is more probable than before.",
    ),
    "names-10-late": (
        EMMA,
        ablate(LATE),
        "Without head 29.1, which attends to no name, Emma stays first, with a smaller "
        "probability.",
    ),
    "names-11-induction": (
        EMMA,
        ablate("17.4", "17.5"),
        "Without the induction heads 17.4 and 17.5, Emma stays first: other heads notice "
        "the repetition too.",
    ),
    "names-12-duplicate": (
        EMMA,
        ablate(DUPLICATE),
        "Without the duplicate-token head 8.1, Emma stays first.",
    ),
    "number-1-swap": (
        BOOKS,
        [{"op": "swap", "token": 1, "with": "Ġbook"}],
        "The verb follows the subject: with “book” in place of “books”, “is” and “was” "
        "replace “are” and “were”.",
    ),
    "number-2-heads": (
        BOOKS,
        ablate("26.0", "27.8"),
        "Without heads 26.0 and 27.8, “is” and “was” replace “are” and “were”, as if the "
        "subject were singular.",
    ),
    "number-3-others": (
        BOOKS,
        ablate("26.4", "27.4"),
        "Control: without two other heads of the same layers, “are” and “were” stay "
        "among the five most probable words.",
    ),
}
SIZES = (60,)  # edges of the circuits


@dataclass(frozen=True)
class Pair:
    """A clean text, corrupted texts, the two answers, and positions of tokens.

    Attributes:
        clean: the text.
        corrupted: the corrupted texts, keyed by the name of the changed position.
        answer: the right next token.
        other: the wrong next token.
        group: the template and the order of the names.
        at: the positions of tokens, keyed by name.
    """

    clean: str
    corrupted: dict[str, str]
    answer: str
    other: str
    group: str
    at: dict[str, int]


def names_pairs(model: qkv.Model, part: str, seed: int = 0) -> list[Pair]:
    """Return pairs of sentences with an indirect object.

    In the text with a corrupted S2 (or S1), a third name replaces the second (or first) occurrence
    of the subject, so that no name occurs twice.
    """
    random, found = np.random.default_rng([seed, len(part)]), []
    names = NAMES.split()[HALF[part]]
    for template in OBJECTS[part]:
        for order in ORDERS:
            for _ in range(EACH):
                io, subject, third = random.permutation(names)[:3].tolist()

                def text(first: str, second: str, order: str = order, io: str = io) -> str:
                    given = (io, first) if order == "ABB" else (first, io)
                    return template.format(*given, second)  # noqa: B023 (used at once)

                ids = model.tokenize(text(subject, subject))
                s1, s2 = ids.positions(f" {subject}")
                at = {"IO": ids.positions(f" {io}")[0], "S1": s1, "S1+1": s1 + 1, "S2": s2}
                at["END"] = len(ids) - 1
                other = {"S2": text(subject, third), "S1": text(third, subject)}
                found.append(
                    Pair(text(subject, subject), other, f" {io}", f" {subject}", order, at)
                )
    return found


def number_pairs(model: qkv.Model, part: str, seed: int = 0) -> list[Pair]:
    """Return pairs of beginnings whose subject and last noun differ in number.

    The corrupted text has the subject in the other number; the last noun stays the same.
    """
    random, found = np.random.default_rng([seed, len(part)]), []
    nouns = NOUNS[part].split()
    for template in SUBJECTS[part]:
        for group, (end, verb, other) in {
            "singular": ("", " is", " are"),
            "plural": ("s", " are", " is"),
        }.items():
            for noun in nouns:
                last = str(random.choice([one for one in nouns if one != noun]))
                last += "" if end else "s"
                flipped = noun + ("" if end else "s")
                clean = template.format(noun + end, last)
                at = {"subject": 1, "END": len(model.tokenize(clean)) - 1}
                corrupted = {"subject": template.format(flipped, last)}
                found.append(Pair(clean, corrupted, verb, other, group, at))
    return found


@dataclass(frozen=True)
class Task:
    """Pairs of texts, in the form that the functions of `qkv.circuits` accept."""

    model: qkv.Model
    pairs: list[Pair]

    @property
    def clean(self) -> list[str]:
        """The clean texts."""
        return [pair.clean for pair in self.pairs]

    @property
    def metric(self) -> list[tuple[int, str, str]]:
        """The difference of the two answers' logits after each text."""
        return [(-1, pair.answer, pair.other) for pair in self.pairs]

    def corrupted(self, name: str) -> list[str]:
        """The texts whose token `name` is replaced."""
        return [pair.corrupted[name] for pair in self.pairs]

    def positions(self, name: str) -> dict[str, list[int]]:
        """The position `name` in each text."""
        return {name: [pair.at[name] for pair in self.pairs]}

    def gaps(self, texts: list[str], **edits: Any) -> tuple[Array, Array]:
        """Return the metric of each text, and whether the answer is the first guess."""
        trace = self.model.trace(texts, names=[], logits=True, **edits)
        ids = [[self.model.tokenize(word).ids[0] for word in of[1:]] for of in self.metric]
        last = [trace[n]["logits"][0, -1] for n in range(len(texts))]
        found = [
            (x[one] - x[two], x.argmax() == one) for x, (one, two) in zip(last, ids, strict=True)
        ]
        gaps, first = zip(*found, strict=True)
        return np.array(gaps, np.float64), np.array(first)

    def behaviour(self) -> dict[str, Any]:
        """Measure how often, and by how much, the model prefers the answer."""
        found: dict[str, Any] = {}
        texts = {"clean": self.clean}
        texts |= {name: self.corrupted(name) for name in self.pairs[0].corrupted}
        for name, some in texts.items():
            gaps, first = self.gaps(some)
            right = {"right": float((gaps > 0).mean()), "first": float(first.mean())}
            found[name] = spread(gaps) | right
            for group in sorted({pair.group for pair in self.pairs}):
                there = [pair.group == group for pair in self.pairs]
                found[name][group] = spread(gaps[there])
        return found

    def attribution(self) -> dict[str, Any]:
        """Attribute the difference of the logits, and each of the two logits, to heads and MLPs."""
        trace = self.model.trace(self.clean)
        found: dict[str, Any] = {}
        for name in ("difference", "answer", "other"):
            of: Any = self.metric
            if name != "difference":
                of = [(-1, getattr(pair, name)) for pair in self.pairs]
            parts = circuits.attribute_logits(self.model, trace, of=of)
            found[name] = table(parts["heads"].pairs)
            if name == "difference":
                found["mlp"] = table(parts["mlp"].pairs)
                found["embed"] = spread(parts["embed"].pairs)
        return found

    def attention(self, links: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
        """Measure the weights of links in all heads, with every text and its corrupted text."""
        found: dict[str, Any] = {}
        for text, some in (("clean", self.clean), ("corrupted", self.corrupted(self.changed))):
            trace = self.model.trace(some, names="pattern")
            for link, (query, key) in links.items():
                weights = [
                    [
                        trace[n]["pattern", layer][0, :, pair.at[query], pair.at[key]]
                        for layer in range(self.model.num_layers)
                    ]
                    for n, pair in enumerate(self.pairs)
                ]
                found[f"{link}, {text}"] = table(np.array(weights))
        return found

    @property
    def changed(self) -> str:
        """The position whose token the main corrupted text replaces."""
        return next(iter(self.pairs[0].corrupted))

    def ablated(self, groups: Mapping[str, Sequence[str]]) -> dict[str, Any]:
        """Measure how the metric changes if all heads of a group are ablated."""
        whole, found = self.gaps(self.clean)[0], {}
        for name, heads in groups.items():
            ablate: Any = [tuple(map(int, head.split("."))) for head in heads]
            found[name] = spread(self.gaps(self.clean, ablate=ablate)[0] - whole)
        return found

    def places(self) -> dict[str, Any]:
        """Patch the residual stream; measure where the subject matters, on a scale from 0 to 1."""
        at = {name: [pair.at[name] for pair in self.pairs] for name in ("subject", "END")}
        clean, corrupted = self.clean, self.corrupted(self.changed)
        found = circuits.patch(
            *(self.model, clean, corrupted),
            at="resid_pre",
            metric=self.metric,
            positions=at,
        )
        low, high = self.gaps(corrupted)[0], self.gaps(clean)[0]
        shares = (np.asarray(found.pairs) - low[:, None, None]).mean(0) / (high - low).mean()
        return {"positions": list(at), "share": shares.round(3).tolist(), "count": len(clean)}

    def edges(self, changed: str) -> dict[str, Any]:
        """Measure how edges between heads, and the same edges of control heads, change the metric.

        The receiver reads the sender's output, at one position, from the text with a different
        token at the position `changed`.
        """
        chosen = {name: edge for name, edge in EDGES.items() if edge[3] == changed}
        found, places = dict[str, Any](), {edge[2] for edge in chosen.values()}
        only = {
            (name, head): (f"attn.{head}@{at}", f"{receiver}@{at}")
            for name, (senders, receiver, at, _) in chosen.items()
            for sender in senders
            for head in controls(sender)
        }
        graph = circuits.edges(
            self.model,
            self.clean,
            self.corrupted(changed),
            metric=self.metric,
            positions={place: self.positions(place)[place] for place in sorted(places)},
            only=only.values(),
        )
        for (name, head), edge in only.items():
            scores = [one.score(*edge) for one in graph.pairs]
            found.setdefault(name, {})[head] = spread(scores)
        return found

    def circuit(self, held: Task, size: int) -> dict[str, Any]:
        """Find a circuit, and measure its faithfulness on the held-out pairs."""
        graph = circuits.discover(
            self.model,
            self.clean,
            self.corrupted(self.changed),
            metric=self.metric,
            method="eap-ig",
            edges=size,
            held_out=(held.clean, held.corrupted(held.changed), held.metric),
        )
        kept: Any = graph.faithfulness
        return {
            "nodes": graph.nodes,
            "edges": [[*edge[:2], round(edge.score, 4)] for edge in graph.edges],
            "method": graph.method,
            "correlation": graph.correlation,
            "faithfulness": float(kept),
            "each": [round(float(one), 3) for one in kept.pairs],
        }


def spread(values: Any) -> dict[str, Any]:
    """Return the mean, the standard deviation and the number of some values.

    >>> spread([1.0, 3.0])
    {'mean': 2.0, 'sd': 1.0, 'count': 2}
    """
    array = np.asarray(values, np.float64)
    return {
        "mean": round(float(array.mean()), 4),
        "sd": round(float(array.std()), 4),
        "count": len(array),
    }


def table(values: Any) -> dict[str, Any]:
    """Return the means and standard deviations over the first axis, and its length."""
    array = np.asarray(values, np.float64)
    return {
        "mean": array.mean(0).round(3).tolist(),
        "sd": array.std(0).round(3).tolist(),
        "count": len(array),
    }


def leaders(tables: Mapping[str, Any], count: int = 8) -> dict[str, list[tuple[str, float]]]:
    """Return the heads with the largest absolute means in each table (layers, heads).

    >>> leaders({"share": {"mean": [[0.1, -0.3], [0.2, 0.0]]}}, 2)
    {'share': [('0.1', -0.3), ('1.0', 0.2)]}
    """
    found = {}
    for name, one in tables.items():
        means = np.asarray(one["mean"])
        if means.ndim == 2:
            order = np.argsort(-np.abs(means), axis=None)[:count]
            places = [tuple(map(int, np.unravel_index(at, means.shape))) for at in order]
            found[name] = [(f"{row}.{column}", float(means[row, column])) for row, column in places]
    return found


def controls(head: str) -> list[str]:
    """Return the head, and two other heads of its layer that have no role."""
    layer, number = map(int, head.split("."))
    others = [f"{layer}.{(number + step) % 9}" for step in range(1, 9)]
    return [head, *[one for one in others if one not in NAMED][:2]]


def tasks(model: qkv.Model) -> dict[str, dict[str, Task]]:
    """Return the search pairs and the held-out pairs of both tasks."""
    made = {"names": names_pairs, "number": number_pairs}
    return {
        name: {part: Task(model, pairs(model, part)) for part in HALF}
        for name, pairs in made.items()
    }


SUBJECT_LINKS = {"END to subject": ("END", "subject")}


def measures(model: qkv.Model) -> dict[str, Callable[[], Any]]:
    """Return a function for each part of the file."""
    every = tasks(model)
    names, number = every["names"], every["number"]
    half, half_held = (Task(model, names[part].pairs[::2]) for part in ("search", "held"))
    return {
        "model": lambda: {"name": NAME, "sha256": model.sha256},
        "texts": lambda: {
            **{
                f"{task}, {part}": len(one.pairs)
                for task in every
                for part, one in every[task].items()
            },
            "circuits": len(half.pairs),
            "edges": len(half_held.pairs),
        },
        "names behaviour": names["held"].behaviour,
        "names attribution": names["held"].attribution,
        "names attribution, search": lambda: leaders(names["search"].attribution()),
        "names attention": lambda: names["held"].attention(LINKS),
        "names attention, search": lambda: leaders(names["search"].attention(LINKS)),
        "repeated": lambda: repeated(model),
        "names edges": lambda: half_held.edges("S2") | half_held.edges("S1"),
        **{f"circuit {size}": partial(half.circuit, names["held"], size) for size in SIZES},
        "number behaviour": number["held"].behaviour,
        "number attribution": number["held"].attribution,
        "number attribution, search": lambda: leaders(number["search"].attribution()),
        "number attention": lambda: number["held"].attention(SUBJECT_LINKS),
        "number attention, search": lambda: leaders(number["search"].attention(SUBJECT_LINKS)),
        "findings": partial(findings, model),
        "number ablated": lambda: number["held"].ablated(VERBS),
        "number positions": Task(model, number["held"].pairs[::4]).places,
    }


def repeated(model: qkv.Model, count: int = 10) -> dict[str, Any]:
    """Measure all heads on texts in which a sequence of random tokens occurs twice."""
    half = np.random.default_rng(0).integers(1000, 40000, (count, 20))
    names = ["previous", "same", "induction"]
    scores = circuits.head_scores(model, list(np.concatenate([half, half], 1)), names)
    return {name: np.round(scores[name], 3).tolist() for name in names}


def findings(model: qkv.Model) -> list[str]:
    """Measure and save all findings; return their names."""
    FINDINGS.mkdir(exist_ok=True)
    for name, (text, edits, claim) in CLAIMS.items():
        qkv.finding(model, text, edit=edits, claim=claim).save(FINDINGS / f"{name}.json")
    return [*CLAIMS]


def main() -> None:
    """Measure all parts, or the named parts, and write the file after each part."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("part", nargs="*", help="the parts of the file to measure (default: all)")
    chosen = parser.parse_args().part
    model = qkv.load(NAME)
    parts = measures(model)
    for name in chosen or parts:
        kept = json.loads(FILE.read_bytes()) if FILE.is_file() else {}
        found = {one: kept[one] for one in parts if one in kept} | {name: parts[name]()}
        lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in found.items()]
        with replacing(FILE) as file:
            file.write(("{\n" + ",\n".join(lines) + "\n}\n").encode())
        print(name, flush=True)


if __name__ == "__main__":
    command(main)

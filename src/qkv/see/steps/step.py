"""One step of a walk, its rows of steps.json, and the walk that collects steps."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.see.steps.sums import Op, spell
from qkv.trace import Trace

# `rows`: each step by what Python and the page call it. `op` says how a number of it is made, as
# sums.py reads it; `columns` what their number is called, nothing where they are keys. `phrases`:
# what notes and titles are made of. {x} is a placeholder; one that stands alone keeps its type.
_DATA = json.loads(files("qkv.see.steps").joinpath("steps.json").read_text("utf-8"))
ROWS: Mapping[str, Mapping[str, Any]] = _DATA["rows"]
PHRASES: Mapping[str, str] = _DATA["phrases"]


def fill(text: Any, given: Mapping[str, Any]) -> Any:
    """Put what is given in the place of the placeholders of a row or of a part of it.

    >>> fill({"of": "{x}", "rows": ["{place}"]}, {"x": "Q", "place": 3})
    {'of': 'Q', 'rows': [3]}
    """
    if isinstance(text, Mapping):
        return {name: fill(part, given) for name, part in text.items()}
    if isinstance(text, list):
        return [fill(part, given) for part in text]
    if not isinstance(text, str):
        return text
    if alone := re.fullmatch(r"\{(\w+)\}", text):
        return given[alone[1]]
    return re.sub(r"\{(\w+)\}", lambda found: str(given[found[1]]), text)


def phrase(name: str, **given: Any) -> str:
    """One of the phrases, filled.

    >>> phrase("head", head=3)
    'head 3'
    """
    return str(fill(PHRASES[name], given))


def biased(bias: str | None) -> dict[str, Any]:
    """The placeholders of a bias: its name, and how a line adds it.

    >>> biased("b_O")
    {'bias': 'b_O', 'plus': ' + b_O'}
    """
    return {"bias": bias, "plus": f" + {bias}" if bias else ""}


FEW = 8  # hidden units, and words, that are shown of all


@dataclass(frozen=True, eq=False)
class Step:
    """One step.

    Attributes:
        title: what it is.
        formula: how a paper writes it.
        shape: of the result, by name: "(T=8, d=32)".
        code: its NumPy lines.
        name: what the lines call the result.
        values: the result, `(n, m)`.
        op: how a number of it is made, as `qkv.see.steps.sums` reads it.
        rows: what the rows stand for: the tokens that ask, or those that are looked at.
        side: which of the two, "queries" or "keys"; "place" where the one row is that of the
            query of the walk.
        columns: what the columns stand for, where they are tokens too.
        shown: where only a few columns are worth showing, those, and what each is called.
        weights: whether they are weights, to be shaded.
        hidden: `(n, m)` bool, the places that a mask hides.
        cell: the place whose sum is spelled out.
        sum: that sum; `Walk.spell` gives that of any other place.
        note: what else there is to say.
    """

    title: str
    formula: str
    shape: str
    code: str
    name: str
    values: Array
    op: Op
    rows: list[str]
    side: str = "queries"
    columns: list[str] | None = None
    shown: dict[int, str] | None = None
    weights: bool = False
    hidden: Array | None = None
    cell: tuple[int, int] | None = None
    sum: str = ""
    note: str = ""

    @property
    def few(self) -> Array:
        """The values of the columns that are shown."""
        return self.values if self.shown is None else self.values[:, list(self.shown)]

    @property
    def names(self) -> list[str] | None:
        """What these columns are called; None for their numbers."""
        return self.columns if self.shown is None else list(self.shown.values())


@dataclass(eq=False)
class Walk:
    """All steps of one head as they are written down, and the model's own numbers beside them.

    Attributes:
        trace: of the text, or of the layer.
        layer: the layer.
        head: the head.
        tokens: what the queries belong to.
        keys: what the keys belong to: the tokens again, unless another text is looked at.
        cell: the query and the key whose sums are spelled out.
        steps: in order.
        arrays: what the steps give and what they are made of, by name; of weights and biases of
            the projections the columns of this head.
        given: what the lines start from, by name: running `step.code` one after the other on these
            gives the steps' values.
        compared: the numbers of the steps that the model has an array of its own for, what that
            is called, and the array.
        words: the likeliest words where the walk ends at them, and the model's own chances.
        next_word: whether they are those that follow the place, not those that stand at it.
    """

    trace: Trace
    layer: int
    head: int
    tokens: list[str]
    keys: list[str]
    cell: tuple[int, int]
    steps: list[Step] = field(default_factory=list)
    arrays: dict[str, Array] = field(default_factory=dict)
    given: dict[str, Any] = field(default_factory=lambda: {"np": np})
    compared: list[tuple[int, str, Array]] = field(default_factory=list)
    words: list[tuple[str, float]] = field(default_factory=list)
    next_word: bool = False

    def __post_init__(self) -> None:
        self.same = self.keys is self.tokens
        names = [("T", self.tokens)] if self.same else [("L", self.tokens), ("S", self.keys)]
        self.given |= {"trace": self.trace} | {name: len(rows) for name, rows in names}

    @property
    def known(self) -> dict[str, Any]:
        """What the next line may read, by name: what is given, and what steps gave so far."""
        return self.given | {step.name: step.values for step in self.steps}

    @property
    def place(self) -> int:
        """The token whose word the walk goes on to: the query of the sums."""
        return self.cell[0]

    @property
    def own_name(self) -> str:
        """What the last of the model's own numbers are called that a step is held against."""
        return self.compared[-1][1]

    @property
    def own(self) -> Array:
        """These numbers, `(n, m)`."""
        return self.compared[-1][2]

    @property
    def last_compared(self) -> Step:
        """The step that they are held against."""
        return self.steps[self.compared[-1][0]]

    @property
    def recomputed(self) -> Array:
        """The same from the steps."""
        return self.last_compared.values

    @property
    def difference(self) -> float:
        """The largest difference between numbers of the model's own and the recomputed ones."""
        apart = [np.abs(own - self.steps[k].values).max() for k, _, own in self.compared]
        return float(np.max(apart))

    @property
    def likeliest(self) -> str:
        """The likeliest word, in words; nothing where the walk does not come so far."""
        if not self.words:
            return ""
        (word, chance), token = self.words[0], self.tokens[self.place]
        where = f"after {token}" if self.next_word else f"at {token}"
        return f"The likeliest word {where} is {word}, {chance:.2f}."

    def compare(self, name: str, own: Array | None = None) -> None:
        """Hold the last step against the model's own numbers, those of the trace unless given."""
        if own is None and name in self.trace:
            own = np.array(self.trace[name][0]).reshape(len(self.tokens), -1)
        if own is not None:
            self.compared.append((len(self.steps) - 1, name, own))

    def end(self, said: str) -> None:
        """Say with the last step why the walk ends there."""
        self._note(-1, said)

    def _note(self, k: int, said: str) -> None:
        """Say more with a step."""
        note = "; ".join(filter(None, [self.steps[k].note, said]))
        self.steps[k] = replace(self.steps[k], note=note)

    def show_units(self, steps: Sequence[int], name: str) -> list[int] | None:
        """Show of the hidden units, the columns of these steps, the largest at the place.

        They are largest in the step called `name`; gives them, the largest first, None for all.
        """
        row = self.arrays[name][self.place]
        if len(row) <= FEW:
            return None
        few: list[int] = np.argsort(-np.abs(row), kind="stable")[:FEW].tolist()
        for k in steps:
            step = replace(self.steps[k], shown={unit: str(unit) for unit in few})
            cell = step.cell and (self.place, few[0])
            self.steps[k] = replace(step, cell=cell, sum=self.spell(step, cell) if cell else "")
        token = self.tokens[self.place]
        self._note(steps[0], phrase("units", units=FEW, count=len(row), token=token))
        return few

    def spell(self, step: Step, place: tuple[int, int], most: int = 3) -> str:
        """What the number at any place of a step is made of; `most` terms are written out."""
        return spell(step.name, step.op, place, self.arrays, step.rows, _called(step), most)

    def count(self, side: str) -> str:
        """What the number of rows is called."""
        return "T" if self.same else "L" if side == "queries" else "S"

    def write(
        self,
        row: str,
        *,
        cell: tuple[int, int] | None = None,
        shown: dict[int, str] | None = None,
        hidden: Array | None = None,
        **given: Any,
    ) -> Array:
        """Write down a step as its row has it, and run its lines.

        Args:
            row: its name in steps.json.
            cell: the place whose sum is spelled out.
            shown: as a `Step` has it.
            hidden: as a `Step` has it.
            given: what stands in the place of the row's placeholders.
        """
        made = fill(ROWS[row], given)
        name, side, columns = made["name"], made["side"], made.pop("columns")
        known = self.known
        exec(made["code"], known)  # our own code: only names and numbers are filled in
        values = self.arrays[name] = np.asarray(known[name])
        n, m = values.shape
        count = "" if side == "place" else f"{self.count(side)}="
        made["shape"] = f"({count}{n}, {columns or self.count('keys')}={m})"
        made["rows"] = {"queries": self.tokens, "keys": self.keys}.get(
            side, [self.tokens[self.place]]
        )
        step = Step(
            values=values, columns=None if columns else self.keys, cell=cell, shown=shown,
            hidden=hidden, **made,
        )  # fmt: skip
        self.steps.append(replace(step, sum=self.spell(step, cell) if cell else ""))
        return values


def _called(step: Step) -> Sequence[str] | Mapping[int, str] | None:
    """What the columns of a step are called in its sums."""
    return step.columns if step.shown is None else step.shown


def linear_step(walk: Walk, row: str, parameters: Mapping[str, Array], **others: Any) -> Array:
    """A linear layer, `parameters` its "weight" and "bias"; `others` are those of `Walk.write`."""
    weight = ROWS[row]["op"]["right"]
    bias = weight.replace("W", "b", 1) if "bias" in parameters else None
    learned = {weight: parameters["weight"]} | ({bias: parameters["bias"]} if bias else {})
    walk.given |= learned
    walk.arrays |= learned
    return walk.write(row, **biased(bias), **others)


def norm_step(
    walk: Walk,
    of: str,
    name: str,
    parameters: Mapping[str, Array],
    eps: float,
    rms: bool = False,
    side: str = "queries",
    cell: tuple[int, int] | None = None,
) -> str:
    """Each vector of an array normed: LayerNorm, or RMSNorm; gives the name of the result."""
    mark = "" if "gain" not in walk.arrays else f"_{name}"  # a second norm has numbers of its own
    gain, least = f"gain{mark}", f"eps{mark}"
    shift = f"shift{mark}" if "bias" in parameters else None
    learned = {gain: parameters["weight"]} | ({shift: parameters["bias"]} if shift else {})
    walk.given |= learned | {least: float(eps)}
    walk.arrays |= learned
    walk.write(
        "rms norm" if rms else "norm", of=of, name=name, gain=gain, least=least, eps=float(eps),
        **biased(shift), note=PHRASES.get(name, ""), side=side, cell=cell,
    )  # fmt: skip
    return name

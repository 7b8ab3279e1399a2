"""The steps of a walk (see steps.json), and the sum behind one number of a step."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import Any

import numpy as np

from qkv.arrays import Array, Arrays
from qkv.see.analysis import labels_of, name_of
from qkv.trace import Trace

Op = dict[str, Any]


def spell(
    name: str,
    op: Op,
    cell: tuple[int, int],
    arrays: Arrays,
    rows: Sequence[str],
    columns: Sequence[str] | Mapping[int, str] | None = None,
    most: int = 3,
) -> str:
    """Write out how the number in one cell of the array `name` is computed.

    Args:
        name: the name of the array.
        op: how the array is computed, in the format that `_spell_cell` reads.
        cell: the row and column of the cell.
        arrays: the array and its inputs, keyed by name.
        rows: names for the rows.
        columns: names for the columns; by default the column's index.
        most: the maximum number of terms of a sum to write out. If a sum has more terms, only the
            largest terms are written out.

    >>> arrays = {"A": np.array([[1.0, 2.0]]), "B": np.array([[3.0], [4.0]])}
    >>> arrays["C"] = arrays["A"] @ arrays["B"]
    >>> op = {"kind": "product", "left": "A", "right": "B", "bias": None, "flip": False}
    >>> spell("C", op, (0, 0), arrays, ["cat"])
    'C[cat, 0] = 1.000*3.000 + 2.000*4.000 = 11.000'
    """
    i, j = cell
    called = dict(columns if isinstance(columns, Mapping) else enumerate(columns or ()))
    where = f"{name}[{rows[i]}, {called.get(j, j)}]"
    value = _number(arrays[name][i, j])
    made = _spell_cell(op, i, j, arrays, most)
    return f"{where} = {made} = {value}" if made else f"{where} = {value}"


def _spell_cell(op: Op, i: int, j: int, arrays: Arrays, most: int) -> str:
    """Write out how the number in row i and column j is computed; return "" for an input."""

    def at(name: str) -> str:
        return _number(arrays[name][i, j])

    match op:
        case {"kind": "given"}:
            return ""
        case {"kind": "row", "of": table, "rows": rows}:
            return f"{table}[{rows[i]}, {j}]"
        case {"kind": "wave", "dim": size}:
            even, wave = j - j % 2, "cos" if j % 2 else "sin"
            angle = _number(i / 10000 ** (even / size))
            return f"{wave}({i} / 10000^({even}/{size})) = {wave}({angle})"
        case {"kind": "sum", "terms": terms}:
            parts = ((name, np.atleast_2d(arrays[name])) for name in terms)
            return " + ".join(f"{name} {_number(x[i % len(x), j])}" for name, x in parts)
        case {"kind": "norm", "of": name, "gain": gain}:
            shift = f" + {_number(arrays[op['shift']][j])}" if op["shift"] else ""
            return f"{_spell_norm(op, arrays[name][i], j)} * {_number(arrays[gain][j])}{shift}"
        case {"kind": "product"}:
            return _product(op, i, j, arrays, most)
        case {"kind": "rotated", "of": name}:
            return _spell_rotation(op, arrays[name][i], i, j)
        case {"kind": "scaled", "of": name, "by": by}:
            return f"{at(name)} {by}"
        case {"kind": "masked", "name": masked, "of": name, "added": added}:
            if np.isneginf(arrays[masked][i, j]):
                return "hidden"
            return f"{name} {at(name)}" + (f" + {added} {at(added)}" if added else "")
        case {"kind": "softmax", "of": name}:
            return _softmax(arrays[name][i], j)
        case {"kind": "activation", "of": name, "sum": written}:
            x = float(arrays[name][i, j])
            return str(written).replace("[-x]", _number(-x)).replace("[x]", _number(x))
        case {"kind": "times", "left": left, "right": right}:
            return f"{left} {at(left)} * {right} {at(right)}"
        case {"kind": "capped", "of": name, "cap": cap}:
            return f"{_number(cap)} * tanh({at(name)} / {_number(cap)})"
        case {"kind": "joined", "width": width}:
            return f"context of head {j // width}, column {j % width}"
    raise KeyError(op["kind"])


def _spell_norm(op: Op, x: Array, j: int) -> str:
    """Write out one number of a LayerNorm's or RMSNorm's result; RMSNorm subtracts no mean."""
    row = x.astype(np.float64)
    mean = 0.0 if op["rms"] else float(row.mean())
    size = math.sqrt(float(((row - mean) ** 2).mean()) + op["eps"])
    top = _number(row[j]) if op["rms"] else f"({_number(row[j])} - {_number(mean)})"
    return f"{top} / {_number(size)}"


def _product(op: Op, i: int, j: int, arrays: Arrays, most: int) -> str:
    """Write out a row of the left matrix times a column of the right matrix.

    If `flip` is true, the right matrix is transposed before it is multiplied.
    """
    left, right = arrays[op["left"]][i], arrays[op["right"]]
    other = right[j] if op["flip"] else right[:, j]
    n = len(left)
    products = left.astype(np.float64) * other.astype(np.float64)
    indices = list(op.get("terms") or range(n))
    if n > most + 1:  # largest first
        best = op.get("terms") or np.argsort(-np.abs(products), kind="stable").tolist()
        indices = best[:most]
    terms = [f"{_number(left[k])}*{_number(other[k])}" for k in indices]
    if len(indices) < n:
        rest = float(np.delete(products, indices).sum())
        terms.append(f"… ({n - len(indices)} more: {_number(rest)})")
    if op["bias"]:
        terms.append(f"bias {_number(arrays[op['bias']][j])}")
    return " + ".join(terms)


def _spell_rotation(op: Op, row: Array, i: int, j: int) -> str:
    """Write out how rotary positions compute one number of a rotated pair."""
    dims = op["dims"]
    if j >= dims:
        return f"{op['of']} {_number(row[j])}, not rotated"
    half = dims // 2
    pair = j // 2 if op["interleaved"] else j % half
    a, b = (2 * pair, 2 * pair + 1) if op["interleaved"] else (pair, pair + half)
    angle = _number(op["positions"][i] * op["base"] ** (-2 * pair / dims))
    cos, sin, sign = ("cos", "sin", "-") if j == a else ("sin", "cos", "+")
    return f"{_number(row[a])}*{cos}({angle}) {sign} {_number(row[b])}*{sin}({angle})"


def _softmax(scores: Array, j: int) -> str:
    """Write out a softmax: the exponential of a score, divided by the row's sum of exponentials."""
    row = scores.astype(np.float64)
    top = float(row.max())
    if not np.isfinite(row[j]):
        return "hidden"
    powers = np.exp(row - top)
    whole = _number(powers.sum())
    return f"exp({_number(row[j])} - {_number(top)}) / {whole} = {_number(powers[j])} / {whole}"


def _number(x: Any) -> str:
    """Write a number with three decimals.

    >>> _number(0.12345), _number(float("-inf"))
    ('0.123', '-∞')
    """
    return "-∞" if float(x) == -math.inf else f"{float(x):.3f}"


# The contents of steps.json. `rows` contains the steps, keyed by the names that Python and the page
# use. In the row of a step, `op` describes how each number of the step is computed: `_spell_cell`.
# `columns` is the letter that stands for the number of columns; it is empty if the columns are
# keys. `phrases` contains parts of notes and titles. {x} is a placeholder. A text that is only a
# placeholder becomes the placeholder's value, which may have any type.
_DATA = json.loads(files("qkv.see.steps").joinpath("steps.json").read_text("utf-8"))
ROWS: Mapping[str, Mapping[str, Any]] = _DATA["rows"]
PHRASES: Mapping[str, str] = _DATA["phrases"]
# The activation functions that a walk and a page can compute. `op.sum` of such a row writes out one
# number: [x] stands for the number, and [-x] for its negative.
ACTIVATION_ROWS = tuple(name for name, row in ROWS.items() if row["op"]["kind"] == "activation")


def fill(text: Any, values: Mapping[str, Any]) -> Any:
    """Replace placeholders with values in a row of steps.json, or in a part of a row.

    >>> fill({"of": "{x}", "rows": ["{position}"]}, {"x": "Q", "position": 3})
    {'of': 'Q', 'rows': [3]}
    """
    if isinstance(text, Mapping):
        return {name: fill(part, values) for name, part in text.items()}
    if isinstance(text, list):
        return [fill(part, values) for part in text]
    if not isinstance(text, str):
        return text
    if alone := re.fullmatch(r"\{(\w+)\}", text):
        return values[alone[1]]
    return re.sub(r"\{(\w+)\}", lambda field: str(values[field[1]]), text)


def phrase(name: str, **values: Any) -> str:
    """Return one of the phrases with its placeholders replaced.

    >>> phrase("head", head=3)
    'head 3'
    """
    return str(fill(PHRASES[name], values))


def bias_of(bias: str | None) -> dict[str, Any]:
    """Return the values for the placeholders {bias} and {plus}: a bias, and the code that adds it.

    >>> bias_of("b_O")
    {'bias': 'b_O', 'plus': ' + b_O'}
    """
    return {"bias": bias, "plus": f" + {bias}" if bias else ""}


FEW = 8  # the maximum number of hidden units in a walk, and also the maximum number of words


@dataclass(frozen=True, eq=False)
class Step:
    """One step of a walk.

    Attributes:
        title: the name of the step.
        formula: the formula in mathematical notation.
        shape: the shape of the result with named axes, for example "(T=8, d=32)".
        code: the step's lines of NumPy.
        name: the name of the result in `code`.
        values: the result, `(n, m)`.
        op: how each number is computed, in the format that `_spell_cell` reads.
        rows: names for the rows, which are the tokens of the queries or of the keys.
        side: "queries" if the rows are queries, "keys" if the rows are keys, or "position" if there
            is only one row, which belongs to the walk's query.
        columns: names for the columns, if the columns are tokens.
        shown: the shown columns and their names, if some columns are left out.
        weights: whether the numbers are weights, which are shaded.
        hidden: `(n, m)` bool, the masked cells.
        cell: the row and column of the number whose sum is written out.
        sum: the written-out sum of `cell`; `Walk.spell` writes out the sums of other cells.
        note: a note, or an empty string.
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
        """Return the values of the shown columns."""
        return self.values if self.shown is None else self.values[:, list(self.shown)]

    @property
    def names(self) -> list[str] | None:
        """Return the names of the shown columns; None if the columns have no names."""
        return self.columns if self.shown is None else list(self.shown.values())


@dataclass(eq=False)
class Walk:
    """All steps of one head, and the model's own numbers to compare them with.

    Attributes:
        trace: the trace of the text, or of a single layer.
        layer: the layer.
        head: the head.
        tokens: names for the queries.
        keys: names for the keys, which are `tokens` unless the head attends to another text.
        cell: the positions of the query and the key whose sums are written out.
        steps: the steps, in order.
        arrays: the results and inputs of the steps, keyed by name; the weights of projections have
            only this head's columns.
        inputs: the inputs of the code, keyed by name. Running each `step.code` in order on these
            inputs computes the values of the steps.
        compared: `(index of the step, name of the model's array, the array)` for each step that is
            compared with the model.
        words: the likeliest words at the walk's end, with the model's own probabilities.
        next_word: whether `words` are guesses for the position after the query.
    """

    trace: Trace
    layer: int
    head: int
    tokens: list[str]
    keys: list[str]
    cell: tuple[int, int]
    steps: list[Step] = field(default_factory=list)
    arrays: dict[str, Array] = field(default_factory=dict)
    inputs: dict[str, Any] = field(default_factory=lambda: {"np": np})
    compared: list[tuple[int, str, Array]] = field(default_factory=list)
    words: list[tuple[str, float]] = field(default_factory=list)
    next_word: bool = False

    def __post_init__(self) -> None:
        self.same = self.keys is self.tokens
        names = [("T", self.tokens)] if self.same else [("L", self.tokens), ("S", self.keys)]
        self.inputs |= {"trace": self.trace} | {name: len(rows) for name, rows in names}

    @property
    def known(self) -> dict[str, Any]:
        """Return all inputs and results so far, keyed by name, for the code of the next step."""
        return self.inputs | {step.name: step.values for step in self.steps}

    @property
    def position(self) -> int:
        """Return the query for which the walk writes out sums and predicts words."""
        return self.cell[0]

    @property
    def own_name(self) -> str:
        """Return the name of the model's array that the walk compared last."""
        return self.compared[-1][1]

    @property
    def own(self) -> Array:
        """Return the model's array `(n, m)` that the walk compared last."""
        return self.compared[-1][2]

    @property
    def last_compared(self) -> Step:
        """Return the last step that is compared with the model."""
        return self.steps[self.compared[-1][0]]

    @property
    def recomputed(self) -> Array:
        """Return the values that the walk computed for the last compared step."""
        return self.last_compared.values

    @property
    def difference(self) -> float:
        """Return the largest difference between the model's numbers and the recomputed numbers."""
        apart = [np.abs(array - self.steps[k].values).max() for k, _, array in self.compared]
        return float(np.max(apart))

    @property
    def likeliest(self) -> str:
        """Return a sentence that names the likeliest word, or "" if the walk has no words."""
        if not self.words:
            return ""
        (word, probability), token = self.words[0], name_of(self.trace.tokens[self.position])
        where = f"after {token}" if self.next_word else f"at {token}"
        return f"The likeliest word {where} is {word}, {probability:.2f}."

    def compare(self, name: str, array: Array | None = None) -> None:
        """Compare the last step with `array`, by default with the trace's array `name`."""
        if array is None and name in self.trace:
            array = np.array(self.trace[name][0]).reshape(len(self.tokens), -1)
        if array is not None:
            self.compared.append((len(self.steps) - 1, name, array))

    def end(self, reason: str) -> None:
        """Add to the last step a note that says why the walk ends."""
        self._note(-1, reason)

    def _note(self, k: int, words: str) -> None:
        """Add a note to a step."""
        note = "; ".join(filter(None, [self.steps[k].note, words]))
        self.steps[k] = replace(self.steps[k], note=note)

    def show_units(self, steps: Sequence[int], name: str) -> list[int] | None:
        """Show only the largest hidden units (columns) of these steps.

        The array `arrays[name]` has a number for each unit and position. The units are ranked by
        the absolute values of their numbers at the walk's position. The function returns the shown
        units, largest first, or None if all units are shown.
        """
        row = self.arrays[name][self.position]
        if len(row) <= FEW:
            return None
        few: list[int] = np.argsort(-np.abs(row), kind="stable")[:FEW].tolist()
        for k in steps:
            step = replace(self.steps[k], shown={unit: str(unit) for unit in few})
            cell = step.cell and (self.position, few[0])
            self.steps[k] = replace(step, cell=cell, sum=self.spell(step, cell) if cell else "")
        token = name_of(self.trace.tokens[self.position])
        self._note(steps[0], phrase("units", units=FEW, count=len(row), token=token))
        return few

    def spell(self, step: Step, cell: tuple[int, int], most: int = 3) -> str:
        """Write out the sum behind the number in a cell of a step, with up to `most` terms."""
        columns = step.columns if step.shown is None else step.shown
        return spell(step.name, step.op, cell, self.arrays, step.rows, columns, most)

    def count(self, side: str) -> str:
        """Return the letter that stands for the number of queries or keys: "T", "L" or "S"."""
        return "T" if self.same else "L" if side == "queries" else "S"

    def write(
        self,
        row: str,
        *,
        cell: tuple[int, int] | None = None,
        shown: dict[int, str] | None = None,
        hidden: Array | None = None,
        **fields: Any,
    ) -> Array:
        """Add a step from its row in steps.json, and run the step's code.

        Args:
            row: the name of the row in steps.json.
            cell: the cell whose sum is written out.
            shown: `Step.shown`.
            hidden: `Step.hidden`.
            fields: values for the row's placeholders.
        """
        made = fill(ROWS[row], fields)
        name, side, columns = made["name"], made["side"], made.pop("columns")
        known = self.known
        # safe: the code comes from steps.json; only names and numbers are inserted
        exec(made["code"], known)
        values = self.arrays[name] = np.asarray(known[name])
        n, m = values.shape
        count = "" if side == "position" else f"{self.count(side)}="
        made["shape"] = f"({count}{n}, {columns or self.count('keys')}={m})"
        sides = {"queries": self.tokens, "keys": self.keys}
        made["rows"] = labels_of(sides.get(side, [self.tokens[self.position]]))
        step = Step(
            values=values, columns=None if columns else labels_of(self.keys), cell=cell,
            shown=shown, hidden=hidden, **made,
        )  # fmt: skip
        self.steps.append(replace(step, sum=self.spell(step, cell) if cell else ""))
        return values


def linear_step(walk: Walk, row: str, parameters: Arrays, **others: Any) -> Array:
    """Add the step of a linear layer; `others` are arguments for `Walk.write`."""
    weight = ROWS[row]["op"]["right"]
    bias = weight.replace("W", "b", 1) if "bias" in parameters else None
    learned = {weight: parameters["weight"]} | ({bias: parameters["bias"]} if bias else {})
    walk.inputs |= learned
    walk.arrays |= learned
    return walk.write(row, **bias_of(bias), **others)

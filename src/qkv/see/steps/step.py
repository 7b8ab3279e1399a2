"""The steps of one head as they are written down: title, formula, NumPy line, numbers, sum."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.attend import softmax
from qkv.see.analysis.words import went_without
from qkv.see.steps.attention_inputs import AttentionInputs
from qkv.see.steps.sums import Op, product, spell
from qkv.trace import Trace

FEW = 8  # hidden units, and words, that are shown of all

_TITLES = {
    "q": "Queries: what each token asks for",
    "k": "Keys: what each token offers",
    "v": "Values: what each token gives",
}


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
        self.given |= {name: len(rows) for name, rows in names}

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
        last = self.steps[-1]
        self.steps[-1] = replace(last, note="; ".join(filter(None, [last.note, said])))

    def spell(self, step: Step, place: tuple[int, int], most: int = 3) -> str:
        """What the number at any place of a step is made of; `most` terms are written out."""
        return spell(step.name, step.op, place, self.arrays, step.rows, _called(step), most)

    def count(self, side: str) -> str:
        """What the number of rows is called."""
        return "T" if self.same else "L" if side == "queries" else "S"

    def write(
        self,
        title: str,
        formula: str,
        code: str,
        name: str,
        values: Array,
        op: Op,
        columns: str = "",
        *,
        side: str = "queries",
        cell: tuple[int, int] | None = None,
        **others: Any,
    ) -> Array:
        """Write a step down; `columns` says what their number is called, "d"; else they are keys.

        `others` are what else a `Step` has: its `note`, what is `shown` of it, and whether it has
        `weights` or `hidden`.
        """
        self.arrays[name] = values
        rows = {"queries": self.tokens, "keys": self.keys}.get(side, [self.tokens[self.place]])
        headings = None if columns else self.keys
        n, m = values.shape
        count = "" if side == "place" else f"{self.count(side)}="
        shape = f"({count}{n}, {columns or self.count('keys')}={m})"
        others |= {"side": side, "columns": headings, "cell": cell}
        step = Step(title, formula, shape, code, name, values, op, rows, **others)
        total = self.spell(step, cell) if cell else ""
        self.steps.append(replace(step, sum=total))
        return values

    def write_given(
        self, title: str, name: str, source: str, values: Array, columns: str, **others: Any
    ) -> Array:
        """Write down what is not computed here, but read from `source`."""
        code = f"{name} = {source}"
        return self.write(title, name, code, name, values, {"kind": "given"}, columns, **others)


def _called(step: Step) -> Sequence[str] | Mapping[int, str] | None:
    """What the columns of a step are called in its sums."""
    return step.columns if step.shown is None else step.shown


def linear_step(
    walk: Walk, title: str, x: str, name: str, letter: str, parameters: Mapping[str, Array],
    columns: str, **others: Any,
) -> Array:  # fmt: skip
    """A linear layer, `parameters` its "weight" and "bias"; `others` are those of `Walk.write`.

    Its weight is called W_ and the letter, its bias b_ and the letter.
    """
    terms = others.pop("terms", None)
    weight, bias = f"W_{letter}", f"b_{letter}" if "bias" in parameters else None
    learned = {weight: parameters["weight"]} | ({bias: parameters["bias"]} if bias else {})
    walk.given |= learned
    walk.arrays |= learned
    plus = f" + {bias}" if bias else ""
    values = walk.arrays[x] @ learned[weight] + (learned[bias] if bias else 0)
    op = product(x, weight, bias) | (
        {} if terms is None else {"terms": terms, "name": name, "count": len(learned[weight])}
    )
    return walk.write(
        title, f"{name} = {x}·{weight}{plus}", f"{name} = {x} @ {weight}{plus}", name,
        np.asarray(values), op, columns, **others,
    )  # fmt: skip


def projection_steps(walk: Walk, at: AttentionInputs) -> None:
    """The three projections, the sum in one row spelled out."""
    for name, title in _TITLES.items():
        letter, side = name.upper(), "queries" if name == "q" else "keys"
        values, own = at.one(name, walk.head), at.of(name, walk.head)
        size = "dv" if name == "v" else "d"
        whose, first = "", own * at.shared
        if name != "q" and at.shared > 1:
            whose = f"key head {own}, which heads {first} to {first + at.shared - 1} share,"
        if not at.known:
            source = f'trace["{name}", {at.layer}][0, :, {own}]'
            walk.write_given(title, letter, source, values, size, side=side, note=whose)
            continue
        part, x = at.part(name, walk.head), at.x[name][1]
        bias = f"b_{letter}" if f"b_{letter}" in at.known else None
        plus, where = f" + {bias}" if bias else "", f"{part.start}:{part.stop}"
        walk.arrays |= {n: array[..., part] for n, array in at.known.items() if n[-1] == letter}
        walk.write(
            title, f"{letter} = {x}·W_{letter}{plus}",
            f"{letter} = {x} @ W_{letter}[:, {where}]" + (f"{plus}[{where}]" if bias else ""),
            letter, values, product(x, f"W_{letter}", bias), size,
            side=side, cell=(walk.cell[0] if name == "q" or walk.same else walk.cell[1], 0),
            note=f"{whose or f'head {walk.head}'} owns columns {part.start} to {part.stop - 1} "
            f"of W_{letter}",
        )  # fmt: skip


def rotate_step(walk: Walk, at: AttentionInputs, name: str) -> str:
    """Queries or keys rotated by their positions; gives the name of the result."""
    letter, what = name.upper(), "Queries" if name == "q" else "Keys"
    side, new = "queries" if name == "q" else "keys", f"{letter}_rotated"
    title = f"{what} rotated by where they stand (rotary positions)"
    values = at.compared(name, walk.head)
    if at.rotary is None:
        source = f'trace["rot_{name}", {at.layer}][0, :, {at.of(name, walk.head)}]'
        walk.write_given(title, new, source, values, "d", side=side)
        return new
    base, dims = at.rotary.base, at.d if at.rotary.dims is None else at.rotary.dims
    start = at.offset if name == "q" else 0
    places = f"np.arange({f'{start}, {start} + ' if start else ''}{walk.count(side)})"
    first, second = f":{dims // 2}", f"{dims // 2}:{dims}"
    if at.rotary.interleaved:
        first, second = f"0:{dims}:2", f"1:{dims}:2"
    # the shape and the place of the numbers that are not rotated stay as they were
    lines = [
        f"angles = {places}[:, None] * {base!r} ** (-np.arange(0, {dims}, 2) / {dims})",
        f"a, b, {new} = {letter}[:, {first}], {letter}[:, {second}], {letter}.copy()",
        f"{new}[:, {first}] = a * np.cos(angles) - b * np.sin(angles)",
        f"{new}[:, {second}] = a * np.sin(angles) + b * np.cos(angles)",
    ]
    op: Op = {
        "kind": "rotated", "of": letter, "dims": dims, "base": float(base),
        "interleaved": at.rotary.interleaved, "positions": at.places(name).tolist(),
    }  # fmt: skip
    walk.write(
        title, f"pair i at position p is rotated by p·{base:g}^(-2i/{dims})", "\n".join(lines),
        new, values, op, "d", side=side, cell=(walk.cell[0 if name == "q" else 1], 0),
        note="the product of two rotated vectors depends on how far apart they stand"
        + (f"; the last {at.d - dims} numbers are not rotated" if dims < at.d else ""),
    )  # fmt: skip
    return new


def attention_steps(walk: Walk, at: AttentionInputs, query: str, key: str) -> Array:
    """Scores, scaling, mask, softmax, context; gives the context."""
    q, k, v = walk.arrays[query], walk.arrays[key], walk.arrays["V"]
    d, cell = q.shape[1], walk.cell
    scale = at.settings.get("scale")
    raw = walk.write(
        "Scores: each query times each key", f"scores = {query}·{key}ᵀ",
        f"scores = {query} @ {key}.T", "scores", q @ k.T, product(query, key, flip=True),
        cell=cell, note="the larger q·k, the better the key fits the query",
    )  # fmt: skip
    hidden = at.hidden[walk.head]
    masked = bool(hidden.any()) or at.added is not None
    scaled = walk.write(
        "Scaled: without it longer vectors would make softmax sharper",
        "scaled = scores / √d" if scale is None else f"scaled = scores * {scale:g}",
        f"scaled = scores / np.sqrt({d})" if scale is None else f"scaled = scores * {scale!r}",
        "scaled", raw * raw.dtype.type(1 / math.sqrt(d) if scale is None else scale),
        {"kind": "scaled", "of": "scores", "by": f"/ √{d}" if scale is None else f"* {scale:g}"},
        cell=cell, note="" if masked else "no mask here: every token may look at every other",
    )  # fmt: skip
    if masked:
        _mask_step(walk, at, scaled, hidden)
    weights = _weights_step(walk, "masked" if masked else "scaled", hidden)
    return walk.write(
        "Context: the values, mixed by these weights", "context = weights·V",
        "context = weights @ V", "context", weights @ v, product("weights", "V"),
        "dv", cell=(cell[0], 0),
    )  # fmt: skip


def _mask_step(walk: Walk, at: AttentionInputs, scaled: Array, hidden: Array) -> None:
    """What a token must not see gets -inf; numbers of a mask are added."""
    line, formula = "scaled", []
    if at.added is not None:
        walk.given["mask"] = walk.arrays["mask"] = at.added[walk.head].astype(scaled.dtype)
        line, scaled = "scaled + mask", scaled + walk.arrays["mask"]
        formula = [f"{line}[i, j]"]
    causal = at.settings.get("is_causal") and np.array_equal(
        hidden, ~np.tri(at.length, at.keys, at.offset, dtype=bool)
    )
    if causal:
        sizes = ["T"] if walk.same else ["L", "S"]
        if at.offset:
            sizes = [*sizes, "T", str(at.offset)] if walk.same else [*sizes, str(at.offset)]
        where = f"np.tri({', '.join(sizes)}, dtype=bool), {line}, -np.inf"
        later = f"j > i + {at.offset}" if at.offset else "j > i"
    else:
        walk.given["hidden"] = hidden
        where, later = f"hidden, -np.inf, {line}", "hidden"
    seen = not hidden.any()
    walk.write(
        "Masked: numbers added" if seen else "Masked: what a token must not see gets -inf",
        f"masked[i, j] = {', '.join([*formula, *([] if seen else [f'-∞ where {later}'])])}",
        f"masked = {line}" if seen else f"masked = np.where({where})",
        "masked", np.where(hidden, -np.inf, scaled).astype(scaled.dtype),
        {"kind": "masked", "name": "masked", "of": "scaled", "added": "mask" if formula else None},
        hidden=hidden, note=_why_hidden(at),
    )  # fmt: skip


def _why_hidden(at: AttentionInputs) -> str:
    """Which rules hide something, in words."""
    changed = at.trace.changed
    heads, hidden = went_without(changed)
    rules = [
        ("is_causal", "a token sees itself and what comes before it"),
        ("window", "a token sees only those near it"),
        ("query_lengths", "what is behind the lengths is padding"),
        ("key_lengths", "what is behind the lengths is padding"),
    ]
    said = [words for name, words in rules if at.settings.get(name) not in (None, False)]
    if changed:
        said.append(f"this run went without {'; '.join([*heads, *hidden])}")
    elif at.settings.get("attn_mask") is not None:
        said.append("a mask was given")
    return "; ".join(dict.fromkeys(said))


def _weights_step(walk: Walk, name: str, hidden: Array) -> Array:
    """Softmax of each row."""
    scores = walk.arrays[name]
    powers = f"weights = np.exp({name} - {name}.max(1)[:, None])"
    shares = "weights = weights / weights.sum(1)[:, None]"
    note = "the largest score of the row is taken off first, so that exp cannot overflow"
    blind = np.asarray(np.isneginf(scores).all(axis=1))
    if blind.any():  # exp(-inf - -inf) is not a number
        powers = f"weights = np.exp({name} - np.maximum({name}.max(1), -1e30)[:, None])"
        shares = "weights = weights / np.maximum(weights.sum(1), 1e-30)[:, None]"
        note += "; a row that sees nothing has weights of 0"
    return walk.write(
        "Softmax: each row becomes weights that sum to 1",
        f"weights[i, j] = exp({name}[i, j]) / Σₖ exp({name}[i, k])",
        f"{powers}\n{shares}", "weights", softmax(scores), {"kind": "softmax", "of": name},
        cell=None if blind[walk.cell[0]] else walk.cell, weights=True,
        hidden=hidden if hidden.any() else None, note=note,
    )  # fmt: skip


def embedding_steps(walk: Walk, parameters: Mapping[str, Array], eps: float) -> None:
    """From tokens to the input of the first layer."""
    trace, table = walk.trace, parameters["embed.weight"]
    ids = trace.ids
    walk.given |= {"table": table, "ids": ids}
    shown = ", ".join(map(str, ids[:12])) + (", …" if len(ids) > 12 else "")
    total = walk.write(
        "Words become vectors: each token's row in the table", "E = table[ids]", "E = table[ids]",
        "E", table[ids], {"kind": "row", "of": "table", "rows": list(ids)}, "D",
        note=f"ids {shown}; the table is (V={table.shape[0]}, D={table.shape[1]})",
    )  # fmt: skip
    terms = ["E"]
    if "hook_pos_embed" in trace:
        total = total + _position_step(walk, parameters, *total.shape)
        terms.append("P")
    if "hook_token_type_embed" in trace:
        segment = parameters["token_type_embed.weight"][0]
        walk.given["segment"] = walk.arrays["segment"] = segment
        total = total + segment
        terms.append("segment")
    norm = {
        part: parameters[f"embed_norm.{part}"]
        for part in ("weight", "bias")
        if f"embed_norm.{part}" in parameters
    }
    name = "H" if norm else "X"
    if len(terms) > 1 or not norm:
        line = f"{name} = {' + '.join(terms)}"
        note = "segment: one vector, the same for every token of a first text"
        walk.write(
            "Word and position added" if len(terms) > 1 else "No positions: the words alone",
            line, line, name, total, {"kind": "sum", "terms": terms}, "D",
            note=note if "segment" in terms else "",
        )  # fmt: skip
    if norm:
        norm_step(walk, walk.steps[-1].name, "X", norm, eps)


def _position_step(walk: Walk, parameters: Mapping[str, Array], size: int, dim: int) -> Array:
    """The vectors of the positions, from a table or of sines."""
    if "pos_embed.weight" in parameters:
        walk.given["position_table"] = parameters["pos_embed.weight"]
        values = parameters["pos_embed.weight"][:size]
        code, formula = "P = position_table[:T]", "P[t] = row t of a learned table"
        op: Op = {"kind": "row", "of": "position_table", "rows": list(range(size))}
    else:
        values = walk.trace["hook_pos_embed"][0]
        code = f"P = qkv.sinusoidal_positions({size}, {dim})"
        formula = "P[t, 2i] = sin(t / 10000^(2i/D)), P[t, 2i+1] = cos(t / 10000^(2i/D))"
        op = {"kind": "wave", "dim": dim}
    return walk.write("Where each token stands", formula, code, "P", values, op, "D")


def norm_step(
    walk: Walk,
    of: str,
    name: str,
    parameters: Mapping[str, Array],
    eps: float,
    rms: bool = False,
    **others: Any,
) -> Array:
    """Each vector of an array normed: LayerNorm, or RMSNorm; `others` are those of `Walk.write`."""
    x, bias = walk.arrays[of], parameters.get("bias")
    mark = "" if "gain" not in walk.arrays else f"_{name}"  # a second norm has numbers of its own
    gain, shift, least = f"gain{mark}", f"shift{mark}", f"eps{mark}"
    learned = {gain: parameters["weight"]} | ({} if bias is None else {shift: bias})
    walk.given |= learned | {least: eps}
    walk.arrays |= learned
    plus = "" if bias is None else f" + {shift}"
    centred = x if rms else x - x.mean(1)[:, None]
    mean_square = (centred**2).mean(1)[:, None]
    out = centred / np.sqrt(mean_square + x.dtype.type(eps)) * parameters["weight"]
    square = "mean square" if rms else "variance"
    title, top = "mean 0, variance 1, then a learned gain and shift", f"({of} - mean)"
    first = f"({of} - {of}.mean(1)[:, None]) / np.sqrt({of}.var(1)[:, None] + {least})"
    if rms:
        title, top = "mean square 1, then a learned gain", of
        first = f"{of} / np.sqrt(({of}**2).mean(1)[:, None] + {least})"
    return walk.write(
        f"Each vector normed: {title}", f"{name} = {top} / √({square} + eps) * {gain}{plus}",
        f"{name} = {first}\n{name} = {name} * {gain}{plus}",
        name, np.asarray(out if bias is None else out + bias),
        {"kind": "norm", "of": of, "gain": gain, "shift": shift if plus else None,
         "eps": float(eps), "rms": rms},
        "D", **others,
    )  # fmt: skip

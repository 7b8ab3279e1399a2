"""The steps of one head as they are written down: title, formula, NumPy line, numbers, sum."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.attend import softmax
from qkv.see.steps.attention_inputs import Source
from qkv.see.steps.sums import Op, spell
from qkv.trace import Trace

GIVEN: Op = {"kind": "given"}
_ASK = {
    "q": "Queries: what each token asks for",
    "k": "Keys: what each token offers",
    "v": "Values: what each token hands over",
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
        side: which of the two, "queries" or "keys".
        columns: what the columns stand for, where they are tokens too.
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
    weights: bool = False
    hidden: Array | None = None
    cell: tuple[int, int] | None = None
    sum: str = ""
    note: str = ""

    @property
    def by_token(self) -> bool:
        """Whether the columns stand for tokens, as the rows do."""
        return self.columns is not None


class Notes:
    """The steps as they are written down, and the arrays that they give, by name."""

    def __init__(self, tokens: list[str], keys: list[str], cell: tuple[int, int]) -> None:
        self.tokens, self.keys, self.cell = tokens, keys, cell
        self.same = keys is tokens
        self.steps: list[Step] = []
        self.arrays: dict[str, Array] = {}
        self.given: dict[str, Any] = {"np": np}
        self.given |= {"T": len(tokens)} if self.same else {"L": len(tokens), "S": len(keys)}

    def size(self, side: str = "queries") -> str:
        """How many rows there are, by name."""
        names = self.tokens if side == "queries" else self.keys
        return f"{'T' if self.same else 'L' if side == 'queries' else 'S'}={len(names)}"

    def step(
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
        weights: bool = False,
        hidden: Array | None = None,
        note: str = "",
    ) -> Array:
        """Write a step down; without a name of its `columns` they are the keys."""
        self.arrays[name] = values
        rows = self.tokens if side == "queries" else self.keys
        headings = None if columns else self.keys
        self.steps.append(
            Step(
                title=title,
                formula=formula,
                shape=f"({self.size(side)}, {columns or self.size('keys')})",
                code=code,
                name=name,
                values=values,
                op=op,
                rows=rows,
                side=side,
                columns=headings,
                weights=weights,
                hidden=hidden,
                cell=cell,
                sum=spell(name, op, cell, self.arrays, rows, headings) if cell else "",
                note=note,
            )
        )
        return values


def product(left: str, right: str, bias: str | None = None, *, flip: bool = False) -> Op:
    """A matrix product, its right side transposed if `flip`."""
    return {"kind": "product", "left": left, "right": right, "bias": bias, "flip": flip}


def projection_steps(notes: Notes, at: Source, head: int) -> None:
    """The three steps, the sum in one row spelled out."""
    for name in "qkv":
        letter, side = name.upper(), "queries" if name == "q" else "keys"
        values = at.one(name, head)
        size = f"{'dv' if name == 'v' else 'd'}={values.shape[1]}"
        whose = ""
        if name != "q" and at.shared > 1:
            first = at.of(name, head) * at.shared
            last = first + at.shared - 1
            whose = f"key head {at.of(name, head)}, which heads {first} to {last} share,"
        if not at.known:
            code = f'{letter} = trace["{name}", {at.number}][0, :, {at.of(name, head)}]'
            notes.step(_ASK[name], letter, code, letter, values, GIVEN, size, side=side, note=whose)
            continue
        part = at.part(name, head)
        where = f"{part.start}:{part.stop}"
        x = at.x_name if name == "q" else at.other_name
        plus = f" + b_{letter}" if f"b_{letter}" in at.known else ""
        notes.arrays[f"W_{letter}"] = at.known[f"W_{letter}"][:, part]
        if plus:
            notes.arrays[f"b_{letter}"] = at.known[f"b_{letter}"][part]
        notes.step(
            _ASK[name],
            f"{letter} = {x}·W_{letter}{plus}",
            f"{letter} = {x} @ W_{letter}[:, {where}]" + (f"{plus}[{where}]" if plus else ""),
            letter,
            values,
            product(x, f"W_{letter}", f"b_{letter}" if plus else None),
            size,
            side=side,
            cell=(notes.cell[0] if name == "q" or notes.same else notes.cell[1], 0),
            note=f"{whose or f'head {head}'} owns columns {part.start} to {part.stop - 1} "
            f"of W_{letter}",
        )


def rotate_step(notes: Notes, at: Source, name: str, head: int) -> str:
    """Queries or keys turned by their positions; gives the name of the result."""
    letter, what = name.upper(), "Queries" if name == "q" else "Keys"
    side, new = "queries" if name == "q" else "keys", f"{letter}_turned"
    title = f"{what} turned by where they stand (rotary positions)"
    values = at.rotate(at.one(name, head), name, head)
    if at.rotary is None:
        code = f'{new} = trace["rot_{name}", {at.number}][0, :, {at.of(name, head)}]'
        notes.step(title, new, code, new, values, GIVEN, f"d={at.d}", side=side)
        return new
    dims, base, half = at.rotary_dims, at.rotary.base, at.rotary_dims // 2
    count = notes.size(side)[0]
    start = at.offset if name == "q" else 0
    places = f"np.arange({f'{start}, {start} + ' if start else ''}{count})"
    angles = f"angles = {places}[:, None] * {base!r} ** (-np.arange(0, {dims}, 2) / {dims})"
    ends = (
        (f"0:{dims}:2", f"1:{dims}:2") if at.rotary.interleaved else (f":{half}", f"{half}:{dims}")
    )
    # the shape and the place of the numbers that are not turned stay as they were
    lines = [
        angles,
        f"a, b, {new} = {letter}[:, {ends[0]}], {letter}[:, {ends[1]}], {letter}.copy()",
        f"{new}[:, {ends[0]}] = a * np.cos(angles) - b * np.sin(angles)",
        f"{new}[:, {ends[1]}] = a * np.sin(angles) + b * np.cos(angles)",
    ]
    op: Op = {
        "kind": "turned", "of": letter, "dims": dims, "base": float(base),
        "interleaved": at.rotary.interleaved, "positions": at.places(name).tolist(),
    }  # fmt: skip
    notes.step(
        title,
        f"pair i at position p is turned by p·{base:g}^(-2i/{dims})",
        "\n".join(lines),
        new,
        values,
        op,
        f"d={at.d}",
        side=side,
        cell=(notes.cell[0 if name == "q" else 1], 0),
        note="the product of two turned vectors depends on how far apart they stand"
        + (f"; the last {at.d - dims} numbers are not turned" if dims < at.d else ""),
    )
    return new


def attention_steps(notes: Notes, at: Source, head: int, query: str, key: str) -> Array:
    """Scores, scaling, mask, softmax, context; gives the context."""
    q, k, v = notes.arrays[query], notes.arrays[key], notes.arrays["V"]
    d, cell = q.shape[1], notes.cell
    scale = at.settings.get("scale")
    raw = notes.step(
        "Scores: each query times each key", f"scores = {query}·{key}ᵀ",
        f"scores = {query} @ {key}.T", "scores", q @ k.T, product(query, key, flip=True),
        cell=cell, note="the larger q·k, the better the key fits the query",
    )  # fmt: skip
    hidden, added = at.hidden[head], None if at.added is None else at.added[head]
    masked_out = bool(hidden.any())
    scaled = notes.step(
        "Scaled: without it longer vectors would make softmax sharper",
        "scaled = scores / √d" if scale is None else f"scaled = scores * {scale:g}",
        f"scaled = scores / np.sqrt({d})" if scale is None else f"scaled = scores * {scale!r}",
        "scaled", raw * raw.dtype.type(1 / math.sqrt(d) if scale is None else scale),
        {"kind": "scaled", "of": "scores", "by": f"/ √{d}" if scale is None else f"* {scale:g}"},
        cell=cell,
        note="" if masked_out or added is not None
        else "no mask here: every token may look at every other",
    )  # fmt: skip
    name = "scaled"
    if masked_out or added is not None:
        name = "masked"
        _mask_step(notes, at, scaled, hidden, added)
    weights = _weights_step(notes, name, hidden if masked_out else None)
    return notes.step(
        "Context: the values, mixed by these weights", "context = weights·V",
        "context = weights @ V", "context", weights @ v, product("weights", "V"),
        f"dv={v.shape[1]}", cell=(cell[0], 0),
    )  # fmt: skip


def _mask_step(notes: Notes, at: Source, scaled: Array, hidden: Array, added: Array | None) -> None:
    """What a token must not see gets -inf; numbers of a mask are added."""
    sum_, line = "scaled", "scaled"
    if added is not None:
        added = added.astype(scaled.dtype)
        notes.given["mask"] = notes.arrays["mask"] = added
        sum_, line = "scaled + mask", "scaled + mask"
        scaled = scaled + added
    masked = np.where(hidden, -np.inf, scaled).astype(scaled.dtype)
    causal = at.settings.get("is_causal") and np.array_equal(
        hidden, ~np.tri(at.length, at.keys, at.offset, dtype=bool)
    )
    given = ", ".join([notes.size()[0]] if notes.same else ["L", "S"])
    if causal:
        given += f"{'' if not notes.same else ', T'}, {at.offset}" if at.offset else ""
        where, later = f"np.tri({given}, dtype=bool), {line}, -np.inf", "j > i"
        later += f" + {at.offset}" if at.offset else ""
    else:
        notes.given["hidden"] = hidden
        where, later = f"hidden, -np.inf, {line}", "hidden"
    notes.step(
        "Masked: what a token must not see gets -inf" if hidden.any() else "Masked: numbers added",
        f"masked[i, j] = {sum_}[i, j]" + (f", -∞ where {later}" if hidden.any() else "")
        if added is not None else f"masked[i, j] = -∞ where {later}",
        f"masked = np.where({where})" if hidden.any() else f"masked = {line}",
        "masked", masked,
        {"kind": "masked", "name": "masked", "of": "scaled",
         "added": None if added is None else "mask"},
        hidden=hidden, note=_why_hidden(at),
    )  # fmt: skip


def _why_hidden(at: Source) -> str:
    """Which rules hide something, in words."""
    changed = at.trace.changed
    heads = [f"layer {layer}, head {head}" for layer, head in changed.get("ablate", ())]
    rules = [
        ("is_causal", "a token sees itself and what comes before it"),
        ("window", "a token sees only those near it"),
        ("query_lengths", "what is behind the lengths is padding"),
        ("key_lengths", "what is behind the lengths is padding"),
    ]
    said = [words for name, words in rules if at.settings.get(name) not in (None, False)]
    if changed:
        said.append(f"this run went without {'; '.join([*heads, *changed.get('hide', ())])}")
    elif at.settings.get("attn_mask") is not None:
        said.append("a mask was given")
    return "; ".join(dict.fromkeys(said))


def _weights_step(notes: Notes, name: str, hidden: Array | None) -> Array:
    """Softmax of each row."""
    scores = notes.arrays[name]
    powers = f"weights = np.exp({name} - {name}.max(1)[:, None])"
    shares = "weights = weights / weights.sum(1)[:, None]"
    note = "the largest score of the row is taken off first, so that exp cannot overflow"
    blind = np.asarray(np.isneginf(scores).all(axis=1))
    if blind.any():  # exp(-inf - -inf) is not a number
        powers = f"weights = np.exp({name} - np.maximum({name}.max(1), -1e30)[:, None])"
        shares = "weights = weights / np.maximum(weights.sum(1), 1e-30)[:, None]"
        note += "; a row that sees nothing has weights of 0"
    cell = None if blind[notes.cell[0]] else notes.cell
    return notes.step(
        "Softmax: each row becomes weights that sum to 1",
        f"weights[i, j] = exp({name}[i, j]) / Σₖ exp({name}[i, k])",
        f"{powers}\n{shares}", "weights", softmax(scores), {"kind": "softmax", "of": name},
        cell=cell, weights=True, hidden=hidden, note=note,
    )  # fmt: skip


def embedding_steps(
    notes: Notes, trace: Trace, parameters: Mapping[str, Array], eps: float
) -> None:
    """From tokens to the input of the first layer."""
    table, ids = parameters["embed.weight"], trace.ids
    notes.given |= {"table": table, "ids": ids}
    size, dim = len(ids), table.shape[1]
    columns = f"D={dim}"
    shown = ", ".join(map(str, ids[:12])) + (", …" if size > 12 else "")
    total = notes.step(
        "Words become vectors: each token's row in the table", "E = table[ids]", "E = table[ids]",
        "E", table[ids], {"kind": "row", "of": "table", "rows": list(ids)}, columns,
        note=f"ids {shown}; the table is (V={table.shape[0]}, D={dim})",
    )  # fmt: skip
    terms = ["E"]
    if "hook_pos_embed" in trace:
        op: Op
        if "pos_embed.weight" in parameters:
            positions = parameters["pos_embed.weight"][:size]
            notes.given["position_table"] = parameters["pos_embed.weight"]
            code, formula = "P = position_table[:T]", "P[t] = row t of a learned table"
            op = {"kind": "row", "of": "position_table", "rows": list(range(size))}
        else:
            positions = trace["hook_pos_embed"][0]
            formula = "P[t, 2i] = sin(t / 10000^(2i/D)), P[t, 2i+1] = cos(t / 10000^(2i/D))"
            code = f"P = qkv.sinusoidal_positions({size}, {dim})"
            op = {"kind": "wave", "dim": dim}
        notes.step("Where each token stands", formula, code, "P", positions, op, columns)
        terms.append("P")
        total = total + positions
    if "hook_token_type_embed" in trace:
        segment = parameters["token_type_embed.weight"][0]
        notes.given["segment"] = notes.arrays["segment"] = segment
        terms.append("segment")
        total = total + segment
    normed = "embed_norm.weight" in parameters
    name = "H" if normed else "X"
    line = f"{name} = {' + '.join(terms)}"
    if len(terms) > 1 or not normed:
        note = "segment: one vector, the same for every token of a first text"
        notes.step(
            "Word and position added" if len(terms) > 1 else "No positions: the words alone",
            line, line, name, total, {"kind": "sum", "terms": terms}, columns,
            note=note if "segment" in terms else "",
        )  # fmt: skip
    if normed:
        norm = {
            part: parameters[f"embed_norm.{part}"]
            for part in ("weight", "bias")
            if f"embed_norm.{part}" in parameters
        }
        of = "H" if len(terms) > 1 else "E"
        norm_step(notes, total, of, "X", norm, eps)


def norm_step(
    notes: Notes,
    x: Array,
    of: str,
    name: str,
    parameters: Mapping[str, Array],
    eps: float,
    *,
    rms: bool = False,
) -> Array:
    """Each vector normed: LayerNorm, or RMSNorm."""
    notes.given |= {"gain": parameters["weight"], "eps": eps}
    notes.arrays["gain"] = parameters["weight"]
    shift = parameters.get("bias")
    if shift is not None:
        notes.given["shift"] = notes.arrays["shift"] = shift
    plus = "" if shift is None else " + shift"
    centred = x if rms else x - x.mean(1)[:, None]
    square = (centred**2).mean(1)[:, None]
    out = centred / np.sqrt(square + x.dtype.type(eps)) * parameters["weight"]
    if shift is not None:
        out = out + shift
    first = (
        f"{name} = {of} / np.sqrt(({of}**2).mean(1)[:, None] + eps)"
        if rms
        else f"{name} = ({of} - {of}.mean(1)[:, None]) / np.sqrt({of}.var(1)[:, None] + eps)"
    )
    return notes.step(
        "Each vector normed: mean square 1, then a learned gain"
        if rms else "Each vector normed: mean 0, variance 1, then a learned gain and shift",
        f"{name} = {of} / √(mean square + eps) * gain{plus}"
        if rms else f"{name} = ({of} - mean) / √(variance + eps) * gain{plus}",
        f"{first}\n{name} = {name} * gain{plus}",
        name, np.asarray(out),
        {"kind": "norm", "of": of, "gain": "gain", "shift": "shift" if plus else None,
         "eps": float(eps), "rms": rms},
        f"D={x.shape[1]}",
    )  # fmt: skip

"""The steps of one head as they are written down: title, formula, NumPy line, numbers, sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.embed import sinusoidal_positions
from qkv.see.analysis.words import went_without
from qkv.see.steps.attention_inputs import AttentionInputs
from qkv.see.steps.rows import PHRASES, ROWS, biased, fill, phrase
from qkv.see.steps.sums import Op, spell
from qkv.trace import Trace

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


def head_steps(walk: Walk, at: AttentionInputs) -> Array:
    """The steps of one head, from the layer's input to the head's context, which it gives."""
    for name in "qkv":
        _projection_step(walk, at, name)
    query, key = (_rotate_step(walk, at, n) for n in "qk") if at.rotated else ("Q", "K")
    return _attention_steps(walk, at, query, key)


def _projection_step(walk: Walk, at: AttentionInputs, name: str) -> None:
    """Queries, keys or values, the sum in one row spelled out."""
    letter, own = name.upper(), at.of(name, walk.head)
    first, whose = own * at.shared, ""
    if name != "q" and at.shared > 1:
        whose = phrase("key head", of=own, first=first, last=first + at.shared - 1)
    given: dict[str, Any] = {
        "what": PHRASES[letter], "letter": letter, "columns": "dv" if name == "v" else "d",
        "side": "queries" if name == "q" else "keys",
    }  # fmt: skip
    if not at.known:
        walk.write("traced projection", hook=name, layer=at.layer, of=own, whose=whose, **given)
        return
    part, bias = at.part(name, walk.head), f"b_{letter}" if f"b_{letter}" in at.known else None
    walk.arrays |= {n: array[..., part] for n, array in at.known.items() if n[-1] == letter}
    walk.write(
        "projection", **given, **biased(bias), x=at.x[name], start=part.start, stop=part.stop,
        last=part.stop - 1, part=f" + {bias}[{part.start}:{part.stop}]" if bias else "",
        whose=f"{whose}," if whose else phrase("head", head=walk.head),
        cell=(walk.cell[0] if name == "q" or walk.same else walk.cell[1], 0),
    )  # fmt: skip


def _rotate_step(walk: Walk, at: AttentionInputs, name: str) -> str:
    """Queries or keys rotated by their positions; gives the name of the result."""
    letter, side = name.upper(), "queries" if name == "q" else "keys"
    what = PHRASES[letter].partition(":")[0]
    given: dict[str, Any] = {"what": what, "letter": letter, "side": side}
    if at.rotary is None:
        of = at.of(name, walk.head)
        walk.write("traced rotated", hook=name, layer=at.layer, of=of, **given)
        return f"{letter}_rotated"
    base, dims = at.rotary.base, at.d if at.rotary.dims is None else at.rotary.dims
    start, count = (at.offset, at.length) if name == "q" else (0, at.keys)
    first, second = f":{dims // 2}", f"{dims // 2}:{dims}"
    if at.rotary.interleaved:
        first, second = f"0:{dims}:2", f"1:{dims}:2"
    walk.write(
        "rotated", **given, base=f"{base:g}", value=float(base), dims=dims,
        places=f"{f'{start}, {start} + ' if start else ''}{walk.count(side)}",
        first=first, second=second, interleaved=at.rotary.interleaved,
        positions=list(range(start, start + count)),
        rest=f"; the last {at.d - dims} numbers are not rotated" if dims < at.d else "",
        cell=(walk.cell[0 if name == "q" else 1], 0),
    )  # fmt: skip
    return f"{letter}_rotated"


def _attention_steps(walk: Walk, at: AttentionInputs, query: str, key: str) -> Array:
    """Scores, scaling, mask, softmax, context; gives the context."""
    cell, scale = walk.cell, at.settings.get("scale")
    walk.write("scores", query=query, key=key, cell=cell)
    hidden = at.hidden[walk.head]
    masked = bool(hidden.any()) or at.added is not None
    note = "" if masked else PHRASES["no mask"]
    if scale is None:
        scaled = walk.write("scaled", d=walk.arrays[query].shape[1], note=note, cell=cell)
    else:
        by, scale = f"{scale:g}", float(scale)
        scaled = walk.write("scaled by a number", by=by, scale=scale, note=note, cell=cell)
    if masked:
        scaled = _mask_step(walk, at, scaled, hidden)
    blind = np.asarray(np.isneginf(scaled).all(axis=1))
    walk.write(
        "weights of blind rows" if blind.any() else "weights", of="masked" if masked else "scaled",
        cell=None if blind[cell[0]] else cell, hidden=hidden if hidden.any() else None,
    )  # fmt: skip
    return walk.write("context", cell=(cell[0], 0))


def _mask_step(walk: Walk, at: AttentionInputs, scaled: Array, hidden: Array) -> Array:
    """What a token must not see gets -inf; numbers of a mask are added."""
    given: dict[str, Any] = {"of": "scaled", "added": "", "line": "scaled", "mask": None}
    given["why"] = _why_hidden(at)
    if at.added is not None:
        walk.given["mask"] = walk.arrays["mask"] = at.added[walk.head].astype(scaled.dtype)
        given |= {"added": "scaled + mask[i, j], ", "line": "scaled + mask", "mask": "mask"}
    row, offset = "masked" if hidden.any() else "mask added", at.offset
    later = ~np.tri(at.length, at.keys, offset, dtype=bool)
    if at.settings.get("is_causal") and np.array_equal(hidden, later):
        row, sizes = "masked later", ["T"] if walk.same else ["L", "S"]
        if offset:
            sizes = [*sizes, *(["T"] if walk.same else []), str(offset)]
        given |= {"sizes": ", ".join(sizes), "later": f"j > i + {offset}" if offset else "j > i"}
    else:
        walk.given["hidden"] = hidden
    return walk.write(row, **given, hidden=hidden)


def _why_hidden(at: AttentionInputs) -> str:
    """Which rules hide something, in words."""
    changed = at.trace.changed
    heads, hidden = went_without(changed)
    rules = ("is_causal", "window", "query_lengths", "key_lengths")
    said = [PHRASES[name] for name in rules if at.settings.get(name) not in (None, False)]
    if changed:
        said.append(phrase("without", what="; ".join([*heads, *hidden])))
    elif at.settings.get("attn_mask") is not None:
        said.append(PHRASES["attn_mask"])
    return "; ".join(dict.fromkeys(said))


def embedding_steps(walk: Walk, parameters: Mapping[str, Array], eps: float) -> None:
    """From tokens to the input of the first layer."""
    trace, table = walk.trace, parameters["embed.weight"]
    ids = list(trace.ids)
    walk.given |= {"table": table, "ids": ids}
    shown = ", ".join(map(str, ids[:12])) + (", …" if len(ids) > 12 else "")
    size = f"; the table is (V={table.shape[0]}, D={table.shape[1]})"
    walk.write("words", rows=ids, ids=shown, table=size)
    terms, note = ["E"], ""
    if "hook_pos_embed" in trace:
        _position_step(walk, parameters)
        terms.append("P")
    if "hook_token_type_embed" in trace:
        segment = parameters["token_type_embed.weight"][0]
        walk.given["segment"] = walk.arrays["segment"] = segment
        terms.append("segment")
        note = PHRASES["segment"]
    norm = {
        part: parameters[f"embed_norm.{part}"]
        for part in ("weight", "bias")
        if f"embed_norm.{part}" in parameters
    }
    if len(terms) > 1:
        name = "H" if norm else "X"
        walk.write("embedded", name=name, sum=" + ".join(terms), terms=terms, note=note)
    elif not norm:
        walk.write("words alone")
    if norm:
        norm_step(walk, walk.steps[-1].name, "X", norm, eps)


def _position_step(walk: Walk, parameters: Mapping[str, Array]) -> None:
    """The vectors of the positions, from a table or of sines."""
    length, dim = walk.arrays["E"].shape
    if "pos_embed.weight" in parameters:
        walk.given["position_table"] = parameters["pos_embed.weight"]
        walk.write("positions", rows=list(range(length)))
        return
    walk.given["qkv"] = SimpleNamespace(sinusoidal_positions=sinusoidal_positions)
    walk.write("waves", length=length, dim=dim, type=walk.trace["hook_pos_embed"].dtype.name)


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

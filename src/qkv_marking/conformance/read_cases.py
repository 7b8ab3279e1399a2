"""Calls that test a function: each feature, pairs of features, various sizes, random calls."""

import ast
import itertools
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from importlib.resources import files
from types import MappingProxyType
from typing import Any

import numpy as np

from qkv.attend.arguments import OPTIONS

_TABLES = tomllib.loads(files(__package__).joinpath("cases.toml").read_text("utf-8"))
_ROWS = {feature: table["cases"] for feature, table in _TABLES.items() if feature != "once"}
FEATURES = tuple(_ROWS)
# options whose values may be arrays; `Case.options` describes such an array as text
DRAWN = ("attn_mask", "bias", "sinks", "query_lengths", "key_lengths", "alibi_slopes", "q_offset")
_LARGE = 100  # scores that are multiplied by more than this number are large scores
_HALF = 16_000  # queries that are multiplied by more than this number overflow float16
POSITIONAL = ("is_causal", "window", "alibi_slopes")  # options that depend on positions


@dataclass(frozen=True)
class Case:
    """A test call without its arrays: sizes, options, and the random seed for the arrays.

    Attributes:
        feature: the feature that the call tests.
        name: a short name, unique among the cases of the feature.
        options: arguments of `qkv.attention`. A text such as "bool B1LS" describes an array: its
            dtype is bool and its shape is (B, 1, L, S).
        layout: the memory layout of query, key and value.
        spread: the factor by which the scores are multiplied.
        sign: 1 if all scores are positive, -1 if all are negative, 0 if their signs differ.
        constant: whether all value vectors of a head are equal. Each output must then equal this
            value vector, because the weights sum to 1.
        poison: True if masked positions hold NaN; a text such as "nan in masked key" if only masked
            positions of one array do; a text such as "nan in key" if a visible position of an array
            holds NaN or infinity.
        backward: whether the call asks for the gradients.
        optional: whether the function may refuse the case and still be right.
        unsaid: options that the function always applies, without a parameter for them. Only the
            formula that computes the right answer receives these options.
    """

    feature: str
    name: str = ""
    B: int = 2
    Hq: int = 2
    Hkv: int = 2
    L: int = 5
    S: int = 5
    d: int = 8
    dv: int = 8
    options: Mapping[str, Any] = field(default_factory=dict)
    dtype: str = "float32"
    layout: str = ""
    spread: float = 1.0
    sign: int = 0
    constant: bool = False
    poison: bool | str = False
    backward: bool = False
    repeats: int = 1
    optional: bool = False
    unsaid: tuple[str, ...] = ()
    seed: int = 0

    @property
    def is_backward(self) -> bool:
        """Whether the results of the call are gradients."""
        return self.backward or self.feature == "gradient"

    @property
    def hides_nan(self) -> bool:
        """Whether masked positions hold NaN."""
        return self.poison is True or "masked" in str(self.poison)

    @property
    def exact(self) -> bool:
        """Whether queries and keys are integers, so large scores have no rounding errors."""
        return self.feature == "large scores"

    def pack(self) -> dict[str, Any]:
        """Return the case as a dict for JSON."""
        return asdict(self)

    @classmethod
    def read(cls, packed: Mapping[str, Any]) -> "Case":
        """Read a case from the result of `pack`."""
        return cls(**{**packed, "unsaid": tuple(packed["unsaid"])})

    def drop_feature(self) -> "Case | None":
        """Return the call without the feature that it tests, for example without the mask.

        Return None for a feature that cannot be removed from a call, such as "gradient".
        """
        options = {
            name: value
            for name, value in self.options.items()
            if self.feature not in _FEATURES_OF.get(name, ())
        }
        if self.feature == "q_offset" and {*options} & {"window", "alibi_slopes"}:
            options["q_offset"] = "aligned"  # functions may refuse a window without q_offset
        case = replace(self, options=options, feature="plain")
        if "q_offset" in options and not {*options} & {*POSITIONAL}:
            case = replace(case, options={k: v for k, v in options.items() if k != "q_offset"})
        without: dict[str, dict[str, Any]] = {
            "half precision": {"dtype": "float32"},
            "hidden NaN": {"poison": False},
            "large scores": {"spread": 1.0, "sign": 0, "constant": False},
            "determinism": {"repeats": 1},
            "strides": {"layout": ""},
            "grouped heads": {"Hkv": self.Hq},
        }
        if self.feature in without:
            case = replace(case, **without[self.feature])
        elif options == self.options or self.feature == "gradient":
            return None
        used = [
            name
            for option in case.options
            for name in _FEATURES_OF.get(option, ())
            if name != self.feature
        ]
        if "attn_mask" in case.options:
            kind = str(case.options["attn_mask"]).partition(" ")[0]
            used = [name for name in used if not name.endswith("mask") or name.startswith(kind)]
        used += ["grouped heads"] if case.Hq != case.Hkv else []
        used += ["large scores"] if case.spread > _LARGE and "softcap" not in case.options else []
        return replace(case, feature=max(used, key=FEATURES.index, default="plain"))

    def size(self) -> tuple[int, int]:
        """Return the number of options and the number of array elements, to sort cases by size."""
        numbers = self.B * (self.Hq * self.L * (self.S + self.d) + self.Hkv * self.S * self.dv)
        return len(self.options), numbers

    def describe(self) -> str:
        """Describe the call in one line."""
        heads = f"H={self.Hq}" if self.Hq == self.Hkv else f"Hq={self.Hq} Hkv={self.Hkv}"
        sizes = f"d={self.d}" if self.d == self.dv else f"d={self.d} dv={self.dv}"
        words = [f"B={self.B} {heads} L={self.L} S={self.S} {sizes}"]
        for name, value in self.options.items():
            is_drawn = isinstance(value, str) and name in DRAWN
            if name not in self.unsaid:
                words.append(f"{name}: {value}" if is_drawn else f"{name}={value}")
        if self.dtype != "float32":
            words.append(self.dtype)
        if self.layout:
            words.append(f"{self.layout} in memory")
        if self.poison:
            where = str(self.poison).partition(" in masked ")[2]
            where = f"masked {where}s" if where else "masked positions"
            words.append(f"NaN at {where}" if self.hides_nan else f"visible {self.poison}")
        if self.is_backward:
            words.append("gradients")
        if self.spread != 1:
            words.append(f"scores times {self.spread:g}")
        return ", ".join(words)

    def fit(
        self,
        offered: Collection[str],
        aligned: str,
        absent: Collection[str],
        defaults: Mapping[str, Any] = MappingProxyType({}),
    ) -> "Case | None":
        """Adapt the case to a function; return None if the function lacks a required argument.

        Args:
            offered: the arguments of the function.
            aligned: "start" if a call without `q_offset` aligns the first query with the first
                key, "end" if it aligns the last query with the last key.
            absent: features and layouts that the function lacks, such as "causal, L != S".
            defaults: options that the function applies in a call without them.
        """
        kind = str(self.options.get("attn_mask", "")).partition(" ")[0]
        grouped = "grouped heads" if self.Hq != self.Hkv else ""
        apart = "causal, L != S" if "is_causal" in self.options and self.L != self.S else ""
        if {self.feature, f"{kind} mask", grouped, self.layout, apart} & {*absent}:
            return None
        options = {**defaults, **self.options}
        unsaid = {*self.unsaid, *defaults.keys() - self.options.keys()}
        known = "q_offset" in offered and "q_offset" in options
        if options.get("q_offset") == "aligned" or (
            "q_offset" not in options and self.L != self.S and {*options} & {*POSITIONAL}
        ):
            options["q_offset"] = self.S - self.L if known or aligned == "end" else 0
            unsaid |= set() if known else {"q_offset"}
        if not {*options} - unsaid <= {*offered}:
            return None
        return replace(self, options=options, unsaid=tuple(sorted(unsaid & options.keys())))


_FIELDS = {one.name for one in fields(Case)}


def _case(row: Mapping[str, Any], **changes: Any) -> Case:
    """Create a case from a row of cases.toml in which every field has a single value."""
    values: dict[str, Any] = {
        name: value.format_map(row) if isinstance(value, str) else value
        for name, value in row.items()
    } | changes
    options = {name: values[name] for name in values if name in OPTIONS}
    if "window" in options:
        options["window"] = ast.literal_eval(options["window"])
    return Case(**{name: values[name] for name in values if name in _FIELDS}, options=options)


# a case for each option, from the table `once` in cases.toml; `_pair` combines two of these cases
_ONCE = {name: _case({"name": name, "L": 4, "S": 7} | row) for name, row in _TABLES["once"].items()}
# more values of L and S for these cases: one query, and keys in far tiles
_SIZES = ((1, 7), (1, 300), (2, 1100))
# the features that test an option, keyed by option
_FEATURES_OF = {
    **{
        name: [
            case.feature
            for case in _ONCE.values()
            if name in case.options and case.feature != "q_offset"
        ]
        for name in OPTIONS
    },
    "q_offset": ["q_offset"],
    "return_weights": ["weights"],
    "return_lse": ["LSE"],
}


def plan_cases(dtypes: Collection[str], halves: Collection[str]) -> Iterator[Case]:
    """For each dtype, yield the cases of each feature (simplest first), then pairs of options."""
    for dtype in dtypes:
        for feature in FEATURES:
            if feature != "half precision":
                yield from _of_feature(feature, dtype)
        for L, S in _SIZES:
            name = f"{{}}, L = {L}, S = {S}"
            yield from (
                replace(
                    case, name=name.format(option), L=L, S=S, d=4, dv=4, dtype=dtype, optional=True
                )
                for option, case in _ONCE.items()
            )
        for pair in _pairs():
            pair = replace(pair, dtype=dtype)
            yield from (pair, replace(pair, name=f"{pair.name}, L = 1", L=1))
            for L in (1, 9):
                yield replace(pair, name=f"{pair.name}, L = {L}, S = 40", L=L, S=40, d=4, dv=4)
    for dtype in halves:
        yield from _of_feature("half precision", dtype)


def _of_feature(feature: str, dtype: str) -> Iterator[Case]:
    """Yield the cases of a feature, from the feature's rows in `_ROWS`."""
    for row in _ROWS[feature]:
        count = max((len(value) for value in row.values() if isinstance(value, list)), default=1)
        for n in range(count):
            flat = {name: value[n] if isinstance(value, list) else value
                    for name, value in row.items()} | {"dtype": dtype}  # fmt: skip
            if dtype == "float16" and flat.get("spread", 0) > _HALF:
                continue
            if row.get("pairs"):
                for pair in _pairs():
                    yield _with_row(pair, flat, feature)
                continue
            if not row.get("once"):
                yield _case(flat, feature=feature)
                continue
            for option, once in _TABLES["once"].items():
                base = {"name": "{option}", "option": option, "L": 4, "S": 7, **once}
                yield _case(base | flat, feature=feature, optional=True)


def _both_set(options: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    """Return whether both sets of options set the same argument, such as `attn_mask`."""
    return bool(options.keys() & others.keys() - {"q_offset"})


def _pairs() -> Iterator[Case]:
    """Yield the pairs of options of the table `once` that do not set the same argument."""
    for one, other in itertools.combinations(_ONCE.values(), 2):
        if not _both_set(one.options, other.options):
            yield _pair(one, other)


def _with_row(pair: Case, row: Mapping[str, Any], feature: str) -> Case:
    """Return a pair of options with the values of a row of cases.toml."""
    case = _case({"name": "{option}", "option": pair.name, **row}, feature=feature)
    values = {name: getattr(case, name) for name in row if name in _FIELDS} | {"name": case.name}
    return replace(pair, **values, feature=feature, options={**pair.options, **case.options})


def _pair(one: Case, other: Case) -> Case:
    """Create a case that combines the options of two cases.

    The new case tests only one feature: the feature of `one` or the feature of `other`, whichever
    comes later in `FEATURES`.
    """
    later = max(one, other, key=lambda case: FEATURES.index(case.feature))
    return replace(
        later,
        name=f"{one.name} and {other.name}",
        Hq=max(one.Hq, other.Hq),
        options={**one.options, **other.options},
        optional=True,
    )


def random(seed: int, count: int, dtypes: Collection[str]) -> Iterator[Case]:
    """Yield cases with random sizes and random combinations of options."""
    rng = np.random.default_rng(seed)
    kinds = [*dtypes]
    for number in range(count):
        names = [name for name in _ONCE if rng.random() < 0.25]
        options: dict[str, Any] = {}
        features = ["plain"]
        for name in names:
            if not _both_set(_ONCE[name].options, options):
                options |= _ONCE[name].options
                features.append(_ONCE[name].feature)
        Hkv = int(rng.integers(1, 4))
        group = int(rng.integers(2, 4)) if "grouped" in names else 1
        L, S = (int(2 ** rng.uniform(0, 7)) + int(rng.integers(0, 2)) for _ in range(2))
        d, dv = (int(rng.choice([4, 8, 16, 24])) for _ in range(2))
        yield Case(
            max(features, key=FEATURES.index),
            f"random {number}",
            B=int(rng.integers(1, 4)),
            Hq=group * Hkv,
            Hkv=Hkv,
            L=L,
            S=S,
            d=d,
            dv=d if number % 2 else dv,
            options=options,
            dtype=kinds[number % len(kinds)],
            optional=True,
            seed=seed * count + number + 1,
        )


def with_and_without(name: str, dtype: str) -> Iterator[tuple[Case, Case]]:
    """Yield pairs of calls that differ in one argument, and whose right results differ."""
    case = Case("plain", L=6, S=6, dtype=dtype)
    if name == "q_offset":
        options = {"is_causal": True, "window": (2, 1)}
        with_offset, without = (replace(case, options={**options, name: n}) for n in (2, 0))
        yield with_offset, without
        return
    values = [once.options[name] for once in _ONCE.values() if name in once.options]
    for value in values or [True]:  # `return_weights` and `return_lse` are not in the table `once`
        yield replace(case, options={name: value}), case


def smaller(case: Case) -> Iterator[Case]:
    """Yield versions of the call with smaller sizes, smallest first."""
    for name in ("L", "S", "d", "dv", "B", "Hq", "Hkv"):
        now = getattr(case, name)
        for size in dict.fromkeys((1, 2, now // 2, now - 1)):
            if not 0 < size < now:
                continue
            sizes = {name: size}
            if case.d == case.dv and name in ("d", "dv"):
                sizes = {"d": size, "dv": size}
            if case.L == case.S and name in ("L", "S") and {*case.options} & {*POSITIONAL}:
                sizes = {"L": size, "S": size}
            if case.Hq == case.Hkv and name in ("Hq", "Hkv"):
                sizes = {"Hq": size, "Hkv": size}
            less = replace(case, **sizes)
            if less.Hq % less.Hkv == 0 and (less.Hq > less.Hkv) == (case.Hq > case.Hkv):
                yield less

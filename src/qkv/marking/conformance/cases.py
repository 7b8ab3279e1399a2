"""The calls that judge a function: each feature, pairs of features, sizes, and random ones."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

FEATURES = (
    "plain",
    "scale",
    "grouped heads",
    "causal",
    "q_offset",
    "bool mask",
    "float mask",
    "bias",
    "window",
    "ALiBi",
    "softcap",
    "sinks",
    "lengths",
    "weights",
    "LSE",
    "half precision",
    "strides",
    "empty",
    "rows that see nothing",
    "large scores",
    "hidden NaN",
    "determinism",
    "gradient",
)
SIZES = (1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257)
Options = dict[str, Any]
LAYOUTS = ("transposed", "packed", "sliced", "every second", "fortran", "broadcast", "reversed")


@dataclass(frozen=True)
class Case:
    """One call, small enough to write down: sizes, options in words, and a seed for numbers.

    Attributes:
        feature: what it tests.
        name: what is particular about it.
        options: arguments of `qkv.attention`; arrays are drawn from what stands here.
        layout: how query, key and value stand in memory.
        spread: how large scores are.
        sign: of all scores, where all have the same one.
        constant: all values of a head are the same, so that outputs say whether weights sum to 1.
        poison: NaN stands where nothing is visible.
        optional: a function may refuse it and still be right.
        unsaid: options that hold though the function is not given them.
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
    poison: bool = False
    repeats: int = 1
    optional: bool = False
    unsaid: tuple[str, ...] = ()
    seed: int = 0

    @property
    def exact(self) -> bool:
        """Are queries and keys whole numbers, so that large scores have no rounding errors?"""
        return self.feature == "large scores"

    def packed(self) -> dict[str, Any]:
        """As JSON holds it."""
        return asdict(self)

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> Case:
        """From what `packed` gave."""
        return cls(**{**told, "unsaid": tuple(told["unsaid"])})

    def stripped(self) -> Case | None:
        """The same call without what its feature adds; None where that is not one thing."""
        own = {
            name: value
            for name, value in self.options.items()
            if self.feature not in _FEATURE_OF.get(name, ())
        }
        case = replace(self, options=own, feature="plain")
        if "q_offset" in own and not {*own} & {*_PLACED}:
            case = replace(case, options={k: v for k, v in own.items() if k != "q_offset"})
        if self.feature == "half precision":
            case = replace(case, dtype="float32")
        elif self.feature == "hidden NaN":
            case = replace(case, poison=False)
        elif self.feature == "strides":
            case = replace(case, layout="")
        elif self.feature == "grouped heads":
            case = replace(case, Hkv=self.Hq)
        elif len(own) == len(self.options) or self.feature == "gradient":
            return None
        used = [name for option in case.options for name in _FEATURE_OF.get(option, ())]
        if "attn_mask" in case.options:
            kind = str(case.options["attn_mask"]).partition(" ")[0]
            used = [name for name in used if not name.endswith("mask") or name.startswith(kind)]
        used += ["grouped heads"] if case.Hq != case.Hkv else []
        return replace(case, feature=max(used, key=FEATURES.index, default="plain"))

    def size(self) -> tuple[int, int]:
        """What makes one case smaller than another."""
        numbers = self.B * (self.Hq * self.L * (self.S + self.d) + self.Hkv * self.S * self.dv)
        return len(self.options), numbers

    def shown(self) -> str:
        """The call in a line."""
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
            words.append("NaN where nothing is visible")
        if self.spread != 1:
            words.append(f"scores times {self.spread:g}")
        return ", ".join(words)

    def fit(
        self, offered: Collection[str], aligned: str, absent: Collection[str] = ()
    ) -> Case | None:
        """This case for a function that takes these arguments; None where it has no use for it.

        Args:
            offered: the arguments.
            aligned: where its queries stand if L and S differ and it takes no `q_offset`.
            absent: features and layouts that it does not offer; "causal, L != S" is one.
        """
        kind = str(self.options.get("attn_mask", "")).partition(" ")[0]
        grouped = "grouped heads" if self.Hq != self.Hkv else ""
        apart = "causal, L != S" if "is_causal" in self.options and self.L != self.S else ""
        if {self.feature, f"{kind} mask", grouped, self.layout, apart} & {*absent}:
            return None
        options = dict(self.options)
        if options.get("q_offset") == "aligned":
            known = "q_offset" in offered
            options["q_offset"] = self.S - self.L if known or aligned == "end" else 0
            fitted = replace(self, options=options, unsaid=() if known else ("q_offset",))
        else:
            fitted = replace(self, options=options)
        needed = {*options} - {*fitted.unsaid}
        return fitted if needed <= {*offered} else None


# options whose arrays are drawn: what stands in `Case.options` is their shape in words
DRAWN = ("attn_mask", "bias", "sinks", "query_lengths", "key_lengths", "alibi_slopes", "q_offset")
_FEATURE_OF: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "scale": ("scale",),
        "is_causal": ("causal",),
        "q_offset": ("q_offset",),
        "attn_mask": ("bool mask", "float mask"),
        "bias": ("bias",),
        "window": ("window",),
        "alibi_slopes": ("ALiBi",),
        "softcap": ("softcap",),
        "sinks": ("sinks",),
        "query_lengths": ("lengths",),
        "key_lengths": ("lengths",),
        "return_weights": ("weights",),
        "return_lse": ("LSE",),
    }
)
_PLACED = ("is_causal", "window", "alibi_slopes")  # read where queries stand among keys
_ALIGNED: Mapping[str, Any] = MappingProxyType({"q_offset": "aligned"})

# each option once, as it stands in pairs; the feature that it belongs to
_ONCE: Mapping[str, tuple[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "scale": ("scale", {"scale": 0.3}),
        "grouped": ("grouped heads", {}),
        "causal": ("causal", {"is_causal": True, **_ALIGNED}),
        "bool mask": ("bool mask", {"attn_mask": "bool B1LS"}),
        "float mask": ("float mask", {"attn_mask": "float B1LS"}),
        "bias": ("bias", {"bias": "HLS"}),
        "window": ("window", {"window": (2, 1), **_ALIGNED}),
        "ALiBi": ("ALiBi", {"alibi_slopes": "H", **_ALIGNED}),
        "softcap": ("softcap", {"softcap": 1.5}),
        "sinks": ("sinks", {"sinks": "H"}),
        "key_lengths": ("lengths", {"key_lengths": "B"}),
        "query_lengths": ("lengths", {"query_lengths": "B"}),
    }
)


def structured(dtypes: Collection[str], halves: Collection[str]) -> Iterator[Case]:
    """Each feature, the simplest first, then pairs of features, in each type."""
    cases = [*_plain(), *_options(), *_places(), *_masks(), *_returned(), *_memory(), *_numbers()]
    cases += [*_pairs(), *_gradient()]
    for dtype, case in itertools.product(dtypes, cases):
        yield replace(case, dtype=dtype)
    for dtype in halves:
        yield from _half_precision(dtype)


def _plain() -> Iterator[Case]:
    yield Case("plain", "one of each", B=1, Hq=1, Hkv=1, L=1, S=1, d=1, dv=1)
    yield Case("plain", "one query, two keys", B=1, Hq=1, Hkv=1, L=1, S=2, d=2, dv=2)
    yield Case("plain", "small")
    yield Case("plain", "L < S", L=3, S=7)
    yield Case("plain", "L > S", L=7, S=3)
    yield Case("plain", "dv < d", dv=3, optional=True)
    yield Case("plain", "dv > d", dv=12, optional=True)
    for d in (1, 3, 16, 40, 64, 80, 128):
        yield Case("plain", f"d = {d}", d=d, dv=d, L=3, S=9)
    for batch, heads in ((1, 3), (3, 1), (3, 5)):
        yield Case("plain", f"B = {batch}, H = {heads}", B=batch, Hq=heads, Hkv=heads)
    for size in SIZES:
        yield Case("plain", f"S = {size}", B=1, L=4, S=size)
    for size in SIZES:
        yield Case("plain", f"L = {size}", B=1, L=size, S=5)
    for size in (8, 16, 33, 64, 129):
        yield Case("plain", f"L = S = {size}", B=1, L=size, S=size, d=16, dv=16)


def _options() -> Iterator[Case]:
    for scale in (0.3, 1.0, 2.5):
        yield Case("scale", f"scale = {scale}", options={"scale": scale})
    yield Case("scale", "scale = 0", options={"scale": 0.0}, optional=True)
    yield Case("scale", "d = 64", d=64, dv=64, options={"scale": 0.05})
    for q, k in ((4, 2), (4, 1), (6, 3), (6, 2)):
        yield Case("grouped heads", f"{q} on {k}", Hq=q, Hkv=k, L=3, S=5)
    yield Case("grouped heads", "S = 65", B=1, Hq=8, Hkv=2, L=2, S=65)
    for cap in (1.5, 0.5, 20.0):
        yield Case("softcap", f"softcap = {cap}", options={"softcap": cap}, spread=3.0)
    yield Case("softcap", "S = 65", B=1, S=65, options={"softcap": 2.0}, spread=3.0)
    for size in (5, 33, 128):
        yield Case("sinks", f"S = {size}", S=size, options={"sinks": "H"})
    yield Case("sinks", "large", options={"sinks": "H large"})
    yield Case("sinks", "several a head", options={"sinks": "H3"}, optional=True)
    for L, S in ((5, 5), (3, 7), (7, 33), (16, 64)):
        yield Case("lengths", f"keys, L = {L}, S = {S}", L=L, S=S, options={"key_lengths": "B"})
    for S in (33, 64, 257):
        yield Case("lengths", f"short, S = {S}", L=3, S=S, options={"key_lengths": "B short"})
    yield Case("lengths", "queries", L=7, S=7, options={"query_lengths": "B"})
    both = {"query_lengths": "B", "key_lengths": "B"}
    yield Case("lengths", "both", B=3, L=7, S=9, options=both)


def _places() -> Iterator[Case]:
    options: Options
    causal: Options = {"is_causal": True, **_ALIGNED}
    for size in (2, 5, 8, 16, 17, 33, 64, 65, 128):
        yield Case("causal", f"L = S = {size}", B=1, L=size, S=size, options={"is_causal": True})
    for L, S in ((1, 2), (1, 9), (3, 7), (5, 16), (16, 33), (33, 64), (3, 129)):
        yield Case("causal", f"L < S: {L}, {S}", B=1, L=L, S=S, options=causal)
    for L, S in ((2, 1), (7, 3), (33, 16)):
        yield Case("causal", f"L > S: {L}, {S}", B=1, L=L, S=S, options=causal)
    for offset in (0, 1, 2, 4, -1, 9):
        options = {"is_causal": True, "q_offset": offset}
        yield Case("q_offset", f"q_offset = {offset}", L=3, S=7, options=options)
    for word in ("start", "end", "rows"):
        options = {"is_causal": True, "q_offset": word}
        yield Case("q_offset", f"q_offset: {word}", L=3, S=7, options=options, optional=True)
    for left, right in ((1, 1), (0, 0), (3, 0), (0, 2)):
        options = {"window": (left, right)}
        yield Case("window", f"({left}, {right})", L=9, S=9, options=options)
    for window in ((2, None), (None, 1)):
        yield Case("window", f"{window}", L=9, S=9, options={"window": window}, optional=True)
    for L, S in ((3, 9), (17, 33), (2, 65)):
        yield Case("window", f"L = {L}, S = {S}", L=L, S=S, options={"window": (4, 1), **_ALIGNED})
    yield Case("window", "and causal", L=9, S=9, options={"window": (3, 0), "is_causal": True})
    for L, S in ((5, 5), (3, 7), (7, 33)):
        options = {"alibi_slopes": "H", **_ALIGNED}
        yield Case("ALiBi", f"L = {L}, S = {S}", L=L, S=S, options=options)


def _masks() -> Iterator[Case]:
    options: Options
    for kind, argument in (("bool", "attn_mask"), ("float", "attn_mask"), ("", "bias")):
        feature = f"{kind} mask" if kind else "bias"
        for shape in ("LS", "11LS", "B1LS", "BHLS"):
            options = {argument: f"{kind} {shape}".strip()}
            yield Case(feature, shape, options=options, optional=shape == "LS")
        for shape in ("11LS", "BHLS"):
            options = {argument: f"{kind} {shape}".strip()}
            yield Case(feature, f"{shape}, S = 33", L=3, S=33, options=options)
            yield Case(feature, f"{shape}, S = 64", L=17, S=64, options=options)
        for shape in ("B11S", "HLS", "1HL1", "1H11"):
            if kind == "bool" and shape[-1] == "1":
                continue
            options = {argument: f"{kind} {shape}".strip()}
            yield Case(feature, shape, L=4, S=7, options=options, optional=True)
    yield Case("float mask", "without -inf", options={"attn_mask": "float BHLS finite"})


def _returned() -> Iterator[Case]:
    for feature, flag in (("weights", "return_weights"), ("LSE", "return_lse")):
        yield Case(feature, "plain", options={flag: True})
        yield Case(feature, "L = 3, S = 65", B=1, L=3, S=65, options={flag: True})
        for name, (_, options) in _ONCE.items():
            case = _once(feature, name)
            yield replace(case, options={**options, flag: True}, optional=True)
    both = {"return_weights": True, "return_lse": True}
    yield Case("LSE", "with weights", options=both, optional=True)


def _memory() -> Iterator[Case]:
    options: Options
    for layout in LAYOUTS:
        yield Case("strides", layout, L=6, S=6, layout=layout)
    for layout in ("transposed", "every second"):
        options = {"attn_mask": "bool BHLS"}
        yield Case("strides", f"{layout}, mask", L=4, S=33, layout=layout, options=options)
    for L, S, B in ((0, 5, 2), (5, 0, 2), (0, 0, 2), (5, 5, 0)):
        yield Case("empty", f"B = {B}, L = {L}, S = {S}", B=B, L=L, S=S)
    yield Case("determinism", "small", repeats=3)
    yield Case("determinism", "L = S = 64", Hq=4, Hkv=4, L=64, S=64, repeats=3)
    yield Case("determinism", "S = 257", B=1, L=3, S=257, repeats=3)


def _numbers() -> Iterator[Case]:
    options: Options
    nothing = "rows that see nothing"
    for kind in ("bool", "float"):
        options = {"attn_mask": f"{kind} BHLS blind"}
        yield Case(nothing, f"{kind} mask", options=options)
        yield Case(nothing, f"{kind} mask, S = 65", L=3, S=65, options=options)
    options = {"is_causal": True, **_ALIGNED}
    yield Case(nothing, "causal, L > S", L=5, S=3, options=options)
    yield Case(nothing, "key_lengths of 0", L=4, S=6, options={"key_lengths": "B blind"})
    yield Case(nothing, "query_lengths", L=6, S=6, options={"query_lengths": "B"})
    yield Case(nothing, "window", L=4, S=3, options={"window": (0, 0), "q_offset": 2})
    sinks = {"sinks": "H", "attn_mask": "bool BHLS blind"}
    yield Case(nothing, "with sinks", options=sinks)
    for flag in ("return_weights", "return_lse"):
        options = {"attn_mask": "bool BHLS blind", flag: True}
        yield Case(nothing, flag, options=options, optional=True)
    for spread in (5.0, 30.0, 500.0):  # scores up to 9000
        yield Case("large scores", f"times {spread:g}", d=4, dv=4, S=9, spread=spread)
    for sign, name in ((-1, "all below 0"), (1, "all above 0")):
        yield Case("large scores", name, d=4, dv=4, S=40, spread=300.0, sign=sign)
    for spread in (2.0**17, 2.0**33, 2.0**60):  # exact in float32
        sizes: Options = {"d": 4, "dv": 4, "S": 9}
        yield Case("large scores", f"times {spread:g}", spread=spread, constant=True, **sizes)
    hiding: dict[str, Options] = {
        "bool mask": {"attn_mask": "bool B11S"},
        "float mask": {"attn_mask": "float B11S"},
        "causal": {"is_causal": True},
        "key_lengths": {"key_lengths": "B"},
        "query_lengths": {"query_lengths": "B"},
        "window": {"window": (1, 1)},
    }
    for name, options in hiding.items():
        yield Case("hidden NaN", name, L=6, S=6, options=options, poison=True)
    for name in ("attn_mask", "key_lengths"):
        options = {name: "bool B11S" if name == "attn_mask" else "B"}
        yield Case("hidden NaN", f"{name}, S = 65", L=3, S=65, options=options, poison=True)


def _half_precision(dtype: str) -> Iterator[Case]:
    one = Case("half precision", dtype, dtype=dtype, d=16, dv=16)
    yield one
    for S in (9, 33, 128, 257):
        yield replace(one, name=f"{dtype}, S = {S}", B=1, L=4, S=S)
    yield replace(one, name=f"{dtype}, d = 64", L=17, S=17, d=64, dv=64)
    yield replace(one, name=f"{dtype}, 3000 equal scores", B=1, L=2, S=3000, spread=0.0)
    for name, (feature, options) in _ONCE.items():
        case = _once("half precision", name)
        yield replace(case, name=f"{dtype}, {feature}", options=options, dtype=dtype, optional=True)


def _once(feature: str, name: str, **sizes: Any) -> Case:
    heads = {"Hq": 4} if name == "grouped" else {}
    return Case(feature, name, **{"L": 4, "S": 7, **heads, **sizes})


def _pairs() -> Iterator[Case]:
    """Two options together, which is a case of the one that stands later in the formula."""
    options: Options
    for one, other in itertools.combinations(_ONCE, 2):
        options = {**_ONCE[one][1], **_ONCE[other][1]}
        if {*_ONCE[one][1]} & {*_ONCE[other][1]} - {"q_offset"}:
            continue  # two masks
        feature = max(_ONCE[one][0], _ONCE[other][0], key=FEATURES.index)
        sizes: Options = {"Hq": 4} if "grouped" in (one, other) else {}
        name = f"{one} and {other}"
        yield Case(feature, name, L=4, S=7, options=options, optional=True, **sizes)


def _gradient() -> Iterator[Case]:
    yield Case("gradient", "small")
    yield Case("gradient", "L = 3, S = 7", L=3, S=7)
    yield Case("gradient", "dv < d", dv=3, optional=True)
    for size in (33, 64, 129):
        yield Case("gradient", f"S = {size}", B=1, L=17, S=size, d=16, dv=16)
    for name, (feature, options) in _ONCE.items():
        yield replace(_once("gradient", name), name=feature, options=options, optional=True)
    both = {"is_causal": True, "softcap": 1.5}
    yield Case("gradient", "causal and softcap", L=9, S=9, options=both, optional=True)


def random(seed: int, count: int, dtypes: Collection[str]) -> Iterator[Case]:
    """Cases of any sizes with any options together."""
    rng = np.random.default_rng(seed)
    kinds = [*dtypes]
    for number in range(count):
        names = [name for name in _ONCE if rng.random() < 0.25]
        options: dict[str, Any] = {}
        for name in names:
            if not {*_ONCE[name][1]} & {*options} - {"q_offset"}:
                options |= _ONCE[name][1]
        features = [_ONCE[name][0] for name in names] or ["plain"]
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


def smaller(case: Case) -> Iterator[Case]:
    """The same call with less of something, the boldest first."""
    for name in ("L", "S", "d", "dv", "B", "Hq", "Hkv"):
        now = getattr(case, name)
        for size in dict.fromkeys((1, 2, now // 2, now - 1)):
            if not 0 < size < now:
                continue
            sizes = {name: size}
            if case.d == case.dv and name in ("d", "dv"):
                sizes = {"d": size, "dv": size}
            if case.L == case.S and name in ("L", "S") and {*case.options} & {*_PLACED}:
                sizes = {"L": size, "S": size}
            if case.Hq == case.Hkv and name in ("Hq", "Hkv"):
                sizes = {"Hq": size, "Hkv": size}
            one = replace(case, **sizes)
            if one.Hq % one.Hkv == 0 and (one.Hq > one.Hkv) == (case.Hq > case.Hkv):
                yield one

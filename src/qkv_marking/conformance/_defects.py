"""The known defects of kernels: lines of Python that replace lines of the formula."""

import functools
import tomllib
from collections.abc import Collection, Iterator, Mapping
from importlib.resources import files
from textwrap import indent
from types import MappingProxyType
from typing import Any, NamedTuple

from qkv_marking._formula import Lines
from qkv_marking.conformance._reference import GRADIENT, LINES, Expected, run

_ALL = MappingProxyType(LINES | GRADIENT)
# results to which a defect may be limited, as `Defect.only` names them
_RESULTS = MappingProxyType(
    {
        "out": "the output",
        "weights": "the returned weights",
        "lse": "the LSE",
        "d_query": "the gradient of queries",
        "d_key": "the gradient of keys",
        "d_value": "the gradient of values",
    }
)
_GRADIENTS = ("d_query", "d_key", "d_value")
# lines of a backward pass that recomputes the weights of a right forward pass
_AGAIN = MappingProxyType(
    {"weights": "w = np.where(seen, np.exp(s - given.lse[..., None]), 0)", "out": "out = given.out"}
)
# For lines that set a variable, the other lines that use it, in groups: a kernel may compute the
# variable anew for each group.
_USES = MappingProxyType(
    {
        "factor": {
            "the gradient of queries": ("d_query",),
            "the gradient of keys": ("d_key",),
            "the gradients of queries and keys": ("d_query", "d_key"),
        },
        "position": {
            "ALiBi": ("alibi",),
            "the causal mask": ("causal",),
            "the window": ("left", "right"),
        },
    }
)
# rules that mask keys, and their lines
_RULES = MappingProxyType(
    {
        "key_lengths": ("key_lengths",),
        "the causal mask": ("causal",),
        "the window": ("left", "right"),
        "the bool mask": ("allowed",),
    }
)
# arrays with a number for each head or batch, and masks, by line
_MASK = MappingProxyType({"allowed": "allowed", "added": "added"})
_ARRAYS: Mapping[str, Mapping[str, Lines]] = MappingProxyType(
    {
        "HEADS": {
            "the ALiBi slope": {"alibi": "slopes"},
            "the mask": _MASK,
            "the bias": {"bias": "bias"},
            "the sinks": {"sink top": "sinks"},
        },
        "BATCHES": {
            "the q_offset": {"position": "q_offset"},
            "the mask": _MASK,
            "the bias": {"bias": "bias"},
            "the key length": {"key_lengths": "key_lengths"},
            "the query length": {"query_lengths": "query_lengths"},
        },
        "MASKS": {"the mask": _MASK, "the bias": {"bias": "bias"}},
    }
)


class Defect(NamedTuple):
    """A known defect of real kernels.

    Attributes:
        key: the short name of the defect.
        says: the defect as text, such as "the kernel ignored softcap".
        lines: replacements for lines of the formula, keyed by the name of the line.
        number: a number in the lines, such as a tile size, or None.
        rough: whether the formula predicts the size of the errors, but not the exact outputs. The
            exact outputs of such a defect depend on the order of summation.
        vague: words that replace the number if several numbers give the same results.
        when: the condition, in words, under which the kernel has the defect; "" for always.
        features: the features for which the defect is typical.
        condition: the condition as an expression, such as `L == 1`, or "".
        base: for a defect with a condition, the same defect without the condition.
        only: the results that have the defect, such as `("lse",)`; () for all. "again" means that
            the forward pass is right, and that the backward pass recomputes the weights from the
            right LSE with the defect.
    """

    key: str
    says: str
    lines: Lines
    number: float | None = None
    rough: bool = False
    vague: str = ""
    when: str = ""
    features: tuple[str, ...] = ()
    condition: str = ""
    base: "Defect | None" = None
    only: tuple[str, ...] = ()

    def __hash__(self) -> int:
        return hash((self.key, self.number, self.only))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Defect) and (
            (self.key, self.number, self.only) == (other.key, other.number, other.only)
        )

    def run(
        self, values: Mapping[str, Any], beside: Lines | None = None, others: Expected | None = None
    ) -> Expected:
        """Run the formula; this defect and `beside` replace some of its lines.

        `others` are the results for a defect that only some results have; by default, they are the
        results of the formula without this defect.
        """
        lines = {**(beside or {}), **self.filled}
        if not self.only:
            return run(values, lines)
        others = others or run(values, beside)
        if "again" in self.only:
            values, lines = {**values, "given": others}, {**lines, **_AGAIN}
        found = run(values, lines)
        return others._replace(
            **{name: getattr(found, name) for name in self.only if name != "again"}
        )

    def limit(self, only: tuple[str, ...]) -> "Defect":
        """Return the same defect, limited to these results."""
        names = [name for name in only if name != "again"]
        where = " and ".join(_RESULTS[name] for name in names)
        if "again" in only:
            where = f" for {where}" if len(names) < len(_GRADIENTS) else ""
            where = f"the weights that the backward pass recomputes{where}"
        features = (*self.features, *["gradient"] * (only[0] in _GRADIENTS))
        return self._replace(says=f"{self.says}, but only in {where}", only=only, features=features)

    @property
    def filled(self) -> dict[str, str]:
        """The lines, with the placeholder NUMBER replaced by `number`."""
        number = "" if self.number is None else f"{self.number:.9g}"
        return {name: line.replace("NUMBER", number) for name, line in self.lines.items()}

    def words(self, values: Mapping[str, Any]) -> str:
        """Return the text `says` with the numbers of a case filled in.

        Args:
            values: the values of the case; `values["S"]` is the number of keys.
        """
        if self.number is None:
            return self.says
        tile = int(self.number) if self.number >= 1 else 1
        rest = values["S"] % tile
        few = f"the last {rest} keys" if rest > 1 else "the last key"
        return self.says.format(number=f"{self.number:g}", few=few)


# the feature of which a defect is typical that replaces only these lines
_TYPICAL = MappingProxyType(
    {"left": "window", "right": "window", "alibi": "ALiBi"} | dict.fromkeys(GRADIENT, "gradient")
)


def _typical(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the features of which a defect is typical."""
    default = {_TYPICAL.get(line, "") for line in row["lines"]}
    return tuple(row.get("features", default if len(default) == 1 and "" not in default else ()))


def limits(defect: Defect, names: Collection[str], wrong: tuple[str, ...]) -> Iterator[Defect]:
    """Yield the defect, limited to the results in `wrong`; `names` lists all results."""
    if len(wrong) < len(names):
        yield defect.limit(wrong)
    if wrong[0] in _GRADIENTS and not defect.lines.keys() & _AGAIN.keys():
        yield defect.limit(("again", *wrong))


def _rows(key: str, row: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield a row of the table; if it has a placeholder for a rule or array, yield several rows."""
    kind = next(iter(row["lines"]))
    if kind in _ARRAYS:
        for words, arrays in _ARRAYS[kind].items():
            says, index = row["says"].replace("{array}", words), row["lines"][kind]
            other = index if kind == "MASKS" else f"of_{kind.lower()}(MASK, {index})"
            lines = {
                line: f"if {name} is not None: {name} = {other.replace('MASK', name)}\n"
                + LINES[line]
                for line, name in arrays.items()
            }
            features = {"features": ("q_offset",)} if "position" in lines else {}
            yield (
                f"{key}-of-{next(iter(arrays.values()))}",
                {**row, "says": says, "lines": lines, **features},
            )
        return
    if kind == "SIDE":
        for side, other in (("left", "right"), ("right", "left")):
            line = row["lines"][kind].replace("SIDE", side).replace("OTHER", other)
            says = row["says"].replace("{side}", side)
            yield f"{key}-{side}", {"says": says, "lines": {"left": f"{line}\n{LINES['left']}"}}
        return
    if "RULE" not in row["lines"]:
        yield key, row
        return
    for words, names in _RULES.items():
        rules = [LINES[name].split("#")[0].strip() for name in names]
        given = [rule.removeprefix("if ").partition(":")[0] for rule in rules]
        seen = [rule.partition("seen & ")[2] for rule in rules]
        seen = [f"({a} if {b} else True)" for a, b in zip(seen, given, strict=True)]
        rest = {name: line for name, line in row["lines"].items() if name != "RULE"}
        lines = {**rest, names[0]: row["lines"]["RULE"], **dict.fromkeys(names[1:], "pass")}
        for name, text in (("GIVEN", " or ".join(given)), ("SEEN", " & ".join(seen))):
            lines = {at: line.replace(name, f"({text})") for at, line in lines.items()}
        yield (
            f"{key}-{names[0]}",
            {**row, "says": row["says"].replace("{rule}", words), "lines": lines},
        )


def _in_one_use(defect: Defect) -> Iterator[Defect]:
    """Yield a defect of a variable, such as the scale, as a defect of one use of the variable."""
    name = next(iter(defect.lines))
    if len(defect.lines) > 1 or name not in _USES or defect.rough:
        return
    for words, uses in _USES[name].items():
        lines = {
            use: f"kept = {name}\n{defect.lines[name]}\n{_ALL[use]}\n{name} = kept" for use in uses
        }
        yield defect._replace(
            key=f"{defect.key}-{'-'.join(uses)}",
            says=f"{defect.says} in {words}",
            lines=lines,
            features=_typical({"lines": lines}),
        )


@functools.cache
def _table() -> Mapping[str, Any]:
    return tomllib.loads(files(__package__).joinpath("defects.toml").read_text("utf-8"))


@functools.cache
def defects() -> tuple[Defect, ...]:
    """Return all known defects without conditions, most common first."""
    table = {key: row for key, row in _table().items() if key != "when"}
    for key, row in table.items():
        if unknown := row["lines"].keys() - {*LINES, *GRADIENT, "RULE", "SIDE", *_ARRAYS}:
            raise KeyError(f"defects.toml: {key} replaces lines that do not exist: {unknown}")
    found = [
        Defect(
            *(key, row["says"], row["lines"], number, row.get("rough", False)),
            *(row.get("vague", ""), "", _typical(row)),
        )
        for name, either in table.items()
        for key, row in _rows(name, either)
        for number in row.get("numbers", [None])
    ]
    return (*found, *(one for defect in found for one in _in_one_use(defect)))


@functools.cache
def conditions() -> Mapping[str, str]:
    """Return conditions under which kernels have a defect: expressions, keyed by words."""
    return MappingProxyType(_table()["when"])


def under(defect: Defect, *names: str) -> Defect:
    """Return a defect that the kernel has only under these conditions, keys of `conditions()`."""
    condition = " and ".join(f"({conditions()[name]})" for name in names)
    lines = {
        name: f"if {condition}:\n{indent(line, '    ')}\nelse:\n{indent(_ALL[name], '    ')}"
        for name, line in defect.lines.items()
    }
    when = " and ".join([names[0], *(name.removeprefix("in calls ") for name in names[1:])])
    key, says = f"{defect.key} {when}", f"{defect.says} {when}"
    return Defect(
        *(key, says, lines, defect.number, defect.rough, defect.vague, when),
        features=_typical({"lines": defect.lines}),
        condition=condition,
        base=defect,
        only=defect.only,
    )

"""Call a learner's attention function with the options that it accepts."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from qkv.marking.outcome import Outcome, is_number, name_of, outcome
from qkv.marking.tasks.attention.steps import NAMES, Case, answer

# the parameter names that learners use for each option
OPTIONS = {
    "mask": ("mask", "attn_mask", "attention_mask"),
    "causal": ("is_causal", "causal"),
    "q_offset": ("q_offset",),
    "heads": ("num_heads", "n_heads", "heads"),
    "output": ("w_o", "W_o", "W_O", "wo", "w_out"),
}


@dataclass(frozen=True)
class Learner:
    """A learner's function, and how to call it.

    Attributes:
        function: the function.
        name: its name.
        options: the parameter name of each option that the function takes, keyed by option.
        needed: the options without a default.
        positional: the positional-only parameters.
        unmasked: the value that fills a required mask in tests without a mask.
        per_key: whether a required mask has the shape (S,) instead of (L, S).
        weights_first: whether the function returns the weights before the output.
        rank: the number of dimensions of an array; 3 or 4 if the function takes only batches.
        adds_mask: whether the function takes a mask of 0 and -inf.
        number_as_mask: whether the default of the mask parameter is a number.
    """

    function: Callable[..., Any]
    name: str
    options: dict[str, str] = field(default_factory=dict)
    needed: frozenset[str] = frozenset()
    positional: tuple[inspect.Parameter, ...] = ()
    unmasked: bool | float = True
    per_key: bool = False
    weights_first: bool = False
    rank: int = 2
    adds_mask: bool = False
    number_as_mask: bool = False

    def __call__(self, case: Case) -> Outcome:
        """Run the function on a copy of the case, and return the result or the error."""
        case = case.at_rank(self.rank)
        if self.adds_mask:
            case = case.with_added_mask()
        run = outcome(case, self._returned, answer(case).out, beside=True)
        if self.weights_first:
            run = replace(run, out=run.second, second=run.out)
        return run

    def refused(self, case: Case) -> Outcome:
        """Run the function on a case for which it should raise an error."""
        return outcome(case.at_rank(self.rank), self._returned, np.zeros(0), beside=True)

    def _returned(self, case: Case) -> Any:
        """Call the function with the arrays and options of a case."""
        keywords = self._keywords(case)
        positional = [keywords.pop(p.name, p.default) for p in self.positional]
        return self.function(*case.arrays.values(), *positional, **keywords)

    def _keywords(self, case: Case) -> dict[str, Any]:
        """Return the options of a case, keyed by the function's parameter names."""
        options = {option: getattr(case, option) for option in self.options}
        if case.mask is not None:
            options["mask"] = case.mask
        elif "mask" in self.needed:
            queries = next(iter(case.arrays.values()))
            keys = case.arrays.get("key", queries)
            before = queries.shape[: -2 if self.per_key else -1]
            options["mask"] = np.full((*before, keys.shape[-2]), self.unmasked)
        if "output" in self.needed and case.output is None:
            options["output"] = np.eye(case.arrays["w_v"].shape[-1])  # the identity
        if "q_offset" in self.needed:
            options["q_offset"] = case.q_offset or 0
        return {
            name: options[option]
            for option, name in self.options.items()
            if options[option] is not None
        }


def learner(function: Callable[..., Any], signature: str) -> Learner:
    """Read a function's parameters.

    Raises:
        TypeError: the function cannot be called with the arrays of this signature.
    """
    names = NAMES[signature]
    name = name_of(function)
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:  # some builtins have no signature
        return Learner(function, name)
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    several = [p for p in parameters if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    rest = [p for p in parameters if p not in (*positional[: len(names)], *several)]
    takes_any = any(p.kind is p.VAR_POSITIONAL for p in several)
    options = {option: p.name for option, known in OPTIONS.items() for p in rest if p.name in known}
    needed = {p.name for p in rest if p.default is p.empty}
    if needed - {*options.values()} or (len(positional) < len(names) and not takes_any):
        other = next(s for s in NAMES if s != signature)
        raise TypeError(
            f'check: signature "{signature}" calls {name}({", ".join(names)}), but the function is'
            f" {name}({', '.join(p.name for p in parameters)}): give further parameters a default,"
            f' or pass signature="{other}"'
        )
    return Learner(
        function,
        name,
        options,
        frozenset(option for option, p in options.items() if p in needed),
        tuple(p for p in rest if p.kind == p.POSITIONAL_ONLY),
        number_as_mask=any(is_number(p.default) for p in rest if p.name == options.get("mask")),
    )

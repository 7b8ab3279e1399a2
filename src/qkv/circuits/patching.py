"""Two runs that patches are about, and patches to first order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from qkv.arrays import Array, shown
from qkv.circuits.checks import Logit, check_logit, check_words
from qkv.circuits.results import Result, words_of
from qkv.models.model import Model, handed_on
from qkv.trace import Trace
from qkv.trace.activations import short_name

PLACES = ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out")
HEADS = ("z", "pattern", "q", "k", "v")
TOKENS = 2**11  # that are run at once, or one text

# (place, token), (place, token, other token), or a function of logits (1, T, V) to a number.
Metric = Callable[[Array], Any] | tuple[Any, ...]


def attribution_patch(
    model: Model,
    clean: Any,
    corrupted: Any,
    *,
    at: str,
    metric: tuple[Any, ...],
    normalize: bool = False,
) -> Result:
    """Attribution patching: what `patch` gives, to first order, by one backward pass for all.

    Each activation's difference between the runs times the metric's gradient for it, in the run of
    `corrupted`. It is good where the change is small, and worst for whole vectors ("resid_pre") of
    early layers: `np.corrcoef` with `patch` on one pair of texts says how far to trust it.

    Args:
        model: as for `patch`, in float32 or float64.
        clean: as for `patch`, and so are all that follow.
        corrupted: the same.
        at: the same.
        metric: (place, token) or (place, token, other token); a function has no gradient here.
        normalize: the same.

    Returns:
        As `patch`.

    Raises:
        TypeError: as for `patch`; the metric is a function, or the model is in half precision.
        ValueError: as for `patch`.

    Source:
        Nanda 2023, "Attribution Patching: Activation Patching At Industrial Scale".

    >>> import qkv
    >>> from qkv.circuits import patch
    >>> model = qkv.load("books-decoder")
    >>> texts = "queen: a female", "king: a female"
    >>> about = {"at": "z", "metric": (-1, 7)}
    >>> one, other = patch(model, *texts, **about), attribution_patch(model, *texts, **about)
    >>> one.shape == other.shape, bool(np.corrcoef(one.ravel(), other.ravel())[0, 1] > 0.5)
    (True, True)
    """
    if callable(metric):
        raise TypeError(
            "attribution_patch: metric is a function, which has no gradient here: give (place, "
            "token) or (place, token, other token), or call patch"
        )
    pair = pair_of(model, clean, corrupted, at, metric, "attribution_patch")
    names = [(at, layer) for layer in range(pair.model.num_layers)]
    gradients = pair.model.gradient(pair.corrupted.ids, of=metric, at=names)
    found = np.array([_first_order(pair, *name, gradients[name][0]) for name in names])
    found += pair.low
    return pair.result(found, "Attribution patching", normalize)


@dataclass(frozen=True)
class Pair:
    """Both runs, and the number that is asked for."""

    model: Model
    at: str
    clean: Trace
    corrupted: Trace
    metric: Logit | Callable[[Array], Any]
    call: str
    which: str = ""  # what errors add where there are several

    @cached_property
    def low(self) -> float:
        """What the metric is in the run of `corrupted`."""
        return self._of(self.corrupted)

    def normalized(self, found: Array) -> Array:
        """The same with 0 for what `corrupted` gives and 1 for what `clean` does."""
        low, high = self.low, self._of(self.clean)
        if low == high or not np.isfinite(high - low):
            raise ValueError(
                f"{self.call}: metric{self.which} is {low:.6g} for corrupted and {high:.6g} for "
                "clean, so there is nothing to normalize by: leave normalize out, or take another "
                "metric"
            )
        shares: Array = (found - low) / (high - low)
        return shares

    @property
    def words(self) -> dict[str, list[str]]:
        """The tokens of both texts, those that differ side by side."""
        one, other = map(words_of, (self.clean, self.corrupted))
        return {"token": [a if a == b else f"{a}/{b}" for a, b in zip(one, other, strict=True)]}

    def result(self, found: Array, name: str, normalize: bool) -> Result:
        """The numbers of all layers with the names of their axes."""
        return Result(
            self.normalized(found) if normalize else found,
            ("layer", "token" if self.at in PLACES else "kv_head" if self.at in "kv" else "head"),
            of="share restored" if normalize else "metric",
            title=f"{name} of {self.at}",
            words=self.words,
            ground=0.0 if normalize else self.low,
        )

    def given(self, layer: int) -> Array:
        """What a layer is given in the run of `corrupted`, (T, D), or what the last one gives."""
        return self.handed(self.corrupted, layer)

    def both(self, layer: int) -> tuple[Array, Array]:
        """The activation of a layer in the run of `clean` and in that of `corrupted`."""
        one, other = self.clean[self.at, layer][0], self.corrupted[self.at, layer][0]
        return one, other

    def values(self, resid: Array) -> Array:
        """The metric (n,) of texts whose last layer hands on these vectors, (n, T, D)."""
        if isinstance(self.metric, Logit):
            return self.metric.of(self.model.unembed(resid[:, self.metric.place]))
        return np.array([self._number(self.model.unembed(text[None])) for text in resid])

    def _of(self, trace: Trace) -> float:
        return float(self.values(self.handed(trace, self.model.num_layers)[None])[0])

    def handed(self, trace: Trace, layer: int) -> Array:
        """What a layer is given in a run, (T, D), or what the last one gives."""
        count = self.model.num_layers
        name = ("resid_pre", layer) if layer < count else handed_on(self.model, count - 1)[0]
        found: Array = trace[name][0]
        return found

    def _number(self, logits: Array) -> float:
        """What a function says of logits (1, T, V)."""
        assert not isinstance(self.metric, Logit)
        found = np.asarray(self.metric(logits))
        if found.shape:
            raise ValueError(
                f"{self.call}: metric gave an array {found.shape} of logits {logits.shape}: give "
                "one number"
            )
        if found.dtype.kind not in "fiub":
            raise TypeError(f"{self.call}: metric gave {shown(found.item())}: give one number")
        return float(found)


def pair_of(
    model: Any,
    clean: Any,
    corrupted: Any,
    at: Any,
    metric: Any,
    call: str,
    *,
    sites: Sequence[str] = (*PLACES, *HEADS),
    which: str = "",
) -> Pair:
    """Both texts run, once all of it fits."""
    model = check_words(model, call)
    if at not in sites:
        raise ValueError(f"{call}: at is {shown(at)}: choose among {', '.join(sites)}")
    if any(not any(short_name(hook) == at for hook in layer.hooks) for layer in model.layers):
        raise ValueError(f"{call}: at is {at!r}, and a layer of {model.name} has none")
    last = handed_on(model, model.num_layers - 1)[0]
    layers = range(model.num_layers)
    names = [(part, layer) for part in ("resid_pre", at) for layer in layers]
    runs = []
    for name, text in (("clean", clean), ("corrupted", corrupted)):
        trace = model.trace(text, names=[*dict.fromkeys(names), last])
        if len(trace) > 1:
            raise ValueError(f"{call}: {name} is {len(trace)} texts: give one")
        runs.append(trace[0])
    one, other = (len(trace.ids) for trace in runs)
    if one != other:
        raise ValueError(
            f"{call}: clean{which} has {one} tokens and corrupted {other}: what is put in stands "
            "at the same place in both, so give texts of as many tokens"
        )
    chosen = metric if callable(metric) else check_logit(metric, model, one, call, f"metric{which}")
    return Pair(model, at, runs[0], runs[1], chosen, call, which)


def _first_order(pair: Pair, at: str, layer: int, gradient: Array) -> Array:
    """How far the metric changes with each place or head put in, to first order."""
    clean, corrupted = (array.astype(np.float64) for array in pair.both(layer))
    each = (clean - corrupted) * gradient  # (T, ...), or (Hq, T, T)
    each = np.moveaxis(each, 1, 0) if at in HEADS and at != "pattern" else each
    found: Array = each.reshape(len(each), -1).sum(-1)
    return found

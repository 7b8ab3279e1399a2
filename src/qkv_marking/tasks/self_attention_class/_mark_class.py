"""Mark a layer class: build layers, read their weights, and compare outputs with the formula."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv_marking._engine import Group, Marking, explain, generator, per_seed
from qkv_marking._errors import WrongParameters
from qkv_marking._findings import Symptom, nothing_done, raises
from qkv_marking._mistake import Function, Mistake
from qkv_marking._outcome import RAISED, Outcome, differ, name_of, outcome
from qkv_marking.tasks._table import Table
from qkv_marking.tasks._task import make_task
from qkv_marking.tasks.attention.attention_tasks import (
    ONE_AT_A_TIME,
    adds_its_mask,
    is_made_for_numbers,
)
from qkv_marking.tasks.attention.mistakes import BATCHES, CAUSAL, EMPTY, HIDING, LARGE, MASK
from qkv_marking.tasks.attention.symptoms import large_scores, second_output
from qkv_marking.tasks.self_attention_class import layers as steps
from qkv_marking.tasks.self_attention_class.layers import LayerCall, Layers

_TEXTS = Table(__package__, "mark_class")
# minimum and maximum of the ratio size(queries) / size(words); torch's layer has the ratio 0.6
_SMALL, _LARGE = 0.5, 2.0
_MEAN = 0.3  # the largest mean of a matrix, relative to its root mean square
# tokens, embed_dim, num_heads
_SIZES = ((2, 2, 1), (2, 4, 2), (3, 6, 3), (2, 5, 1))

# every word sees at least one word, even if a layer inverts the mask
_SOME = (
    np.array([[True, False], [False, True]]),
    np.array([[True, False, True], [True, True, False], [True, False, False]]),
)
_NOTHING = np.array([[True, True], [False, False]])


def _words(seed: int, *shape: int) -> Array:
    """Draw multiples of 1/2 between -2 and 2."""
    return generator(seed).integers(-4, 5, shape) / 2


@dataclass(frozen=True)
class _Inputs:
    """The inputs for layers.

    Attributes:
        cases: the usual cases, smallest first.
        one_word: a text of one word, which attends only to itself.
        uneven: a case in which the number of heads does not divide the width.
        batch: the word vectors of two texts.
        wide: a case with wide word vectors, which shows whether the weights are scaled.
    """

    cases: list[LayerCall]
    one_word: LayerCall
    uneven: LayerCall
    batch: Array
    wide: LayerCall


@per_seed
def _inputs() -> _Inputs:
    return _Inputs(
        [LayerCall(_words(seed, t, width), heads) for seed, (t, width, heads) in enumerate(_SIZES)],
        LayerCall(_words(6, 1, 4), 2),
        LayerCall(_words(9, 2, 5), 2),
        _words(7, 2, 2, 4),
        LayerCall(_words(8, 2, 64), 8),
    )


@dataclass(frozen=True)
class _LayerFinding(Symptom):
    """A finding about a layer; its example contains the wrong output, but no right output."""

    def example(self) -> dict[str, Any]:
        """Return the layer, its words and its output."""
        return {name: it for name, it in super().example().items() if name != "right"}


def _of_layer(name: str, run: Outcome, more: Mapping[str, Any] | None = None) -> Symptom:
    """Return a finding: the mistake with this name, and the call `run` that shows the mistake."""
    return _LayerFinding(**vars(_TEXTS.mistake(name)), run=run, more=more or {})


def _ways(layers: Layers, cases: list[LayerCall]) -> dict[bool, list[LayerCall]]:
    """Copy all cases for each order of a matrix's axes; the copies contain the layer's weights.

    In the result, False is the key of the copies whose matrices are read as (in, out), and True is
    the key for (out, in). An order is omitted if the weights cannot be read in this order.
    """
    ways = {}
    for flipped in (False, True):
        weighed = [layers.add_weights(case, flipped) for case in cases]
        if None not in weighed:
            ways[flipped] = [case for case in weighed if case is not None]
    return ways


def _mark(built: Function) -> Marking:
    """Test a class."""
    layers = Layers(built)

    def run(case: LayerCall) -> Outcome:
        return outcome(case, layers, steps.compute(case, steps.RIGHT), beside=True)

    m = Marking(
        "self-attention-class",
        name_of(built),
        run,
        steps.compute,
        steps.RIGHT,
        returns="return out  # (T, embed_dim)",
    )
    m.varied = ("x",)  # the other fields of a case are read from the layer
    first = run(_inputs().cases[0])
    if isinstance(first.error, WrongParameters):
        raise first.error  # the call requires an argument that the marker does not know
    if first.error is not None:
        layers.batched = True
        if run(_inputs().cases[0]).error is None:
            m.limits.append("It takes only batches (B, T, D), not a single text (T, D).")
        else:
            layers.batched = False
            if _is_called(layers):
                m.find(_LayerFinding(**vars(raises(first, "one head"))))
            else:
                m.find(_of_layer("class-not-called", first))
            m.steps = None
            return m
    first, again = run(_inputs().cases[1]), run(_inputs().cases[1])
    if differ(first.out, again.out):
        more = {"yours the second time": again.out}
        m.find(_of_layer("class-weights-per-call", first, more))
    elif first.error is None:
        m.first_call(_inputs().cases[1])
    if m.wrong:
        return m
    ways = _ways(layers, _inputs().cases)
    if ways:
        _by_weights(m, layers, *_best(m, ways))
    else:
        _by_symmetries(m)
    if m.steps is not None:
        _as_asked(m, layers)
    return m


def _as_asked(m: Marking, layers: Layers) -> None:
    """Check that layers are callable, that seeds have an effect, and that wrong sizes fail."""
    if not _is_called(layers):
        m.find(_of_layer("class-not-called", m.call(_inputs().cases[0])))
    if not m.wrong:
        m.find(_ignored_seed(m, layers))
        m.find(_check_scale(layers))
    m.find(_not_refused(m, layers))


def _is_called(layers: Layers) -> bool:
    """Return whether a layer itself is callable; a method `forward` is not enough."""
    try:
        return callable(layers.of(_inputs().cases[0]))
    except RAISED:
        return True  # no layer can be built


def _ignored_seed(m: Marking, layers: Layers) -> Symptom | None:
    """Check that equal seeds give equal layers, and different seeds give different layers."""
    if "seed" not in layers.when_built:
        m.untried.append("seed")
        return None
    m.tried.append("seeds")

    def try_seed(seed: int) -> Outcome:
        def call(case: LayerCall) -> Any:
            return layers.run_with_seed(case, seed)

        return outcome(_inputs().cases[1], call, np.zeros(0), beside=True)

    one, again, other = try_seed(1), try_seed(1), try_seed(2)
    for run in (one, other):
        if run.error is not None:
            return _LayerFinding(**vars(raises(run, "a seed")))
    if differ(one.out, again.out):
        return _of_layer("class-seed-unused", one, {"yours with the same seed": again.out})
    if not differ(one.out, other.out):
        return _of_layer("class-seed-ignored", one, {"yours with another seed": other.out})
    return None


def _best(m: Marking, ways: dict[bool, list[LayerCall]]) -> tuple[bool, list[LayerCall]]:
    """Choose the order of the weights' axes for which the outputs can be explained.

    First look for an order for which the outputs are correct. If there is none, look for an order
    for which one known mistake explains the outputs.
    """
    fitting = {way: cases for way, cases in ways.items() if not any(map(_clashes, cases))}
    if not fitting:
        return next(iter(ways.items()))
    for known in ((), *([one] for one in steps.KNOWN)):
        for way, cases in fitting.items():
            if explain(m.run(cases), steps.RIGHT, known, steps.compute) is not None:
                return way, cases
    return next(iter(fitting.items()))


def _clashes(case: LayerCall) -> bool:
    """Return whether the joined heads and W_O have different sizes."""
    w = case.matrices or {}
    return bool(len(w["o"]) != w["v"].shape[1])


def _by_weights(m: Marking, layers: Layers, flipped: bool, cases: list[LayerCall]) -> None:
    """Compare the output with the formula for the layer's weights, and check the weights."""
    clashing = next((case for case in cases if _clashes(case)), None)
    if clashing is not None:
        _output_size(m, layers, cases, clashing)
        return
    alone = layers.add_weights(_inputs().one_word, flipped)
    m.of_weight_one = [] if alone is None else [alone]
    m.test(Group("one head and several", cases, steps.KNOWN))
    if m.steps is None:
        return
    for mistake in _of_weights(layers, cases[1]):
        m.find(_LayerFinding(**vars(mistake), run=m.call(cases[1])))
    beside = [replace(run, case=steps.as_attention(run.case)) for run in m.runs]
    m.find(second_output(beside))
    larger = [replace(case, x=case.x * 1e4) for case in cases]
    m.test(Group("scores beyond a million", larger, LARGE, large_scores))
    batch = replace(cases[1], x=_inputs().batch)
    run = m.call(batch)
    if layers.batched or run.is_right:
        m.test(Group("a batch", [batch], BATCHES))
    else:
        m.limits.append(ONE_AT_A_TIME)
    _try_masks(m, layers, cases[1:3], flipped)


def _try_masks(m: Marking, layers: Layers, cases: list[LayerCall], flipped: bool) -> None:
    """Test a mask and a causal mask, and record the masks that the layer rejects.

    Args:
        m: the marking. `m.steps` already gives the layer's outputs for calls without a mask.
        layers: the layers.
        cases: two cases with several heads and known weights.
        flipped: whether the weights are (out, in).
    """
    options, _ = layers.takes(cases[0])
    if "mask" in options:
        masked = [replace(case, mask=mask) for case, mask in zip(cases, _SOME, strict=True)]
        _try_mask(m, layers, masked, replace(cases[0], mask=_NOTHING))
    else:
        m.untried.append("mask")
    if "causal" not in options and "causal" not in layers.when_built:
        m.untried.append("is_causal")
        return
    causal = [layers.add_weights(replace(case, causal=True), flipped) for case in cases]
    there = [case for case in causal if case is not None]
    m.test(Group("a causal mask", there, (*CAUSAL, *HIDING, *EMPTY)))


def _try_mask(m: Marking, layers: Layers, cases: list[LayerCall], nothing: LayerCall) -> None:
    """Test boolean masks, or masks of 0 and -inf if the layer seems to expect numbers."""
    known = (*MASK, *HIDING)
    as_bool = m.run(cases)
    layers.adds_mask = True
    for_numbers = layers.number_as_mask(nothing) or is_made_for_numbers(m.call(nothing))
    layers.adds_mask = adds_its_mask(m, (as_bool, m.run(cases)), known, for_numbers)
    before = len(m.limits)
    m.test(Group("a mask", cases, known, may_refuse=True))
    if len(m.limits) == before:  # the layer accepted the mask
        m.test(Group("a row masked out", [nothing], EMPTY, may_refuse=True))


def _output_size(m: Marking, layers: Layers, cases: list[LayerCall], clashing: LayerCall) -> None:
    """Test the cases whose W_O fits the joined heads; then report a case whose W_O does not fit."""
    fitting = [case for case in cases if not _clashes(case)]
    if fitting:
        m.test(Group("one head", fitting, steps.KNOWN))
    run = outcome(clashing, layers, np.zeros(0))
    m.find(_of_layer("class-output-size", run))
    m.steps = None


def _of_weights(layers: Layers, case: LayerCall) -> Iterator[Mistake]:
    """Yield mistakes that are visible in the weights of a layer with two heads."""
    weights = next(read for read in map(layers.read(case), (False, True)) if read is not None)
    w = weights.matrices
    halves = [np.split(w[role], 2, axis=1) for role in "qkv"]
    if weights.slices:
        yield _TEXTS.mistake("class-slices")
    if weights.shared:
        yield _TEXTS.mistake("class-one-weight")
    elif any(np.ptp(a) == 0 for a in w.values()):
        yield _TEXTS.mistake("class-weights-constant")
    elif not weights.slices and all(np.array_equal(one, other) for one, other in halves[:2]):
        yield _TEXTS.mistake("class-heads-identical")
    elif any(np.array_equal(w[a], w[b]) for a, b in ("qk", "qv", "kv")):
        yield _TEXTS.mistake("class-projections-identical")
    if "o" not in w:
        yield steps.NO_OUTPUT


def _check_scale(layers: Layers) -> Symptom | None:
    """Check that queries, keys and values have about the same magnitude as the word vectors."""
    try:
        weights = next(
            filter(None, (layers.read(_inputs().wide)(flipped) for flipped in (False, True))), None
        )
    except RAISED:  # the layer rejects this size
        return None
    if weights is None:
        return None
    width = _inputs().wide.x.shape[-1]
    for role in "qkv":
        size = float(np.sqrt(np.mean(weights.matrices[role] ** 2)))
        mean, times = float(weights.matrices[role].mean()), size * width**0.5
        if abs(mean) > _MEAN * size:
            return _TEXTS.finding("class-weights-mean", None, role=role, mean=f"{mean:.2g}")
        if not _SMALL < times < _LARGE:
            return _TEXTS.finding(
                "class-weights-unscaled",
                None,
                width=width,
                role=role,
                times=f"{times:.2g}",
                effect="one word gets nearly all weight"
                if times > 1
                else "all weights are similar",
            )
    return None


def _by_symmetries(m: Marking) -> None:
    """Check a layer with unknown weights: the output's shape, and the effects of word order."""
    runs = [replace(run, right=np.zeros(0)) for run in m.run(_inputs().cases)]  # unknown
    if (nothing := nothing_done(runs)) is not None:
        m.find(_LayerFinding(**vars(nothing)))
        m.steps = None
        return
    for case in _inputs().cases:
        run = m.call(case)
        good = run.out is not None and np.isfinite(run.out).all()
        if run.out is None or run.out.shape != case.x.shape or not good:
            m.find(m.report_odd([run], "one head and several"))
            m.steps = None
            return
        turned = m.call(replace(case, x=case.x[::-1].copy())).out
        if differ(turned, run.out[::-1]):
            m.find(_of_layer("class-order-matters", run, {"yours, words turned round": turned}))
            return
        other = case.x.copy()
        other[-1] += 1
        changed = m.call(replace(case, x=other)).out
        if changed is not None and not differ(changed[:1], run.out[:1]):
            m.find(_of_layer("class-no-mixing", run))
            return
    m.tried.append("shapes, and the order of words")
    m.by_mistakes = True
    m.find(_of_layer("class-weights-hidden", m.call(_inputs().cases[0])))


def _not_refused(m: Marking, layers: Layers) -> Symptom | None:
    """Check that building a layer raises a ValueError if num_heads does not divide embed_dim."""
    try:
        layers.of(_inputs().uneven)
    except ValueError:
        return None
    except RAISED as error:
        # a torch layer may raise another error: torch's own layers raise an AssertionError
        if hasattr(layers.of(_inputs().cases[0]), "state_dict"):
            return None
        run = Outcome(_inputs().uneven, np.zeros(0), error=error)
        return _of_layer("class-refused-otherwise", run)
    return _of_layer("class-not-divisible", m.call(_inputs().uneven))


SELF_ATTENTION_CLASS = make_task("self-attention-class", _mark)

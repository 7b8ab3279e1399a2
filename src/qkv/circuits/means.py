"""Scores of attention heads and differences between two models, averaged over many texts."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from qkv._argument_errors import public_call, value_error
from qkv.arrays import Array, quote
from qkv.circuits import _reader
from qkv.circuits._reader import Read
from qkv.circuits.results import Result
from qkv.layers.base import starts_of
from qkv.models.model import Model, handed_on
from qkv.models.tasks.predict import log_softmax
from qkv.trace.recorder import pad_rows

NAMES = ("previous", "next", "same", "first", "last", "induction", "entropy")
STRONGEST = "strongest"
Patterns = Mapping[str, Callable[[Array], Any]]  # a measure's name, and its pattern for the ids
NO_PATTERNS: Patterns = MappingProxyType({})


def checked_names(measures: _reader.Names, known: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the requested measures without duplicates."""
    names = tuple(dict.fromkeys([measures] if isinstance(measures, str) else measures))
    odd = [name for name in names if name not in known]
    if odd or not names:
        fault = f"has {odd[0]!r:.40}" if odd else "is empty"
        raise value_error(f"`of` {fault}: choose among {', '.join(known)}")
    return names


class Measures:
    """Computes measures of attention weights: one number per query of a batch of texts.

    Args:
        batch: the token ids of each text, (T,).
        special: the ids of special tokens.
        patterns: functions that return a pattern (T, T) for the ids of a text, keyed by measure.
    """

    def __init__(
        self, batch: Sequence[Array], special: Sequence[int], patterns: Patterns = NO_PATTERNS
    ) -> None:
        starts = starts_of(map(len, batch))
        packed = np.concatenate(batch)
        self.ids = pad_rows(packed, starts)  # (B, T), 0 in the padding.
        self.ends = np.diff(starts)
        self.there = pad_rows(np.ones(len(packed), bool), starts)
        # (B, T), False for keys that `STRONGEST` ignores: special tokens, position 0 and padding.
        self.words = pad_rows(~np.isin(packed, special), starts)
        self.words[:, 0] = False
        self._parts: dict[tuple[int, int], _Pairs] = {}
        self._patterns = {name: self._pad(name, make, batch) for name, make in patterns.items()}

    def _pad(self, name: str, make: Callable[[Array], Any], batch: Sequence[Array]) -> Array:
        """Return the patterns (B, T, T) of a measure, 0 in the padding."""
        padded = np.zeros((*self.ids.shape, self.ids.shape[1]))
        for number, ids in enumerate(batch):
            pattern, size = np.asarray(make(ids)), len(ids)
            if pattern.shape != (size, size):
                raise value_error(
                    f"the pattern {quote(name)} has shape {pattern.shape} for a text of {size} "
                    f"tokens; return shape ({size}, {size}), with a row for each query"
                )
            padded[number, :size, :size] = pattern
        return padded

    def mask(self, weights: Array, first: int, skip: Collection[str]) -> Array:
        """Return weights (B, H, Q, K) with 0 for skipped keys and for queries in the padding."""
        queries, keys = weights.shape[2:]
        kept = np.repeat(self.there[:, None, first : first + queries, None], keys, axis=3)
        if "first" in skip:
            kept[..., 0] = False
        if "self" in skip:
            kept &= np.arange(keys) != np.arange(first, first + queries)[:, None]
        return np.asarray(weights * kept)

    def count_mask(self, name: str, first: int, queries: int) -> Array:
        """Return a mask (B, Q) of the queries that a measure counts."""
        if name != "induction":
            return self.there[:, first : first + queries]
        pairs = self._pairs(first, queries)
        counted = np.zeros(pairs.shape, bool)
        counted.flat[pairs.rows] = True
        return counted

    def count(self, name: str) -> int:
        """Return the number of queries over which a measure is averaged."""
        if name != "induction":
            return int(self.there.sum())
        return len(self._pairs(0, self.ids.shape[1]).groups)

    def values(self, name: str, weights: Array, first: int) -> Array:
        """Return the measure (B, H, Q) of each query, or 0 if the measure does not count the query.

        Args:
            name: the name of the measure.
            weights: (B, H, Q, K), 0 in the padding.
            first: the position of the first query.
        """
        if name in self._patterns:
            rows = self._patterns[name][:, first : first + weights.shape[2]]
            return np.asarray(np.einsum("bhqk,bqk->bhq", weights, rows))
        if name in ("same", "induction"):
            return self._pairs(first, weights.shape[2]).values(weights, int(name == "induction"))
        return np.asarray(_MEASURES[name](self, weights, first))

    def key(self, name: str, weights: Array, text: Array, query: Array) -> Array:
        """Return the position of the key that a measure uses, for each query.

        If the measure sums the weights of several keys, the result is the key with the largest
        weight.

        Args:
            name: the name of the measure.
            weights: (n, K), the weights of n queries.
            text: (n,), the text of each query.
            query: (n,), the position of each query.

        Returns:
            Positions (n,); -1 for "entropy", which uses the weights of all keys.
        """
        keys = {"previous": query - 1, "next": query + 1, "first": np.zeros_like(query)}
        keys |= {"last": self.ends[text] - 1, "entropy": np.full_like(query, -1)}
        if name in keys:
            return keys[name]
        if name == STRONGEST:
            counted = self.words[text]
        else:
            earlier = np.arange(weights.shape[1]) < query[:, None]
            counted = (self.ids[text] == self.ids[text, query][:, None]) & earlier
            if name == "induction":
                counted = np.concatenate([np.zeros_like(counted[:, :1]), counted[:, :-1]], 1)
        return np.asarray(np.where(counted, weights, -1).argmax(1))

    def _pairs(self, first: int, count: int) -> "_Pairs":
        if (first, count) not in self._parts:
            self._parts = {(first, count): _Pairs(self, first, count)}
        return self._parts[first, count]


class _Pairs:
    """All pairs of a query and an earlier position with the same token."""

    def __init__(self, about: Measures, first: int, count: int) -> None:
        rows = np.arange(first, first + count)[:, None]  # (Q, 1).
        same = about.ids[:, first : first + count, None] == about.ids[:, None]  # (B, Q, K).
        same &= (np.arange(same.shape[2]) < rows) & about.there[:, first : first + count, None]
        self.shape = same.shape[:2]
        self.text, self.query, self.key = np.nonzero(same)
        row = self.text * count + self.query
        # Pairs of the same query are consecutive. For each query, `groups` holds the index of the
        # query's first pair.
        self.groups = np.flatnonzero(np.diff(row, prepend=-1))
        self.rows = row[self.groups]

    def values(self, weights: Array, shift: int) -> Array:
        """Return the sum of each query's weights over the pairs of the query, as (B, H, Q).

        Each pair adds the weight that the query gives to the position `key + shift`.
        """
        heads = weights.shape[1]
        sums = np.zeros((self.shape[0] * self.shape[1], heads), weights.dtype)
        if len(self.groups):
            terms = weights[self.text, :, self.query, self.key + shift]  # (n, H)
            sums[self.rows] = np.add.reduceat(terms, self.groups, axis=0)
        return np.moveaxis(sums.reshape(*self.shape, heads), 2, 1)


def _beside(shift: int) -> Callable[[Measures, Array, int], Array]:
    """Return a function that reads, for each query position i, the weight on key `i + shift`."""

    def weight(about: Measures, weights: Array, first: int) -> Array:
        out = np.zeros(weights.shape[:3], weights.dtype)
        queries, keys = weights.shape[2:]
        begin, end = max(0, -shift - first), min(queries, keys - shift - first)
        if begin < end:
            rows = np.arange(begin, end)
            out[..., begin:end] = weights[..., rows, rows + first + shift]
        return out

    return weight


def _entropy(about: Measures, weights: Array, first: int) -> Array:
    """Return `-sum(w * ln(w))`; a weight of 0 adds nothing."""
    logs = np.maximum(weights, np.finfo(weights.dtype).tiny)
    np.log(logs, out=logs)
    return np.asarray(-np.einsum("bhqk,bhqk->bhq", weights, logs))


def _strongest(about: Measures, weights: Array, first: int) -> Array:
    """Return the largest weight, ignoring special tokens and the first position."""
    seen = weights * about.words[:, None, None].astype(weights.dtype)
    # NumPy's argmax is faster than its max
    return np.take_along_axis(seen, seen.argmax(-1)[..., None], -1)[..., 0]


_MEASURES = {
    "previous": _beside(-1),
    "next": _beside(1),
    "first": lambda about, weights, first: weights[..., 0],
    "last": lambda about, weights, first: weights[np.arange(len(weights)), :, :, about.ends - 1],
    "entropy": _entropy,
    STRONGEST: _strongest,
}


@dataclass(frozen=True)
class HeadSums:
    """The sum of each measure over queries, and the number of these queries.

    If `one` and `other` are sums over two parts of a corpus, `one + other` is the sum over the
    whole corpus.

    Attributes:
        sums: arrays (layers, heads) of float64, keyed by measure.
        counts: the numbers of queries, keyed by measure; if keys are skipped, the sums (layers,
            heads) of the weights on the other keys.
    """

    sums: dict[str, Array]
    counts: dict[str, Any]

    def __add__(self, other: "HeadSums") -> "HeadSums":
        return HeadSums(
            {name: part + other.sums[name] for name, part in self.sums.items()},
            {name: count + other.counts[name] for name, count in self.counts.items()},
        )

    def means(self) -> dict[str, Result]:
        """Return the mean (layers, heads) of each measure; NaN for a measure without queries."""
        results = {}
        for name, part in self.sums.items():
            count = np.asarray(self.counts[name], np.float64)
            mean = part / np.where(count > 0, count, np.nan)
            meaning = "nats" if name == "entropy" else "mean weight"
            results[name] = Result(mean, ("layer", "head"), of=meaning, title=name)
        return results


@public_call("head_scores")
def head_scores(
    model: Model,
    texts: _reader.Texts,
    of: _reader.Names | Patterns = NAMES,
    *,
    skip: str | Collection[str] = (),
) -> dict[str, Result]:
    """Measure what each attention head attends to, averaged over all queries of all texts.

    Each text is read once. Memory does not depend on the number of texts, and grows linearly with
    the length of a text. Special tokens are included. Texts are truncated as in `trace`, and a
    warning gives the number of truncated texts. A text without tokens is ignored.

    Args:
        model: a text encoder or decoder from `qkv.load`.
        texts: an iterable of texts. A text is a string or an array (T,) of token ids.
        of: the measures:

            - "previous", "next": the weight on the position before or after the query.
            - "first", "last": the weight on the first or last position of the text.
            - "same": the weight on all earlier positions with the same token as the query.
            - "induction": the weight on all positions that directly follow an earlier occurrence of
              the query's token. Queries whose token does not occur earlier in the text are left
              out.
            - "entropy": the entropy of the query's weights, in nats.

            Or a dict of measures of your own: each value is a function that returns a pattern
            (T, T) for the ids (T,) of a text. The measure of a query is the sum of its weights,
            each multiplied by the pattern's entry for that query and key.
        skip: the keys to ignore: "first", the first position of a text, to which many heads attend
            when no other key is relevant; "self", the position of the query; or both. The sum of a
            measure over all queries is then divided by the sum of the weights on all other keys.

    Returns:
        Arrays (layers, heads) of float64, keyed by measure. A measure that applies to no query is
        NaN: for example, "induction" is NaN if no text repeats a token.

    Raises:
        TypeError: a text is neither a string nor ids, or `model` is not a model.
        ValueError: a measure does not exist, the model is not a text encoder or decoder, an id
            is outside the model's vocabulary, a pattern has the wrong shape, or `skip` is unknown
            or is given with "entropy".

    Source:
        Induction: Olsson et al. 2022, "In-context Learning and Induction Heads", where the measure
        "induction" is called "prefix matching". Entropy: Clark et al. 2019, "What Does BERT Look
        At?", section 3.3.

    >>> import qkv
    >>> texts = ["the cat sat", "I love you"]
    >>> scores = head_scores(qkv.load("random"), texts, ["first", "entropy"])
    >>> scores["first"].shape, bool((scores["entropy"] <= np.log(3)).all())
    ((1, 2), True)
    >>> diagonal = {"itself": lambda ids: np.eye(len(ids))}
    >>> head_scores(qkv.load("random"), texts, diagonal, skip="first")["itself"].shape
    (1, 2)
    """
    skipped = {skip} if isinstance(skip, str) else set(skip)
    if not skipped <= {"first", "self"}:
        raise value_error(f"`skip` is {quote(skip)}; choose among first, self")
    own = isinstance(of, Mapping) and all(map(callable, of.values()))
    patterns = of if isinstance(of, Mapping) and own else NO_PATTERNS
    names = tuple(patterns) if own else checked_names(of, NAMES)
    if not names:
        raise value_error("`of` is empty; pass a function for each measure")
    if skipped and of is NAMES:
        names = tuple(name for name in names if name != "entropy")
    if skipped and "entropy" in names and not patterns:
        raise value_error(
            "`of` has 'entropy', which needs all weights; leave out 'entropy' or `skip`"
        )
    model = _reader.check_model(model)
    return sum_measures(model, texts, names, patterns=patterns, skip=skipped).means()


@public_call("head_scores")
def head_sums(model: Model, texts: _reader.Texts, of: _reader.Names = NAMES) -> HeadSums:
    """Return the sums from which `head_scores` computes means; sums of two corpora can be added."""
    return sum_measures(_reader.check_model(model), texts, checked_names(of, NAMES), None, None)


class Measurement(NamedTuple):
    """The values of one measure in one layer for a group of queries."""

    name: str
    layer: int
    first: int  # the position of the first query
    batch: Sequence[Read]
    measured: Measures
    values: Array  # (B, H, Q).
    weights: Array  # The measured weights (B, H, Q, K).


Add = Callable[[Measurement], None] | None
Keep = Callable[[Sequence[Read]], None] | None


def sum_measures(
    model: Model,
    texts: Any,
    names: Sequence[str],
    add: Add = None,
    keep: Keep = None,
    *,
    patterns: Patterns = NO_PATTERNS,
    skip: Collection[str] = (),
) -> HeadSums:
    """Return the sums of measures over all queries, without checking `model` and `names`.

    Args:
        model: a text encoder or decoder.
        texts: as for `head_scores`.
        names: the names of the measures.
        add: a function that is called with each `Measurement`.
        keep: a function that is called with each group of texts, after they are measured.
        patterns: the patterns of measures that the caller defines.
        skip: the keys to ignore, as for `head_scores`.
    """
    shape = model.num_layers, model.num_heads
    counts: dict[str, Any] = {name: np.zeros(shape) if skip else 0 for name in names}
    result = HeadSums({name: np.zeros(shape) for name in names}, counts)
    special = sorted(model.tokenizer.special_ids) if model.tokenizer else []

    def measure(batch: list[Read]) -> None:
        ids = [text.ids for text in batch]
        measured = Measures(ids, special, patterns)
        for name in () if skip else names:
            result.counts[name] += measured.count(name)

        def use(layer: int, first: int, weights: Array) -> None:
            if skip:
                weights = measured.mask(weights, first, skip)
                rows = weights.sum(3, dtype=np.float64)  # (B, H, Q)
                for name in names:
                    counted = measured.count_mask(name, first, weights.shape[2])
                    result.counts[name][layer] += np.einsum("bhq,bq->h", rows, counted)
            for name in names:
                values = measured.values(name, weights, first)  # (B, H, Q)
                result.sums[name][layer] += values.sum(2).sum(0, dtype=np.float64)
                if add is not None:
                    add(Measurement(name, layer, first, batch, measured, values, weights))

        _reader.watch(model, ids, use)

    for window in _reader.windows(model, texts):
        for batch in _reader.batches(window, _reader.max_cells(model)):
            measure(batch)
        if keep is not None:
            keep(window)
    return result


@public_call("diff")
def diff(model_a: Model, model_b: Model, texts: _reader.Texts) -> dict[str, Result | float]:
    """Compare two models on many texts, for example a model before and after fine-tuning.

    Each text is read once. Memory does not grow with the number of texts.

    Four measures are cosines between corresponding vectors of the two models:

    - "resid": the outputs of layers.
    - "attn": the outputs of attention.
    - "mlp": the outputs of MLPs, if the models have MLPs.
    - "heads": the activation `z` of each head, (layers, Hq).

    The cosine of two zero vectors is taken to be 1, and that of a zero and a nonzero vector, 0.

    If both models have LM heads, three more measures compare the logits:

    - "logits": the mean absolute difference.
    - "kl": the KL divergence, the mean of `log(p_a / p_b)` under the probabilities `p_a` of
      `model_a`, in nats.
    - "same": the share of tokens for which both models predict the same word.

    Args:
        model_a: a text encoder or decoder from `qkv.load`.
        model_b: another model with the same tokenizer, the same numbers of layers and heads, and
            vectors of the same size.
        texts: an iterable of texts. A text is a string or an array (T,) of token ids.

    Returns:
        The means over all tokens, keyed by measure: float64 arrays (layers,) or numbers.

    Raises:
        TypeError: `model_a` or `model_b` is not a model, or a text is neither a string nor ids.
        ValueError: the models have different sizes or split a text into different tokens; or the
            texts contain no tokens.

    >>> import qkv
    >>> one, other = qkv.load("books-decoder"), qkv.load("books-decoder", dtype="bfloat16")
    >>> means = diff(one, other, ["The queen spoke to the king."])
    >>> means["heads"].shape, bool((means["resid"] > 0.99).all()), means["kl"] < 0.05
    ((5, 6), True, True)
    """
    one, other = (_reader.check_model(model) for model in (model_a, model_b))
    names = _names(one, other)
    words = _words(one) is not None and _words(other) is not None
    sums: dict[str, Any] = {}
    count = 0
    for batch in _pairs(one, other, texts):
        all_names = [name for group in names.values() for name in group]
        # mypy does not accept arrays as sequences of int
        runs = [
            model.trace([text.ids for text in batch], names=all_names, logits=words)  # type: ignore[arg-type]
            for model in (one, other)
        ]
        ends = np.array([len(text.ids) for text in batch])
        there = np.arange(ends.max()) < ends[:, None]
        count += int(ends.sum())
        measured: list[tuple[str, Array]] = []  # arrays (tokens, ...)
        for group, sites in names.items():
            rows = [[run[name][there] for name in sites] for run in runs]  # (tokens, ...) each
            cosines = [_cosines(*both) for both in zip(*rows, strict=True)]
            measured.append((group, np.stack(cosines, 1)))
        for number, end in enumerate(ends if words else ()):
            logits = (run["logits"][number, :end].astype(np.float64) for run in runs)
            measured += _changes(*logits).items()
        for name, values in measured:
            sums[name] = sums.get(name, 0.0) + values.sum(0, dtype=np.float64)
    if not count:
        raise value_error("the texts contain no tokens; pass a text with tokens")
    axes = {"heads": ("layer", "head")}
    return {
        name: Result(total / count, axes.get(name, ("layer",)), of="cosine", title=name)
        if np.ndim(total)
        else float(total / count)
        for name, total in sums.items()
    }


def _names(one: Model, other: Model) -> dict[str, list[tuple[str, int]]]:
    """Check that both models have the same sizes; return the activations to compare."""
    for kind, sizes in (
        ("layers", (one.num_layers, other.num_layers)),
        ("heads", (one.num_heads, other.num_heads)),
        ("numbers in a vector", (one.dim, other.dim)),
        ("words", (_words(one), _words(other))),
    ):
        if sizes[0] != sizes[1] and None not in sizes:
            raise value_error(
                f"{one.name} has {sizes[0]} {kind} and {other.name} has {sizes[1]}; pass models "
                "of the same size"
            )
    hooks = [[layer.hooks for layer in model.layers] for model in (one, other)]
    if hooks[0] != hooks[1]:
        raise value_error(
            f"the blocks of {one.name} and {other.name} have different parts; pass models "
            "of the same family"
        )
    layers = range(one.num_layers)
    names = {"resid": [handed_on(one, layer)[0] for layer in layers]}
    for group, name in (("attn", "attn_out"), ("mlp", "mlp_out"), ("heads", "z")):
        names[group] = [(name, layer) for layer in layers]
    if any("hook_mlp_out" not in block_hooks for block_hooks in hooks[0]):
        del names["mlp"]  # models without MLPs
    return names


def _words(model: Model) -> int | None:
    """Return V, the number of logits at a position, or None for a model without an LM head."""
    return model.need_words() if model.can("unembed") else None


def _pairs(one: Model, other: Model, texts: Any) -> Iterator[list[Read]]:
    """Yield batches of texts of similar length; check that both models split texts alike."""
    for window in _reader.windows(one, texts):
        if not window:
            continue
        again = next(_reader.windows(other, [text.source for text in window], empty=True))
        for text, same in zip(window, again, strict=True):
            if not np.array_equal(text.ids, same.ids):
                raise value_error(
                    f"{one.name} splits text {text.number} into {len(text.ids)} tokens, but "
                    f"{other.name} into {len(same.ids)} different tokens; pass models with the "
                    "same tokenizer"
                )
        for batch in _reader.batches(window, _reader.MOST_POSITIONS * _reader.MOST_POSITIONS):
            # batches are split, so that their logits fit in memory
            step = max(1, _reader.MOST_POSITIONS // 4 // len(batch[0].ids))
            for first in range(0, len(batch), step):
                yield batch[first : first + step]


def _cosines(one: Array, other: Array) -> Array:
    """Return the cosine (tokens, ...) of each pair of vectors (tokens, ..., d)."""
    one, other = one.astype(np.float64), other.astype(np.float64)
    lengths = np.linalg.norm(one, axis=-1), np.linalg.norm(other, axis=-1)
    product, size = (one * other).sum(-1), lengths[0] * lengths[1]
    both = ((lengths[0] == 0) & (lengths[1] == 0)).astype(np.float64)
    return np.asarray(np.divide(product, size, out=both, where=size > 0))


def _changes(one: Array, other: Array) -> dict[str, Array]:
    """Compare the logits (tokens, V) of two models; return three measures (tokens,)."""
    logs = log_softmax(one), log_softmax(other)
    return {
        "logits": np.abs(one - other).mean(-1),
        "kl": (np.exp(logs[0]) * (logs[0] - logs[1])).sum(-1),
        "same": (one.argmax(-1) == other.argmax(-1)).astype(np.float64),
    }

"""Compare the runs of two models: by layer, by head, and in their predictions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.circuits.inputs import PLACES, Read, batches, check_model, windows
from qkv.circuits.results import Result
from qkv.models.model import Model, handed_on


def diff(model_a: Model, model_b: Model, texts: Iterable[Any] | Array) -> dict[str, Result | float]:
    """How far the runs of two models part, such as one before and after it was trained further.

    Texts are read once, as they come; memory does not grow with their number.

    Args:
        model_a: one that `qkv.load` has read, of one text at a time.
        model_b: another with as many layers and heads of the same sizes, which cuts texts into the
            same tokens.
        texts: any iterable of texts, or of the ids of their tokens, (T,) each.

    Returns:
        Means over all tokens of all texts, float64. The cosines of the vectors of both runs:
        "resid" (layers,), what each layer hands on; "attn" and "mlp" (layers,), what its attention
        and its MLP add; "heads" (layers, Hq), the weighted values of each head (`z`). Two vectors
        of 0 have the cosine 1, a vector of 0 and another one 0. Models of attention alone have no
        "mlp". If both models give logits over
        words, also three numbers: "logits", the size of the change of a logit; "kl", how far
        model_b's probabilities diverge from model_a's, in nats; and "same", the share of tokens at
        which the same word is the most probable.

    Raises:
        TypeError: a model is none, or a text is neither a string nor ids.
        ValueError: the models have different sizes or cut a text into different tokens, or the
            texts hold no token.

    >>> import qkv
    >>> one, other = qkv.load("books-decoder"), qkv.load("books-decoder", dtype="bfloat16")
    >>> found = diff(one, other, ["The queen spoke to the king."])
    >>> found["heads"].shape, bool((found["resid"] > 0.99).all()), found["kl"] < 0.05
    ((5, 6), True, True)
    """
    one, other = check_model(model_a, "diff"), check_model(model_b, "diff")
    names = _names(one, other)
    words = _words(one) is not None and _words(other) is not None
    sums: dict[str, Any] = {}
    count = 0

    def add(name: str, values: Array) -> None:
        """Add what is measured of some tokens, (tokens, ...)."""
        sums[name] = sums.get(name, 0.0) + values.sum(0, dtype=np.float64)

    for batch in _read(one, other, texts):
        kept = [name for group in names.values() for name in group]
        runs = [
            model.trace([text.ids for text in batch], names=kept, logits=words)  # type: ignore[arg-type]
            for model in (one, other)
        ]
        ends = np.array([len(text.ids) for text in batch])
        there = np.arange(ends.max()) < ends[:, None]
        count += int(ends.sum())
        for group, own in names.items():
            rows = [[run[name][there] for name in own] for run in runs]  # (tokens, ...) each
            add(group, np.stack([_cosines(*both) for both in zip(*rows, strict=True)], 1))
        if words:
            for number, end in enumerate(ends):
                logits = (run["logits"][number, :end].astype(np.float64) for run in runs)
                for name, values in _changes(*logits).items():
                    add(name, values)
    if not count:
        raise ValueError("diff: texts hold no token: give some")
    axes = {"heads": ("layer", "head")}
    return {
        name: Result(total / count, axes.get(name, ("layer",)), of="cosine", title=name)
        if np.ndim(total)
        else float(total / count)
        for name, total in sums.items()
    }


def _names(one: Model, other: Model) -> dict[str, list[tuple[str, int]]]:
    """What is compared, if both models have it in the same sizes."""
    for what, sizes in (
        ("layers", (one.num_layers, other.num_layers)),
        ("heads", (one.num_heads, other.num_heads)),
        ("numbers in a vector", (one.dim, other.dim)),
        ("words", (_words(one), _words(other))),
    ):
        if sizes[0] != sizes[1] and None not in sizes:
            raise ValueError(
                f"diff: {one.name} has {sizes[0]} {what} and {other.name} {sizes[1]}: give "
                "models of the same sizes"
            )
    hooks = [[layer.hooks for layer in model.layers] for model in (one, other)]
    if hooks[0] != hooks[1]:
        raise ValueError(
            f"diff: the blocks of {one.name} and {other.name} have different parts: give models "
            "of one family"
        )
    layers = range(one.num_layers)
    found = {
        "resid": [handed_on(one, layer)[0] for layer in layers],
        "attn": [("attn_out", layer) for layer in layers],
        "mlp": [("mlp_out", layer) for layer in layers],
        "heads": [("z", layer) for layer in layers],
    }
    if any("hook_mlp_out" not in own for own in hooks[0]):
        del found["mlp"]  # of a model of attention alone
    return found


def _words(model: Model) -> int | None:
    """How many words it gives logits over; None where it gives none."""
    head = model.head
    return head.steps.outputs if head is not None and head.predicts else None


def _read(one: Model, other: Model, texts: Any) -> Iterator[list[Read]]:
    """Texts of like length together, once both models cut them into the same tokens."""
    for window in windows(one, texts, "diff"):
        if not window:
            continue
        again = next(windows(other, [text.given for text in window], "diff", empty=True))
        for text, same in zip(window, again, strict=True):
            if not np.array_equal(text.ids, same.ids):
                raise ValueError(
                    f"diff: {one.name} cuts text {text.number} into {len(text.ids)} tokens and "
                    f"{other.name} into {len(same.ids)} others: give models with one tokenizer"
                )
        for batch in batches(window, PLACES * PLACES):
            for first in range(0, len(batch), _at_once(batch)):
                yield batch[first : first + _at_once(batch)]


def _at_once(batch: Sequence[Read]) -> int:
    """How many texts have a quarter of `PLACES`, for their logits, or one."""
    return max(1, PLACES // 4 // len(batch[0].ids))


def _cosines(one: Array, other: Array) -> Array:
    """The cosines of vectors (tokens, ..., d), (tokens, ...)."""
    one, other = one.astype(np.float64), other.astype(np.float64)
    lengths = np.linalg.norm(one, axis=-1), np.linalg.norm(other, axis=-1)
    product, size = (one * other).sum(-1), lengths[0] * lengths[1]
    both = ((lengths[0] == 0) & (lengths[1] == 0)).astype(np.float64)
    return np.asarray(np.divide(product, size, out=both, where=size > 0))


def _changes(one: Array, other: Array) -> dict[str, Array]:
    """What changes in logits (tokens, V), a number for each token."""
    logs = []
    for logits in (one, other):
        wide = logits - logits.max(-1, keepdims=True)
        logs.append(wide - np.log(np.exp(wide).sum(-1, keepdims=True)))
    return {
        "logits": np.abs(one - other).mean(-1),
        "kl": (np.exp(logs[0]) * (logs[0] - logs[1])).sum(-1),
        "same": (one.argmax(-1) == other.argmax(-1)).astype(np.float64),
    }

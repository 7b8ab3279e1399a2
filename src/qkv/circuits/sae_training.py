"""Train a sparse autoencoder, and measure how much of a model it keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.circuits.streaming import PLACES, rows_of
from qkv.learn.optimizer import Schedule
from qkv.models.model import Model
from qkv.ops.adamw import adamw
from qkv.ops.linear import linear, linear_grad
from qkv.ops.loss import cross_entropy

BATCH = 1024  # tokens of a step
POOL = 2**24  # numbers that are shuffled at once: 64 MB
DEAD = 2**15  # tokens after which a feature that has not fired is dead
AUXILIARY = 1 / 32  # what the loss of dead features counts


def largest(x: Array, k: int) -> Array:
    """The k largest numbers of each row (..., n), those above 0; all others are 0.

    >>> largest(np.array([[3.0, -1.0, 2.0, 1.0]]), 2)
    array([[3., 0., 2., 0.]])
    """
    found = np.zeros_like(x)
    places = np.argpartition(x, -k, axis=-1)[..., -k:]
    np.put_along_axis(found, places, np.maximum(np.take_along_axis(x, places, -1), 0), -1)
    return found


def gradients(
    parameters: dict[str, Array], x: Array, k: int, dead: Array
) -> tuple[float, dict[str, Array], Array]:
    """The loss of a step, its gradient by parameter, and which features fired.

    The loss is the mean over rows of `|reconstruction - x| ** 2`. To it comes, times `AUXILIARY`,
    that of the dead features alone where they reconstruct what the others miss, so that they find
    something to do: the D / 2 largest of them.

    Args:
        parameters: "W_enc" (D, n), "W_dec" (n, D), "b_enc" (n,), "b_dec" (D,).
        x: (rows, D).
        k: how many features of a row fire.
        dead: the numbers of the features that are dead.

    Source:
        Gao et al. 2024, "Scaling and evaluating sparse autoencoders", sections 2.3 and A.2.
    """
    decoder, encoder = parameters["W_dec"], parameters["W_enc"]
    centred = x - parameters["b_dec"]
    before = linear(centred, encoder, parameters["b_enc"])
    features = largest(before, k)  # (rows, n)
    error = linear(features, decoder, parameters["b_dec"]) - x
    upstream = error * error.dtype.type(2 / len(x))
    grad, grad_decoder, grad_bias = linear_grad(features, decoder, upstream, bias=True)
    grad *= features > 0
    loss = float(np.square(error).sum(dtype=np.float64) / len(x))
    if len(dead):
        more = largest(before[:, dead], min(len(dead), x.shape[1] // 2 or 1))
        missing = linear(more, decoder[dead]) + error
        upstream = missing * error.dtype.type(2 * AUXILIARY / len(x))
        grad_more, grad_rows, _ = linear_grad(more, decoder[dead], upstream, bias=False)
        grad[:, dead] += grad_more * (more > 0)
        grad_decoder[dead] += grad_rows
        loss += AUXILIARY * float(np.square(missing).sum(dtype=np.float64) / len(x))
    back, grad_encoder, grad_encoder_bias = linear_grad(centred, encoder, grad, bias=True)
    assert grad_bias is not None
    assert grad_encoder_bias is not None
    found = {
        "W_enc": grad_encoder,
        "W_dec": grad_decoder,
        "b_enc": grad_encoder_bias,
        "b_dec": grad_bias - back.sum(0),
    }
    return loss, found, np.asarray((features > 0).any(0))


def shuffled(rows: Iterator[Array], tokens: int, rng: np.random.Generator) -> Iterator[Array]:
    """Rows (n, D) as they come, as batches (BATCH, D) of rows from all over a pool.

    Half of the pool is given each time that it is full. It holds no more than so many `tokens`.
    """
    pool: list[Array] = []
    count = 0
    for part in rows:
        pool.append(part)
        count += len(part)
        if count >= max(2 * BATCH, min(POOL // part.shape[1], tokens)):
            whole = np.concatenate(pool)[rng.permutation(count)]
            half = count // 2 // BATCH * BATCH
            yield from whole[:half].reshape(-1, BATCH, part.shape[1])
            pool, count = [whole[half:]], count - half
    if pool:
        whole = np.concatenate(pool)[rng.permutation(count)]
        for first in range(0, count, BATCH):
            yield whole[first : first + BATCH]


def trained(
    batches: Iterator[Array],
    *,
    features: int,
    k: int,
    tokens: int,
    rng: np.random.Generator,
    advance: Callable[[int], None],
) -> tuple[dict[str, Array], int]:
    """The parameters of an autoencoder after it has learned from so many rows, and their number.

    Features begin in random directions, and the encoder as the decoder transposed. Rows are scaled
    so that their length about the mean is sqrt(D), which the result takes back. A decoder's rows
    have length 1 all the time.

    Args:
        batches: rows (n, D).
        features: how many.
        k: how many of them fire in each row.
        tokens: after how many rows it ends.
        rng: draws the directions.
        advance: is told how many rows were learned from.
    """
    first = next(batches)
    size, kind = first.shape[1], first.dtype
    mean = first.mean(0, dtype=np.float64).astype(kind)
    spread = np.square(first - mean).sum(1, dtype=np.float64).mean()
    scale = kind.type(np.sqrt(size / spread) if spread else 1)
    shapes: dict[str, tuple[int, ...]] = {
        "W_enc": (size, features),
        "W_dec": (features, size),
        "b_enc": (features,),
        "b_dec": (size,),
    }
    parameters, flat = _side_by_side(shapes, kind)
    slopes, gradient = _side_by_side(shapes, kind)
    moments = np.zeros_like(flat), np.zeros_like(flat)
    decoder = parameters["W_dec"]
    decoder[...] = rng.standard_normal(decoder.shape)
    decoder /= np.linalg.norm(decoder, axis=1, keepdims=True)
    parameters["W_enc"][...] = decoder.T
    parameters["b_dec"][...] = mean * scale
    schedule = Schedule(2e-4 * np.sqrt(2**14 / features))
    seen = 0
    quiet = np.zeros(features, np.int64)  # tokens since each feature fired
    for step, batch in enumerate(chain([first], batches), 1):
        x = batch[: tokens - seen] * scale
        _, found, fired = gradients(parameters, x, k, np.flatnonzero(quiet > DEAD))
        along = (found["W_dec"] * decoder).sum(1, keepdims=True)
        found["W_dec"] -= along * decoder  # what would change nothing but the length of a row
        for name, slope in found.items():
            slopes[name][...] = slope
        seen += len(x)
        adamw(
            *(flat, gradient, *moments),
            rate=schedule(seen / tokens),
            betas=(0.9, 0.999),
            eps=1e-8,
            decay=0.0,
            step=step,
        )
        decoder /= np.linalg.norm(decoder, axis=1, keepdims=True)
        quiet = np.where(fired, 0, quiet + len(x))
        advance(len(x))
        if seen >= tokens:
            break
    parameters = {name: array.copy() for name, array in parameters.items()}
    parameters["b_dec"] /= scale
    parameters["b_enc"] /= scale
    return parameters, seen


def _side_by_side(
    shapes: Mapping[str, tuple[int, ...]], kind: Any
) -> tuple[dict[str, Array], Array]:
    """Arrays of these shapes, and the one in which they lie side by side."""
    flat = np.zeros(sum(map(np.prod, shapes.values())), kind)
    ends = np.cumsum([np.prod(shape) for shape in shapes.values()])
    parts = np.split(flat, ends[:-1])
    return {
        name: part.reshape(shapes[name]) for name, part in zip(shapes, parts, strict=True)
    }, flat


def measures(
    model: Model,
    texts: Any,
    at: str,
    encode: Callable[[Array], Array],
    decode: Callable[[Array], Array],
    splice: Any,
    call: str,
) -> dict[str, float]:
    """What `SAE.evaluate` gives, from the full name of a site and what is done there."""
    ids: list[Array] = []
    count = active = left = squares = 0.0
    total: Any = 0.0
    fired: Any = False
    for batch, found in rows_of(model, texts, [at], call):
        ids += [text.ids for text in batch]
        rows = found[at].reshape(len(found[at]), -1)
        features = encode(rows)
        count += len(rows)
        active += int((features > 0).sum())
        fired = fired | (features > 0).any(0)
        left += np.square(rows - decode(features)).sum(dtype=np.float64)
        squares += np.square(rows).sum(dtype=np.float64)
        total = total + rows.sum(0, dtype=np.float64)
    if not count:
        raise ValueError(f"{call}: texts hold no token: give some")
    variance = squares - float(np.square(total).sum() / count)
    result = {
        "explained_variance": 1 - left / variance if variance else np.nan,
        "l0": active / count,
        "dead": 1 - float(fired.mean()),
    }
    result = {name: float(value) for name, value in result.items()}
    if not model.generates:
        return result
    mean = (total / count).astype(np.float32)

    def silent(x: Array) -> Array:
        return np.broadcast_to(mean.reshape(x.shape[2:]), x.shape)

    whole, spliced, without = (_loss(model, ids, edit) for edit in ({}, {at: splice}, {at: silent}))
    gap = without - whole
    return {
        **result,
        "loss": whole,
        "loss_spliced": spliced,
        "loss_mean": without,
        "loss_recovered": float((without - spliced) / gap) if gap else np.nan,
    }


def _loss(model: Model, ids: Sequence[Array], edit: dict[str, Any]) -> float:
    """The mean loss in nats of each token but the first of its text; NaN where there is none."""
    total = count = 0.0
    batch: list[Any] = []
    for number, text in enumerate(ids, 1):
        batch.append(text)
        if number < len(ids) and sum(map(len, batch)) + len(ids[number]) <= PLACES // 2:
            continue
        logits = model.trace(batch, names=[], logits=True, edit=edit)["logits"]
        for own, rows in zip(batch, logits, strict=True):
            losses, _ = cross_entropy(rows[: len(own) - 1], own[1:])
            total += losses.sum(dtype=np.float64)
            count += len(losses)
        batch = []
    return float(total / count) if count else np.nan

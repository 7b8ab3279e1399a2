"""Train a sparse autoencoder, and measure how well it preserves the model."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np

from qkv._progress import progress
from qkv.arrays import Array, Arrays
from qkv.circuits._reader import MOST_POSITIONS, rows_of
from qkv.learn.optimizer import Schedule
from qkv.models.model import Model
from qkv.ops import adamw, cross_entropy
from qkv.ops.linear import linear, linear_grad

BATCH = 1024  # The number of tokens per training step.
POOL = 2**24  # The maximum number of values in the pool; they take 64 MB in float32.
DEAD = 2**15  # A feature is dead if it has not fired for this number of tokens.
AUXILIARY = 1 / 32  # The weight of the loss for dead features.


def largest(x: Array, k: int) -> Array:
    """Keep the k largest positive numbers of each row (..., n); all others become 0.

    >>> largest(np.array([[3.0, -1.0, 2.0, 1.0]]), 2)
    array([[3., 0., 2., 0.]])
    """
    out = np.zeros_like(x)
    best = np.argpartition(x, -k, axis=-1)[..., -k:]
    np.put_along_axis(out, best, np.maximum(np.take_along_axis(x, best, -1), 0), -1)
    return out


def gradients(parameters: Arrays, x: Array, k: int, dead: Array) -> tuple[float, Arrays, Array]:
    """Return `(loss, gradients, fired)`; `fired` (n,) is true for features that were above 0.

    The loss is the mean over rows of `|reconstruction - x| ** 2`. If there are dead features, a
    second loss is added, multiplied by `AUXILIARY`. For each row, the second loss uses at most
    D / 2 dead features: the features with the largest activations before the selection of `k`
    features. Their decoder vectors approximate the row's error `x - reconstruction`. The second
    loss is the mean over rows of the squared error of this approximation.

    Args:
        parameters: "W_enc" (D, n), "W_dec" (n, D), "b_enc" (n,), "b_dec" (D,).
        x: (rows, D).
        k: the number of features that fire for one row.
        dead: the indices of dead features.

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
    grads = {"W_enc": grad_encoder, "W_dec": grad_decoder}
    grads |= {"b_enc": grad_encoder_bias, "b_dec": grad_bias - back.sum(0)}
    return loss, grads, np.asarray((features > 0).any(0))


def shuffle_rows(rows: Iterator[Array], tokens: int, rng: np.random.Generator) -> Iterator[Array]:
    """Shuffle rows (n, D) in a pool; yield batches (BATCH, D).

    A full pool yields half of its rows, and is then filled again. The pool holds at most `tokens`
    rows.
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


def train_sae(rows: Iterator[Array], n: int, k: int, tokens: int, seed: int) -> tuple[Arrays, int]:
    """Train an autoencoder; return its parameters and the number of training rows.

    Features start in random directions, and the encoder starts as the transposed decoder. For
    training, all rows are multiplied by the same number. After scaling, the mean squared distance
    between a row and the average row is D. The returned parameters apply to unscaled rows. Each row
    of the decoder always has length 1.

    Args:
        rows: arrays (rows, D) of activations.
        n: the number of features.
        k: the number of features that fire for one row.
        tokens: the number of training rows.
        seed: the seed for the order of the rows and the initial directions.
    """
    rng = np.random.default_rng(seed)
    batches = shuffle_rows(rows, tokens, rng)
    with progress("Training", tokens, unit="tokens") as advance:
        first = next(batches)
        size, kind = first.shape[1], first.dtype
        mean = first.mean(0, dtype=np.float64).astype(kind)
        spread = np.square(first - mean).sum(1, dtype=np.float64).mean()
        scale = kind.type(np.sqrt(size / spread) if spread else 1)
        flat, *state = np.zeros((4, 2 * size * n + n + size), kind)
        parameters, slopes = (_split_parameters(array, size, n) for array in (flat, state[0]))
        decoder = parameters["W_dec"]
        decoder[...] = rng.standard_normal(decoder.shape)
        decoder /= np.linalg.norm(decoder, axis=1, keepdims=True)
        parameters["W_enc"][...] = decoder.T
        parameters["b_dec"][...] = mean * scale
        schedule = Schedule(2e-4 * np.sqrt(2**14 / n))
        seen = 0
        quiet = np.zeros(n, np.int64)  # the number of tokens since each feature last fired
        for step, batch in enumerate(chain([first], batches), 1):
            x = batch[: tokens - seen] * scale
            _, grads, fired = gradients(parameters, x, k, np.flatnonzero(quiet > DEAD))
            for name, slope in grads.items():
                slopes[name][...] = slope
            # Each decoder row keeps length 1, so remove the component of the row's gradient that
            # is parallel to the row.
            along = (slopes["W_dec"] * decoder).sum(1, keepdims=True)
            slopes["W_dec"] -= along * decoder
            seen += len(x)
            rate = schedule(seen / tokens)
            adamw(flat, *state, rate=rate, betas=(0.9, 0.999), eps=1e-8, decay=0.0, step=step)
            decoder /= np.linalg.norm(decoder, axis=1, keepdims=True)
            quiet = np.where(fired, 0, quiet + len(x))
            advance(len(x))
            if seen >= tokens:
                break
    parameters = {name: array.copy() for name, array in parameters.items()}
    parameters["b_dec"] /= scale
    parameters["b_enc"] /= scale
    return parameters, seen


def _split_parameters(flat: Array, size: int, features: int) -> dict[str, Array]:
    """Split an array (n,) into views, one per parameter."""
    parts = np.split(flat, np.cumsum([size * features, features * size, features]))
    shapes = {"W_enc": (size, -1), "W_dec": (features, -1), "b_enc": (-1,), "b_dec": (-1,)}
    pairs = zip(shapes.items(), parts, strict=True)
    return {name: part.reshape(shape) for (name, shape), part in pairs}


def measures(model: Model, texts: Any, at: str, sae: Any) -> dict[str, float]:
    """Return the result of `SAE.evaluate`; `at` is the full name of the activation."""
    ids: list[Array] = []
    count = active = left = squares = 0.0
    total: Any = 0.0
    fired: Any = False
    for batch, rows in rows_of(model, texts, at):
        ids += [text.ids for text in batch]
        features = sae.encode(rows)
        count += len(rows)
        active += int((features > 0).sum())
        fired = fired | (features > 0).any(0)
        left += np.square(rows - sae.decode(features, rows)).sum(dtype=np.float64)
        squares += np.square(rows).sum(dtype=np.float64)
        total = total + rows.sum(0, dtype=np.float64)
    variance = squares - float(np.square(total).sum() / count)
    result = {
        "explained_variance": float(1 - left / variance) if variance else np.nan,
        "l0": active / count,
        "dead": 1 - float(fired.mean()),
    }
    if not model.generates:
        return result
    mean = (total / count).astype(np.float32)

    def silent(x: Array) -> Array:
        return np.broadcast_to(mean.reshape(x.shape[2:]), x.shape)

    whole, spliced, without = (_loss(model, ids, edit) for edit in ({}, {at: sae}, {at: silent}))
    gap = without - whole
    losses = {"loss": whole, "loss_spliced": spliced, "loss_mean": without}
    return result | losses | {"loss_recovered": (without - spliced) / gap if gap else np.nan}


def _loss(model: Model, ids: Sequence[Array], edit: dict[str, Any]) -> float:
    """Return the mean loss per token in nats, or NaN. The first token of a text has no loss."""
    total = count = 0.0
    batch: list[Any] = []
    for number, text in enumerate(ids, 1):
        batch.append(text)
        if number < len(ids) and sum(map(len, batch)) + len(ids[number]) <= MOST_POSITIONS // 2:
            continue
        logits = model.trace(batch, names=[], logits=True, edit=edit)["logits"]
        for tokens, rows in zip(batch, logits, strict=True):
            losses, _ = cross_entropy(rows[: len(tokens) - 1], tokens[1:])
            total += losses.sum(dtype=np.float64)
            count += len(losses)
        batch = []
    return float(total / count) if count else np.nan

"""Parts of transformers in plain NumPy, from which tests compute expected values in float64."""

import math

import numpy as np

TANH = math.sqrt(2 / math.pi)
ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "gelu_new": lambda x: 0.5 * x * (1 + np.tanh(TANH * (x + 0.044715 * x**3))),
}


def layer_norm(x, weight, bias, eps):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps) * weight + bias


def rms_norm(x, weight, eps):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight


def softmax(scores):
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


def attend(q, k, v, heads, scale=None, bias=0, visible=True):
    """Attend with one head at a time; return the joined outputs (L, heads * dv) and the weights.

    `q` has shape (L, heads * d), `k` (S, heads * d) and `v` (S, heads * dv). The bias of each head,
    or of all heads, is added to the scores. A query attends to the keys where `visible` is true.
    The scale is 1 / sqrt(d) by default.
    """
    scale = math.sqrt(heads / q.shape[1]) if scale is None else scale
    outputs, weights = [], []
    biases = np.broadcast_to(bias, (heads, len(q), len(k)))
    for *parts, added in zip(*(np.split(x, heads, axis=1) for x in (q, k, v)), biases, strict=True):
        scores = parts[0] @ parts[1].T * scale + added
        weights.append(softmax(np.where(visible, scores, -np.inf)))
        outputs.append(weights[-1] @ parts[2])
    return np.hstack(outputs), np.stack(weights)


def causal(length):
    """Return which keys (L, L) each query of a decoder attends to."""
    return np.tri(length, dtype=bool)

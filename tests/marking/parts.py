"""Right norms and activations, written in the style of a learner."""

import math

import numpy as np


def layer_norm(x, scale, shift):
    mean, var = x.mean(axis=-1, keepdims=True), x.var(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(var + 1e-5) * scale + shift


def rms_norm(x, scale, shift):
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-6) * scale


def gelu(x):
    return x * 0.5 * (1 + np.array([math.erf(n / math.sqrt(2)) for n in x.flat]).reshape(x.shape))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

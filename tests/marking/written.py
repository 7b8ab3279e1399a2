"""Right solutions of each task as source text, in which tests plant mistakes."""

import math
from pathlib import Path

import numpy as np
import pytest

from qkv_marking import check

from .answers import answers, changed

SOFTMAX = """
def soft(s):
    e = np.exp(s - s.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)
"""

WRITTEN = {
    "softmax": {
        "arrays": """
def softmax(x, axis=-1):
    top = x.max(axis=axis, keepdims=True)
    e = np.exp(x - top)
    return e / e.sum(axis=axis, keepdims=True)
""",
        "loops": """
def softmax(x):
    if x.ndim == 1:
        return softmax(x[None])[0]
    if x.ndim == 3:
        return np.stack([softmax(each) for each in x])
    weights = np.zeros(x.shape)
    for i in range(len(x)):
        top = max(x[i])
        total = 0.0
        for j in range(len(x[i])):
            total += math.exp(x[i, j] - top)
        for j in range(len(x[i])):
            weights[i, j] = math.exp(x[i, j] - top) / total
    return weights
""",
        "lists": """
def softmax(scores):
    if np.ndim(scores) > 1:
        return [softmax(row) for row in scores]
    powers = []
    for s in scores:
        powers.append(math.exp(s - max(scores)))
    return [p / sum(powers) for p in powers]
""",
    },
    "attention": {
        "options": """
def attention(q, k, v, mask=None, is_causal=False, q_offset=0):
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    L, S = scores.shape[-2:]
    visible = np.ones((L, S), dtype=bool)
    if is_causal:
        visible = np.arange(S) <= np.arange(L)[:, None] + q_offset
    if mask is not None:
        visible = visible & mask
    scores = np.where(visible, scores, -np.inf)
    top = scores.max(axis=-1, keepdims=True)
    e = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = e.sum(axis=-1, keepdims=True)
    return e / np.where(total == 0, 1, total) @ v
""",
        "masked": """
def attention(q, k, v, mask=None):
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    if mask is None:
        return soft(scores) @ v
    weights = soft(np.where(mask, scores, -1e9))
    return weights * mask.any(axis=-1, keepdims=True) @ v
""",
        "causal": """
def attention(q, k, v, is_causal=False):
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    if is_causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    return soft(scores) @ v
""",
        "matmul": """
def attention(query, key, value):
    d = query.shape[-1]
    scores = query @ key.swapaxes(-1, -2)
    scores = scores / np.sqrt(d)
    weights = soft(scores)
    return weights @ value
""",
        "einsum": """
def attention(a, b, c):
    size = a.shape[-1]
    s = np.einsum("...id,...jd->...ij", a, b) * size ** (-1 / 2)
    return np.einsum("...ij,...jv->...iv", soft(s), c)
""",
        "tables": """
def attention(q, k, v):
    d, dv = q.shape[1], v.shape[1]
    scores = np.zeros((len(q), len(k)))
    for i in range(len(q)):
        for j in range(len(k)):
            for n in range(d):
                scores[i, j] += q[i, n] * k[j, n]
            scores[i, j] = scores[i, j] / math.sqrt(d)
    weights = np.zeros((len(q), len(k)))
    for i in range(len(q)):
        top = max(scores[i])
        total = sum(math.exp(s - top) for s in scores[i])
        for j in range(len(k)):
            weights[i, j] = math.exp(scores[i, j] - top) / total
    out = np.zeros((len(q), dv))
    for i in range(len(q)):
        for j in range(len(k)):
            for c in range(dv):
                out[i, c] += weights[i, j] * v[j, c]
    return out
""",
        "lists": """
def attention(q, k, v):
    out = []
    for i in range(len(q)):
        scores = []
        for j in range(len(k)):
            scores.append(q[i] @ k[j] / math.sqrt(len(q[i])))
        e = [math.exp(s - max(scores)) for s in scores]
        row = np.zeros(len(v[0]))
        for j in range(len(e)):
            row += e[j] / sum(e) * v[j]
        out.append(row)
    return np.array(out)
""",
    },
    "projected": {
        "heads": """
def many_heads(x, w_q, w_k, w_v, num_heads=1):
    def split(a):
        return np.swapaxes(a.reshape(*a.shape[:-1], num_heads, -1), -3, -2)

    q, k, v = split(x @ w_q), split(x @ w_k), split(x @ w_v)
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    out = np.swapaxes(soft(scores) @ v, -3, -2)
    return out.reshape(*out.shape[:-2], -1)
""",
        "matmul": """
def attention(x, w_q, w_k, w_v):
    q, k, v = x @ w_q, x @ w_k, x @ w_v
    return soft(q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])) @ v
""",
        "einsum": """
def attention(words, wq, wk, wv):
    q = np.einsum("...td,de->...te", words, wq)
    k = np.einsum("...td,de->...te", words, wk)
    v = np.einsum("...td,de->...te", words, wv)
    scores = np.einsum("...id,...jd->...ij", q, k) / wq.shape[1] ** 0.5
    return np.einsum("...ij,...jv->...iv", soft(scores), v)
""",
    },
    "mask": {
        "arrays": """
def masked_attention(query, key, value, mask):
    scores = query @ np.swapaxes(key, -1, -2)
    scores = scores / np.sqrt(query.shape[-1])
    scores = np.where(mask, scores, -np.inf)
    top = scores.max(axis=-1, keepdims=True)
    e = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = e.sum(axis=-1, keepdims=True)
    weights = e / np.where(total == 0, 1, total)
    return weights @ value
""",
        "loops": """
def masked_attention(q, k, v, mask):
    d = q.shape[-1]
    out = np.zeros((len(q), v.shape[-1]))
    for i in range(len(q)):
        scores = np.zeros(len(k))
        for j in range(len(k)):
            scores[j] = q[i] @ k[j] / math.sqrt(d) if mask[i][j] else -math.inf
        top = max(scores)
        if top == -math.inf:
            continue
        e = np.exp(scores - top)
        weights = e / sum(e)
        for j in range(len(k)):
            out[i] += weights[j] * v[j]
    return out
""",
    },
    "causal": {
        "arrays": """
def causal_mask(length):
    i = np.arange(length)[:, None]
    return np.arange(length) <= i
""",
        "loops": """
def causal_mask(n):
    mask = np.zeros((n, n), dtype=bool)
    for i in range(n):
        for j in range(i + 1):
            mask[i, j] = True
    return mask
""",
    },
    "heads": {
        "reshape": """
def multi_head_attention(x, w_q, w_k, w_v, w_o, num_heads):
    q, k, v = x @ w_q, x @ w_k, x @ w_v
    q = q.reshape(*q.shape[:-1], num_heads, -1)
    k = k.reshape(*k.shape[:-1], num_heads, -1)
    v = v.reshape(*v.shape[:-1], num_heads, -1)
    q, k, v = np.swapaxes(q, -3, -2), np.swapaxes(k, -3, -2), np.swapaxes(v, -3, -2)
    d = q.shape[-1]
    scores = q @ np.swapaxes(k, -1, -2)
    scores = scores / np.sqrt(d)
    out = soft(scores) @ v
    out = np.swapaxes(out, -3, -2)
    out = out.reshape(*out.shape[:-2], -1)
    return out @ w_o
""",
        "loop": """
def many_heads(x, w_q, w_k, w_v, num_heads=1):
    q, k, v = x @ w_q, x @ w_k, x @ w_v
    d, dv = q.shape[-1] // num_heads, v.shape[-1] // num_heads
    if d * num_heads != q.shape[-1]:
        raise ValueError("the heads do not divide the columns")
    joined = np.zeros(v.shape)
    for h in range(num_heads):
        a, b = q[..., h * d : (h + 1) * d], k[..., h * d : (h + 1) * d]
        c = v[..., h * dv : (h + 1) * dv]
        scores = a @ np.swapaxes(b, -1, -2)
        scores = scores / np.sqrt(d)
        joined[..., h * dv : (h + 1) * dv] = soft(scores) @ c
    return joined
""",
        "einsum": """
def multi_head_attention(x, wq, wk, wv, w_o, num_heads):
    def split(a):
        return a.reshape(*a.shape[:-1], num_heads, -1)

    queries = split(np.einsum("...td,de->...te", x, wq))
    keys = split(np.einsum("...td,de->...te", x, wk))
    values = split(np.einsum("...td,de->...te", x, wv))
    s = np.einsum("...ihd,...jhd->...hij", queries, keys) / queries.shape[-1] ** 0.5
    out = np.einsum("...hij,...jhd->...ihd", soft(s), values)
    return out.reshape(*out.shape[:-2], -1) @ w_o
""",
    },
    "positions": {
        "arrays": """
def positions(length, dim):
    table = np.zeros((length, dim))
    i = np.arange(0, dim, 2)
    power = 10000 ** (i / dim)
    angle = np.arange(length)[:, None] / power
    table[:, 0::2] = np.sin(angle)
    table[:, 1::2] = np.cos(angle[:, : dim // 2])
    return table
""",
        "loops": """
def positions(n, d):
    table = np.zeros((n, d))
    for position in range(n):
        for c in range(d):
            pair = c // 2
            angle = position / 10000 ** (2 * pair / d)
            table[position, c] = math.cos(angle) if c % 2 else math.sin(angle)
    return table
""",
        "logarithm": """
def positions(max_len, d_model):
    position = np.arange(max_len)[:, np.newaxis]
    speed = np.exp(np.arange(0, d_model, 2) * -(np.log(10000.0) / d_model))
    pe = np.zeros((max_len, d_model))
    pe[:, 0::2] = np.sin(position * speed)
    pe[:, 1::2] = np.cos(position * speed[: d_model // 2])
    return pe
""",
    },
    "self-attention-class": {
        "reshape": """
class SelfAttention:
    def __init__(self, embed_dim, num_heads, seed=0):
        if embed_dim % num_heads:
            raise ValueError("num_heads must divide embed_dim")
        rng = np.random.default_rng(seed)
        self.num_heads = num_heads
        self.w_q = rng.normal(size=(embed_dim, embed_dim)) / np.sqrt(embed_dim)
        self.w_k = rng.normal(size=(embed_dim, embed_dim)) / np.sqrt(embed_dim)
        self.w_v = rng.normal(size=(embed_dim, embed_dim)) / np.sqrt(embed_dim)
        self.w_o = rng.normal(size=(embed_dim, embed_dim)) / np.sqrt(embed_dim)

    def split(self, a):
        return np.swapaxes(a.reshape(*a.shape[:-1], self.num_heads, -1), -3, -2)

    def __call__(self, x):
        q, k, v = self.split(x @ self.w_q), self.split(x @ self.w_k), self.split(x @ self.w_v)
        d = q.shape[-1]
        scores = q @ np.swapaxes(k, -1, -2)
        scores = scores / np.sqrt(d)
        out = soft(scores) @ v
        out = np.swapaxes(out, -3, -2).reshape(x.shape)
        return out @ self.w_o
""",
        "loop": """
class SelfAttention:
    def __init__(self, dim, heads):
        if dim % heads:
            raise ValueError("heads must divide dim")
        rng = np.random.default_rng(3)
        self.h, self.d = heads, dim // heads
        self.w_q, self.w_k, self.w_v, self.w_o = rng.normal(size=(4, dim, dim)) / dim**0.5

    def __call__(self, x):
        q, k, v = x @ self.w_q, x @ self.w_k, x @ self.w_v
        parts = []
        for h in range(self.h):
            here = slice(h * self.d, (h + 1) * self.d)
            scores = np.einsum("...id,...jd->...ij", q[..., here], k[..., here]) / self.d ** 0.5
            parts.append(soft(scores) @ v[..., here])
        return np.concatenate(parts, axis=-1) @ self.w_o
""",
    },
    "block": {
        "arrays": """
def norm(x, scale, shift):
    mean = x.mean(axis=-1, keepdims=True)
    var = x.var(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(var + 1e-5) * scale + shift

def gelu(x):
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

def block(x, parameters, num_heads=1):
    p = parameters
    T, D = x.shape
    d = D // num_heads
    n = norm(x, p["norm1_scale"], p["norm1_shift"])
    q, k, v = n @ p["w_q"], n @ p["w_k"], n @ p["w_v"]
    q, k, v = (np.swapaxes(a.reshape(T, num_heads, d), 0, 1) for a in (q, k, v))
    scores = q @ np.swapaxes(k, -1, -2)
    scores = scores / np.sqrt(d)
    out = np.swapaxes(soft(scores) @ v, 0, 1).reshape(T, D)
    x = x + out @ p["w_o"]
    n = norm(x, p["norm2_scale"], p["norm2_shift"])
    return x + gelu(n @ p["w_in"] + p["b_in"]) @ p["w_out"] + p["b_out"]
""",
        "loops": """
def rms(row, scale):
    mean_square = sum(n * n for n in row) / len(row)
    return row / math.sqrt(mean_square + 1e-5) * scale

def gelu(x):
    return 0.5 * x * (1 + math.erf(x / math.sqrt(2)))

def block(x, par):
    normed = np.array([rms(row, par["norm1_scale"]) for row in x])
    q = normed @ par["w_q"]
    k = normed @ par["w_k"]
    v = normed @ par["w_v"]
    size = q.shape[1]
    found = np.zeros(x.shape)
    for i in range(len(x)):
        scores = [q[i] @ k[j] / math.sqrt(size) for j in range(len(x))]
        e = [math.exp(s - max(scores)) for s in scores]
        for j in range(len(x)):
            found[i] += e[j] / sum(e) * v[j]
    x = x + found @ par["w_o"]
    rows = []
    for row in x:
        hidden = rms(row, par["norm2_scale"]) @ par["w_in"] + par["b_in"]
        hidden = np.array([gelu(h) for h in hidden])
        rows.append(row + hidden @ par["w_out"] + par["b_out"])
    return np.array(rows)
""",
    },
    "kv-cache": {
        "arrays": """
def step(x, cache, w_q, w_k, w_v):
    q, k, v = x @ w_q, x @ w_k, x @ w_v
    before = 0
    if cache is not None:
        before = len(cache[0])
        k = np.concatenate([cache[0], k])
        v = np.concatenate([cache[1], v])
    d = q.shape[-1]
    scores = q @ k.T
    scores = scores / np.sqrt(d)
    visible = np.arange(len(k)) <= before + np.arange(len(x))[:, None]
    scores = np.where(visible, scores, -np.inf)
    weights = soft(scores)
    return weights @ v, (k, v)
""",
        "lists": """
def step(x, cache, wq, wk, wv):
    keys, values = cache if cache else ([], [])
    keys, values = list(keys), list(values)
    out = []
    for word in x:
        q = word @ wq
        keys.append(word @ wk)
        values.append(word @ wv)
        scores = [q @ key / math.sqrt(len(q)) for key in keys]
        e = [math.exp(s - max(scores)) for s in scores]
        row = np.zeros(wv.shape[1])
        for j in range(len(values)):
            row += e[j] / sum(e) * values[j]
        out.append(row)
    return np.array(out), (keys, values)
""",
    },
    "decoder": {
        "arrays": """
def norm(x, weight, eps):
    square = (x * x).mean(axis=-1, keepdims=True)
    return x / np.sqrt(square + eps) * weight

def rotate(x, theta):
    T, d = x.shape[-2:]
    i = np.arange(0, d, 2)
    power = theta ** (i / d)
    angle = np.arange(T)[:, None] / power
    cos, sin = np.cos(angle), np.sin(angle)
    a, b = x[..., : d // 2], x[..., d // 2 :]
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)

def silu(x):
    return x / (1 + np.exp(-x))

def decoder(ids, weights, config):
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    eps, theta = config["rms_norm_eps"], config["rope_theta"]
    table = weights["model.embed_tokens.weight"]
    x = table[ids]
    T = len(ids)
    for layer in range(config["num_hidden_layers"]):
        before = f"model.layers.{layer}."
        names = [name for name in weights if name.startswith(before)]
        w = {name.removeprefix(before).removesuffix(".weight"): weights[name] for name in names}
        h = norm(x, w["input_layernorm"], eps)
        q = np.swapaxes((h @ w["self_attn.q_proj"].T).reshape(T, heads, -1), 0, 1)
        k = np.swapaxes((h @ w["self_attn.k_proj"].T).reshape(T, groups, -1), 0, 1)
        v = np.swapaxes((h @ w["self_attn.v_proj"].T).reshape(T, groups, -1), 0, 1)
        q, k = rotate(q, theta), rotate(k, theta)
        k, v = (np.repeat(a, heads // groups, axis=0) for a in (k, v))
        d = q.shape[-1]
        scores = q @ np.swapaxes(k, -1, -2)
        scores = scores / np.sqrt(d)
        scores = np.where(np.tri(T, dtype=bool), scores, -np.inf)
        out = np.swapaxes(soft(scores) @ v, 0, 1).reshape(T, -1)
        x = x + out @ w["self_attn.o_proj"].T
        h = norm(x, w["post_attention_layernorm"], eps)
        x = x + (silu(h @ w["mlp.gate_proj"].T) * (h @ w["mlp.up_proj"].T)) @ w["mlp.down_proj"].T
    x = norm(x, weights["model.norm.weight"], eps)
    return x @ weights.get("lm_head.weight", table).T
""",
        "loops": """
def normed(x, weight, eps):
    out = []
    for row in x:
        square = sum(n * n for n in row) / len(row)
        out.append(row / math.sqrt(square + eps) * weight)
    return np.array(out)

def turned(row, position, theta):
    d = len(row)
    new = np.zeros(d)
    for i in range(d // 2):
        angle = position * theta ** (-2 * i / d)
        a, b = row[i], row[i + d // 2]
        new[i] = a * math.cos(angle) - b * math.sin(angle)
        new[i + d // 2] = a * math.sin(angle) + b * math.cos(angle)
    return new

def decoder(ids, weights, config):
    n, g = config["num_attention_heads"], config["num_key_value_heads"]
    eps = config["rms_norm_eps"]
    embed = weights["model.embed_tokens.weight"]
    x = np.array([embed[i] for i in ids])
    for layer in range(config["num_hidden_layers"]):
        def w(name):
            return weights[f"model.layers.{layer}.{name}.weight"]
        y = normed(x, w("input_layernorm"), eps)
        q, k, v = (y @ w(f"self_attn.{r}_proj").T for r in "qkv")
        size = q.shape[1] // n
        joined = np.zeros(q.shape)
        for h in range(n):
            kv = h // (n // g)
            qs, ks = q[:, h * size : (h + 1) * size], k[:, kv * size : (kv + 1) * size]
            vs = v[:, kv * size : (kv + 1) * size]
            qs = np.array([turned(row, t, config["rope_theta"]) for t, row in enumerate(qs)])
            ks = np.array([turned(row, t, config["rope_theta"]) for t, row in enumerate(ks)])
            for t in range(len(x)):
                scores = [qs[t] @ ks[j] / math.sqrt(size) for j in range(t + 1)]
                e = [math.exp(s - max(scores)) for s in scores]
                for j in range(t + 1):
                    joined[t, h * size : (h + 1) * size] += e[j] / sum(e) * vs[j]
        x = x + joined @ w("self_attn.o_proj").T
        y = normed(x, w("post_attention_layernorm"), eps)
        gate = y @ w("mlp.gate_proj").T
        x = x + (gate / (1 + np.exp(-gate)) * (y @ w("mlp.up_proj").T)) @ w("mlp.down_proj").T
    x = normed(x, weights["model.norm.weight"], eps)
    head = weights["lm_head.weight"] if "lm_head.weight" in weights else embed
    return x @ head.T
""",
    },
    "recurrence-table": {
        "loops": """
def recurrence_table(length, keep):
    table = np.zeros((length, length))
    for i in range(length):
        for j in range(i, length):
            table[i, j] = (1 - keep) * keep ** (j - i)
    return table
""",
        "recurrence": """
def recurrence_table(length, keep):
    state, rows = np.zeros(length), []
    for word in np.eye(length)[::-1]:
        state = keep * state + (1 - keep) * word
        rows.append(state)
    return np.array(rows[::-1])
""",
        "outer": """
def recurrence_table(length, keep):
    steps = np.subtract.outer(np.arange(length), np.arange(length))
    return np.triu((1 - keep) * keep ** -np.minimum(steps, 0).astype(float))
""",
    },
    "score-needed": {
        "quotient": """
def score_needed(weight, others):
    return np.log(others * weight / (1 - weight))
""",
        "logarithms": """
import math
def score_needed(weight, others):
    return math.log(others) + math.log(weight) - math.log1p(-weight)
""",
    },
    "ids": {
        "loop": """
def to_ids(sentence, vocabulary):
    ids = []
    for word in sentence.split():
        if word in vocabulary:
            ids.append(vocabulary[word])
        else:
            ids.append(vocabulary["[UNK]"])
    return ids
""",
        "get": """
def to_ids(sentence, vocabulary):
    unknown = vocabulary['[UNK]']
    return np.array([vocabulary.get(w, unknown) for w in sentence.split(' ')])
""",
        "tuple": """
def to_ids(s, v):
    return tuple(v.get(w, v['[UNK]']) for w in s.split())
""",
    },
    "rotation": {
        "loop": """
def rotation(dim, steps):
    matrix = np.zeros((dim, dim))
    for i in range(0, dim, 2):
        angle = steps * 10000.0 ** (-i / dim)
        sin, cos = np.sin(angle), np.cos(angle)
        matrix[i : i + 2, i : i + 2] = [[cos, -sin], [sin, cos]]
    return matrix
""",
        "diagonal": """
def rotation(dim, steps):
    angle = np.repeat(steps / 10000 ** (np.arange(0, dim, 2) / dim), 2)
    matrix = np.diag(np.cos(angle))
    for i in range(0, dim, 2):
        matrix[i, i + 1], matrix[i + 1, i] = -np.sin(angle[i]), np.sin(angle[i])
    return matrix
""",
        "kron": """
def rotation(dim, steps):
    z = np.exp(1j * steps * 10000 ** (-np.arange(0, dim, 2) / dim))
    return np.kron(np.diag(z.real), np.eye(2)) + np.kron(np.diag(z.imag), [[0, -1], [1, 0]])
""",
    },
    "neighbour-score": {
        "loop": """
def neighbour_score(weights, step):
    found = []
    for i in range(len(weights)):
        if 0 <= i + step < len(weights):
            found.append(weights[i, i + step])
    return sum(found) / len(found)
""",
        "diagonal": """
def neighbour_score(w, step):
    return np.diagonal(w, step).mean()
""",
        "average": """
def neighbour_score(w, step):
    i = np.arange(max(0, -step), len(w) - max(0, step))
    return np.average(w[i, i + step])
""",
    },
    "softmax-back": {
        "mean": """
def softmax_back(weights, d_weights):
    mean = (weights * d_weights).sum(axis=-1, keepdims=True)
    return weights * (d_weights - mean)
""",
        "jacobian": """
def softmax_back(a, g):
    return np.stack([(np.diag(row) - np.outer(row, row)) @ up for row, up in zip(a, g)])
""",
        "einsum": """
def softmax_back(a, g):
    return a * g - a * np.einsum('ij,ij->i', a, g)[:, None]
""",
    },
    "gradients": {
        "arrays": """
def gradients(x, w_q, w_k, w_v, d_context):
    q, k, v = x @ w_q, x @ w_k, x @ w_v
    a = soft(q @ k.T / np.sqrt(q.shape[-1]))
    d_a = d_context @ v.T
    d_v = a.T @ d_context
    d_s = a * (d_a - (a * d_a).sum(axis=-1, keepdims=True)) / np.sqrt(q.shape[-1])
    d_q = d_s @ k
    d_k = d_s.T @ q
    return x.T @ d_q, x.T @ d_k, x.T @ d_v
""",
    },
    "next-token-loss": {
        "loops": """
def next_token_loss(logits, ids, padding):
    losses = []
    for rows, text in zip(logits, ids):
        for i in range(len(text) - 1):
            target = text[i + 1]
            if target == padding:
                continue
            x = rows[i] - rows[i].max()
            total = np.exp(x).sum()
            losses.append(np.log(total) - x[target])
    return sum(losses) / len(losses)
""",
        "flat": """
def next_token_loss(logits, ids, padding):
    B, T, V = logits.shape
    x, y = logits[:, :-1].reshape(-1, V), ids[:, 1:].reshape(-1)
    x, y = x[y != padding], y[y != padding]
    return np.mean(np.logaddexp.reduce(x, axis=1) - x[np.arange(len(y)), y])
""",
        "probabilities": """
def next_token_loss(logits, ids, padding):
    e = np.exp(logits[:, :-1] - logits[:, :-1].max(axis=-1, keepdims=True))
    p = e / e.sum(axis=-1, keepdims=True)
    p = np.take_along_axis(p, ids[:, 1:, None], axis=-1)[..., 0]
    losses = -np.log(p)
    seen = ids[:, 1:] != padding
    return losses[seen].mean()
""",
    },
    "learning-rate": {
        "cases": """
def learning_rate(step, steps, warmup, highest):
    if step < warmup:
        return highest * (step + 1) / warmup
    return highest * (steps - step) / (steps - warmup)
""",
        "table": """
def learning_rate(step, steps, warmup, highest):
    rates = np.concatenate([np.arange(1, warmup + 1) / warmup,
                            np.linspace(1, 0, steps - warmup, endpoint=False)])
    return highest * rates[step]
""",
    },
    "top-k": {
        "order": """
def top_k(logits, k, temperature):
    scaled = logits / temperature
    order = np.argsort(scaled)[::-1]
    out = np.zeros(len(logits))
    e = np.exp(scaled[order[:k]] - scaled.max())
    out[order[:k]] = e / e.sum()
    return out
""",
        "partition": """
def top_k(logits, k, temperature):
    x = (logits - logits.max()) / temperature
    p = np.exp(x) / np.exp(x).sum()
    p[np.argpartition(p, len(p) - k)[:len(p) - k]] = 0
    return p / p.sum()
""",
    },
    "top-p": {
        "loop": """
def top_p(probabilities, p):
    order = np.argsort(-probabilities)
    kept = np.zeros(len(probabilities))
    total = 0.0
    for token in order:
        kept[token] = probabilities[token]
        total += probabilities[token]
        if total >= p:
            break
    return kept / kept.sum()
""",
        "sorted": """
def top_p(probabilities, p):
    order = np.argsort(probabilities)[::-1]
    sums = probabilities[order].cumsum()
    last = np.searchsorted(sums, p)
    out = np.zeros_like(probabilities)
    out[order[: last + 1]] = probabilities[order[: last + 1]]
    return out / out.sum()
""",
    },
}

BASES = {answer["file"]: answer["code"] for answer in answers() if answer["kind"] == "base"}

# names in WRITTEN that differ from the name of their task
TASK_OF = {"projected": "attention", "causal": "mask"}
FRAGILE = "next-token-loss/probabilities"  # the logarithm of a probability that underflows
STYLES = [f"{task}/{style}" for task, styles in WRITTEN.items() for style in styles]
STYLES.remove(FRAGILE)


def run(source):
    """Run a source text, and return the last object that it defines."""
    found = {"np": np, "math": math}
    exec(source, found)
    return [*found.values()][-1]


def planted(written, changes=""):
    """Return a right solution after the changes "old => new ;; ...".

    The solution is one of `WRITTEN`, such as "softmax/arrays", or a base of the folder `trial`.
    """
    task, _, style = written.partition("/")
    source = WRITTEN[task][style] if style else BASES[task]
    source = SOFTMAX + source if "soft(" in source else source
    return run(changed(source, changes.replace(" ;; ", "\n\n")) if changes else source)


def marked(written, changes="", **options):
    """Mark a right solution after changes."""
    task = written.partition("/")[0]
    way = "x,w_q,w_k,w_v" if task == "projected" else "qkv"
    return check(planted(written, changes), way, task=TASK_OF.get(task, task), **options)


def is_flawless(result):
    """Return whether a verdict gives all points and finds nothing."""
    findings = (result.mistakes, result.fragile, result.conventions, result.hint)
    return (result.passed, result.points, *findings) == (True, 10, (), (), (), ())


def plantings(file):
    """Return the mistakes, the solution and its changes of each line of a file, as cases of a test.

    A line has the keys that the marker finds, the solutions that are changed, and the changes.
    """
    cases = []
    for line in (Path(__file__).parent / file).read_text("utf-8").splitlines():
        keys, written, changes = line.split(" | ", 2)
        for one in written.split():
            new = changes.partition("=>")[2].strip()[:30]
            cases.append(pytest.param(keys, one, changes, id=f"{keys}-{one}-{new}"))
    return cases

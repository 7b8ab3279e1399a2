"""What the kernels of the sixth trial's second writer share."""

import numpy as np

from .pieces import quiet as quiet

NINF = -np.inf


def positions(B, L, S, q_offset=None):
    """Absolute position of each query, (B, L)."""
    off = S - L if q_offset is None else q_offset
    return np.broadcast_to(np.asarray(off, dtype=np.int64), (B,))[:, None] + np.arange(L)


def visible(B, H, L, S, is_causal=False, q_offset=None, mask=None, window=None, key_lengths=None):
    p = positions(B, L, S, q_offset)[:, None, :, None]
    j = np.arange(S)
    ok = np.ones((B, H, L, S), bool)
    if is_causal:
        ok &= j <= p
    if window is not None:
        left, right = window
        if left is not None:
            ok &= j >= p - left
        if right is not None:
            ok &= j <= p + right
    if key_lengths is not None:
        ok &= j < np.asarray(key_lengths).reshape(B, 1, 1, 1)
    if mask is not None:
        ok &= np.asarray(mask, bool)
    return ok


def spread(x, H):
    """Key heads repeated to the query heads, in float64."""
    return np.repeat(np.asarray(x, np.float64), H // x.shape[1], axis=1)


def weigh(P, V, ok):
    """P @ V in which a hidden row of V takes no part, whatever it holds."""
    bad = ~np.isfinite(V).all(-1)
    if not bad.any():
        return P @ V
    out = P @ np.where(bad[..., None], 0.0, V)
    for j in np.unique(np.nonzero(bad)[-1]):
        hit = ok[..., j] & bad[..., j][..., None]
        out = out + np.where(hit[..., None], P[..., j][..., None] * V[..., j, :][..., None, :], 0.0)
    return out


def logits(
    q, k, scale=None, softcap=None, bias=None, alibi_slopes=None, q_offset=None, first=0, S=None
):
    """Scores before any masking, (B, H, L, n); first/S place a slice of the keys."""
    B, H, L, d = q.shape
    n = k.shape[2]
    S = n if S is None else S
    s = np.asarray(q, np.float64) @ np.swapaxes(spread(k, H), -1, -2)
    s = s * (d**-0.5 if scale is None else scale)
    if softcap:
        s = softcap * np.tanh(s / softcap)
    if bias is not None:
        s = s + np.broadcast_to(bias, (B, H, L, S))[..., first : first + n]
    if alibi_slopes is not None:
        p = positions(B, L, S, q_offset)[:, None, :, None]
        s = s - np.asarray(alibi_slopes, np.float64).reshape(1, H, 1, 1) * np.abs(
            p - (first + np.arange(n))
        )
    return s


class Running:
    """Online softmax over key tiles."""

    def __init__(self, head, dv, seed=None):
        self.m = np.full(head, NINF)
        self.sums = np.zeros(head)
        self.acc = np.zeros((*head, dv))
        if seed is not None:
            self.m = np.broadcast_to(np.asarray(seed, np.float64), head).copy()
            self.sums = (self.m > NINF).astype(np.float64)

    def add(self, s, ok, V):
        s = np.where(ok, s, NINF)
        top = np.maximum(self.m, s.max(-1, initial=NINF))
        base = np.where(top == NINF, 0.0, top)
        a = np.exp(self.m - base)
        p = np.where(ok, np.exp(s - base[..., None]), 0.0)
        self.sums = self.sums * a + p.sum(-1)
        self.acc = self.acc * a[..., None] + weigh(p, V, ok)
        self.m = top
        return p

    def output(self):
        return self.acc / np.where(self.sums == 0, 1.0, self.sums)[..., None]

    def lse(self):
        return np.where(
            self.sums == 0, NINF, self.m + np.log(np.where(self.sums == 0, 1.0, self.sums))
        )


def hand_back(like, out, weights=None, lse=None):
    r = [x.astype(like.dtype) for x in (out, weights, lse) if x is not None]
    return r[0] if len(r) == 1 else tuple(r)


def plain_softmax(s, ok):
    s = np.where(ok, s, NINF)
    m = s.max(-1, keepdims=True, initial=NINF)
    e = np.where(ok, np.exp(s - np.where(m == NINF, 0.0, m)), 0.0)
    z = e.sum(-1, keepdims=True)
    return np.where(ok, e / np.where(z == 0, 1.0, z), 0.0), m[..., 0], z[..., 0]

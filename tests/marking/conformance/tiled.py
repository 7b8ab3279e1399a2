"""A kernel with tiles and an online softmax, and mistakes to plant in this kernel."""

import numpy as np

TILE = 16


def kernel(*spoiled, tile=TILE):
    """Return the kernel with these mistakes; without mistakes, the kernel is right."""
    unknown = {*spoiled} - SPOILS
    assert not unknown, unknown

    def attention(
        query,
        key,
        value,
        attn_mask=None,
        *,
        is_causal=False,
        q_offset=None,
        window=None,
        bias=None,
        alibi_slopes=None,
        softcap=None,
        sinks=None,
        scale=None,
        query_lengths=None,
        key_lengths=None,
        return_weights=False,
        return_lse=False,
    ):
        B, Hq, L, d = query.shape
        Hkv, S, dv = key.shape[1], key.shape[2], value.shape[3]
        own = query.dtype
        if "contiguous" in spoiled:
            query, key, value = map(as_pointer, (query, key, value))
        if own == np.float16:
            query, key, value = (x.astype(np.float32) for x in (query, key, value))
        full = (B, Hq, L, S)
        mask = None if attn_mask is None else np.broadcast_to(attn_mask, full)
        if "mask-head-0" in spoiled and mask is not None:
            mask = np.broadcast_to(mask[:, :1], full)
        extra = None if bias is None else np.broadcast_to(bias, full)
        if "scale-falsy" in spoiled:
            scale = (scale or 1 / np.sqrt(d)) if scale != 0 else 1 / np.sqrt(d)
        factor = 1 / np.sqrt(d) if scale is None or "scale-ignored" in spoiled else scale
        if "scale-twice" in spoiled:
            factor = factor**2
        out = np.zeros((B, Hq, L, dv), query.dtype)
        lse = np.full((B, Hq, L), -np.inf, query.dtype)
        weights = np.zeros(full, query.dtype)
        for b in range(B):
            if q_offset is None or isinstance(q_offset, str):
                position = S - L if q_offset == "end" else 0
            else:
                position = int(
                    np.broadcast_to(q_offset, B)[0 if "offset-of-row-0" in spoiled else b]
                )
            keys = S if key_lengths is None else int(key_lengths[b])
            if "lengths-ignored" in spoiled:
                keys = S
            queries = L if query_lengths is None else int(query_lengths[b])
            at = np.arange(queries)[:, None] + position
            for h in range(Hq):
                head = h % Hkv if "heads-modulo" in spoiled else h // (Hq // Hkv)
                q = query[b, h, :queries]
                top = np.full(queries, -np.inf, np.float32)
                if "top-0" in spoiled:
                    top[:] = 0
                total = np.zeros(queries, np.float32)
                acc = np.zeros((queries, dv), np.float32)
                sink = None
                if sinks is not None:
                    sink = np.atleast_1d(sinks[h]).astype(np.float32)
                    top = np.maximum(top, sink.max())
                    if "sinks-per-tile" not in spoiled:
                        total += np.exp(sink - top[:, None]).sum(-1)
                raw = []
                last = keys // tile * tile if "partial-tile" in spoiled else keys
                for begin in range(0, last, tile):
                    end = min(begin + tile, last)
                    j = np.arange(begin, end)
                    k, v = key[b, head, begin:end], value[b, head, begin:end]
                    s = (q @ k.T) * np.float32(factor)
                    if extra is not None and "bias-before-cap" in spoiled:
                        s = s + extra[b, h, :queries, begin:end]
                    if softcap is not None and "cap-last" not in spoiled:
                        s = np.float32(softcap) * np.tanh(s / np.float32(softcap))
                    if extra is not None and "bias-before-cap" not in spoiled:
                        s = s + extra[b, h, :queries, begin:end]
                    if alibi_slopes is not None:
                        away = at - j if "alibi-signed" in spoiled else abs(at - j)
                        if "alibi-no-offset" in spoiled:
                            away = abs(at - position - j)
                        s = s - alibi_slopes[h] * away
                    seen = np.ones(s.shape, bool)
                    if mask is not None:
                        part = mask[b, h, :queries, begin:end]
                        if part.dtype == bool:
                            seen &= ~part if "mask-inverted" in spoiled else part
                        else:
                            s = s + part
                            seen &= part != -np.inf
                    if extra is not None:
                        seen &= extra[b, h, :queries, begin:end] != -np.inf
                    if is_causal:
                        row = at - position if "causal-start" in spoiled else at
                        seen &= j < row if "causal-strict" in spoiled else j <= row
                    if window is not None:
                        left, right = window
                        if left is not None:
                            seen &= j >= at - left + ("window-short" in spoiled)
                        if right is not None and "window-no-right" not in spoiled:
                            seen &= j <= at + right
                    hidden = -1e4 if "finite" in spoiled else -np.inf
                    s = np.where(seen, s, np.float32(hidden)).astype(np.float32)
                    if softcap is not None and "cap-last" in spoiled:
                        s = np.float32(softcap) * np.tanh(s / np.float32(softcap))
                        seen = np.ones(s.shape, bool)
                    raw.append(s)
                    higher = np.maximum(top, s.max(-1))
                    shift = (
                        higher if "nan-tile" in spoiled else np.where(higher == -np.inf, 0, higher)
                    )
                    change = np.exp(top - shift)
                    e = np.exp(s - shift[:, None])
                    if "half-sums" in spoiled:
                        total = (total * change + e.sum(-1)).astype(np.float16).astype(np.float32)
                    elif "stale-sum" in spoiled:
                        total = total + e.sum(-1)
                    else:
                        total = total * change + e.sum(-1)
                    if "half-weights" in spoiled:
                        e = e.astype(np.float16).astype(np.float32)
                    if not {"leak", "finite"} & {*spoiled}:
                        used = seen.any(0)[:, None]
                        v = np.where(used, v, 0)
                    acc = (acc if "stale-acc" in spoiled else acc * change[:, None]) + product(
                        e, v, seen, "leak" in spoiled
                    )
                    if "half-sums" in spoiled:
                        acc = acc.astype(np.float16).astype(np.float32)
                    top = higher
                finite = np.where(top == -np.inf, 0, top)
                if sink is not None and "sinks-per-tile" in spoiled:
                    total = total + len(raw) * np.exp(sink - finite[:, None]).sum(-1)
                known = ~(total <= 0)  # a NaN total gives NaN, not 0
                with np.errstate(all="ignore"):
                    rows = acc / total[:, None]
                if not {"nan", "nan-tile"} & {*spoiled}:
                    rows = np.where(known[:, None], rows, 0)
                    if "rows-first" in spoiled and keys:
                        rows = np.where(known[:, None], rows, value[b, head, :1])
                out[b, h, :queries] = rows
                with np.errstate(divide="ignore"):
                    if "lse-log2" in spoiled:
                        lse[b, h, :queries] = finite + np.log2(total)
                    else:
                        lse[b, h, :queries] = np.where(known, finite + np.log(total), -np.inf)
                if raw:
                    s = np.concatenate(raw, axis=-1)
                    with np.errstate(all="ignore"):
                        w = np.exp(s - lse[b, h, :queries, None])
                    weights[b, h, :queries, : s.shape[1]] = np.where(known[:, None], w, 0)
        if "log-of-1" in spoiled:
            lse = lse / np.log(2)
        found = [out.astype(own)]
        if return_weights:
            found.append(weights)
        if return_lse:
            found.append(lse)
        return tuple(found) if len(found) > 1 else found[0]

    return attention


def product(e, v, seen, leaks):
    """Multiply weights by values; ignore masked NaN values unless `leaks` is set."""
    if leaks or np.isfinite(v).all():
        return e @ v
    out = e @ np.where(np.isfinite(v), v, 0)
    bad = np.where(np.isfinite(v), 0, v)
    for j in np.flatnonzero(~np.isfinite(v).all(1)):
        out = out + np.where(seen[:, j, None], e[:, j, None] * bad[j], 0)
    return out


def as_pointer(x):
    """Return the numbers from the first one on, as a kernel reads them through a pointer."""
    whole = x
    while isinstance(whole.base, np.ndarray):
        whole = whole.base
    first = (x.ctypes.data - whole.ctypes.data) // x.itemsize
    return np.resize(whole.reshape(-1)[first:], x.size).reshape(x.shape)


# for each mistake: the feature that shows the mistake, and the defect that the report must name
PLANTED = {
    "partial-tile": ("plain", "last-partial-tile"),
    "stale-acc": ("plain", "accumulator-not-rescaled"),
    "stale-sum": ("plain", "sum-not-rescaled"),
    "scale-twice": ("plain", "scale-twice"),
    "half-weights": ("plain", "weights-rounded"),
    "half-sums": ("plain", "sums-in-half"),
    "scale-ignored": ("scale", "scale-ignored"),
    "scale-falsy": ("scale", "scale-zero"),
    "heads-modulo": ("grouped heads", "heads-interleaved"),
    "causal-start": ("causal", "causal-first-key"),
    "causal-strict": ("causal", "causal-strict"),
    "offset-of-row-0": ("q_offset", "first-batch-of-q_offset"),
    "mask-inverted": ("bool mask", "mask-inverted"),
    "mask-head-0": ("bool mask", "first-head-of-allowed"),
    "window-short": ("window", "window-left-short"),
    "window-no-right": ("window", "window-right-ignored"),
    "alibi-signed": ("ALiBi", "alibi-without-abs"),
    "alibi-no-offset": ("ALiBi", "offset-ignored-alibi"),
    "bias-before-cap": ("softcap", "softcap-after-bias"),
    "cap-last": ("softcap", "softcap-after-mask"),
    "sinks-per-tile": ("sinks", "sinks-once-a-tile"),
    "lengths-ignored": ("lengths", "key-lengths-ignored"),
    "lse-log2": ("LSE", "lse-half-base-2"),
    "log-of-1": ("LSE", "lse-base-2"),
    "contiguous": ("strides", "strides-ignored"),
    "nan": ("rows that see nothing", "nothing-is-nan"),
    "nan-tile": ("window", "hidden-tile-is-nan-unless-all-are"),  # this feature has no such rows
    "finite": ("rows that see nothing", "finite-mask"),
    "rows-first": ("rows that see nothing", "nothing-is-first"),
    "top-0": ("large scores", "maximum-begins-at-zero-guarded"),
    "leak": ("hidden NaN", "hidden-values"),
}
SPOILS = {*PLANTED}

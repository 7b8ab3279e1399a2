"""The fifth trial, first writer: defective kernels, most of them after public reports."""

import numpy as np
from numpy.lib.stride_tricks import as_strided

from .fifth_a_pieces import (
    NINF,
    Call,
    Online,
    band_of,
    batch_of,
    by_einsum,
    by_halves,
    by_logs,
    by_rows,
    dense,
    flash,
    is_bool,
    joined,
    mixed,
    place_of,
    quiet,
    softmax,
)


@quiet
def grouped_decode_stage1(query, key, value, scale=None, key_lengths=None, return_lse=False):
    c = Call(query, key, value, scale=scale, key_lengths=key_lengths)
    out, lse = c.blank()
    block_h = min(2, c.G)
    for b in range(c.B):
        for tile in range(-(-c.H // block_h)):
            kv = tile * block_h // c.G
            for h in range(tile * block_h, min(c.H, (tile + 1) * block_h)):
                parts = []
                for j in range(0, c.S, 24):
                    cols = slice(j, j + 24)
                    w, sums = softmax(c.scores(b, h, cols=cols, kv=kv))
                    parts.append((c.mix(w, b, h, cols=cols, kv=kv), sums))
                if parts:
                    out[b, h], lse[b, h] = joined(parts)
    return c.emit(out, lse, return_lse=return_lse)


@quiet
def kittens_forward(query, key, value, is_causal=False, q_offset=None, scale=None):
    c = Call(query, key, value, is_causal=is_causal, q_offset=q_offset, scale=scale)
    out, _ = c.blank()
    for block in range(c.B * c.H):
        b, x = divmod(block, c.H)
        head = (x % c.G) * c.G + x // c.G
        if head >= c.H:
            continue
        w, _ = softmax(c.scores(b, head))
        out[b, head] = c.mix(w, b, head)
    return c.emit(out)


@quiet
def chunked_prefill(
    query, key, value, attn_mask=None, is_causal=False, q_offset=None, scale=None, return_lse=False
):
    c = Call(query, key, value, attn_mask, is_causal, q_offset, scale=scale)

    def tiles(i0, i1, b):
        stop = min(c.S, i1) if is_causal else c.S
        return range(0, stop, 8)

    out, lse = flash(c, 8, 8, tiles)
    return c.emit(out, lse, return_lse=return_lse)


class BatchPrefill:
    """Sizes the span of keys of every query tile before it visits them."""

    def __init__(self, cta_q=16, chunk=8):
        self.cta_q, self.chunk = cta_q, chunk

    def span(self, c, window, i0, b):
        if window is None or window[0] is None:
            return 0, c.S
        start = min(c.S, max(0, i0 + int(c.off[b]) - window[0]))
        return start, min(c.S, start + window[0] + self.cta_q)

    @quiet
    def __call__(self, query, key, value, is_causal=False, q_offset=None, window=None, scale=None):
        c = Call(
            query, key, value, is_causal=is_causal, q_offset=q_offset, window=window, scale=scale
        )

        def tiles(i0, i1, b):
            start, stop = self.span(c, window, i0, b)
            return range(start, stop, self.chunk)

        def score(b, h, rows, cols):
            s = c.scores(b, h, rows, cols)
            stop = self.span(c, window, rows.start, b)[1]
            return np.where(np.arange(cols.start, cols.stop) < stop, s, NINF)

        return c.emit(flash(c, self.cta_q, self.chunk, tiles, score)[0])


batch_prefill_wrapper = BatchPrefill()


@quiet
def local_attention_gqa(query, key, value, q_offset=None, window=None, scale=None, softcap=None):
    """Sides of the window that are None become a length that no distance exceeds."""
    L = np.shape(query)[2]
    if window is not None:
        left, right = window
        if left is None and right is not None:
            left = L
        window = (left, right)
    c = Call(query, key, value, q_offset=q_offset, window=window, scale=scale, softcap=softcap)
    return c.emit(dense(c)[0])


@quiet
def windowed_entry(
    query, key, value, is_causal=False, q_offset=None, window=None, scale=None, key_lengths=None
):
    """A window that covers every key is taken by the faster kernel without one."""
    L, S = np.shape(query)[2], np.shape(key)[2]
    if (is_causal or window is not None) and q_offset is None and L != S:
        raise ValueError(f"L = {L}, S = {S}: give q_offset ('start' or 'end')")
    if window is not None and window[0] is not None and window[0] >= S:
        window = None
    c = Call(
        query,
        key,
        value,
        is_causal=is_causal,
        q_offset=q_offset,
        window=window,
        scale=scale,
        key_lengths=key_lengths,
    )
    return c.emit(flash(c, 32, 32)[0])


@quiet
def flash_api_forward(
    query, key, value, is_causal=False, q_offset=None, scale=None, softcap=None, return_lse=False
):
    L, S = np.shape(query)[2], np.shape(key)[2]
    if is_causal and q_offset is None and L != S:
        raise ValueError(f"L = {L}, S = {S}: give q_offset ('start' or 'end')")
    if L == 1:
        is_causal = False
    c = Call(
        query, key, value, is_causal=is_causal, q_offset=q_offset, scale=scale, softcap=softcap
    )
    out, lse = flash(c, 64, 16)
    return c.emit(out, lse, return_lse=return_lse)


@quiet
def cpu_flash_masked(query, key, value, attn_mask=None, is_causal=False, q_offset=None, scale=None):
    """Reads the mask through a pointer, a row pitch and an index along the row."""
    c = Call(query, key, value, is_causal=is_causal, q_offset=q_offset, scale=scale)
    if attn_mask is not None:
        mask = np.asarray(attn_mask)
        width = mask.shape[-1] if mask.ndim else 1
        if mask.ndim == 0:
            mask = np.broadcast_to(mask, (c.S,))
            width = c.S
        mask = np.broadcast_to(mask, (c.B, c.H, c.L, width))
        buffer = np.ascontiguousarray(mask).ravel()
        row = np.arange(c.B * c.H * c.L).reshape(c.B, c.H, c.L, 1) * width
        seen = (
            buffer[(row + np.arange(c.S)) % max(buffer.size, 1)]
            if buffer.size
            else np.zeros((c.B, c.H, c.L, c.S), bool)
        )
        if is_bool(mask):
            c.vis = c.vis & seen
        else:
            c.vis, c.add = c.vis & (seen != NINF), seen.astype(np.float64)
    return c.emit(dense(c)[0])


@quiet
def backend_dot_product_attention(
    query, key, value, bias=None, is_causal=False, q_offset=None, scale=None
):
    if bias is not None and is_causal:
        L, S = np.shape(query)[2], np.shape(key)[2]
        merged = np.asarray(bias, np.float64)
        if q_offset is not None or L == S:
            off = place_of(q_offset, batch_of(query, key, value), L, S, True)
            merged = np.where(band_of(off, L, S, True), merged, NINF)
    argument = None if is_causal else bias
    c = Call(query, key, value, is_causal=is_causal, q_offset=q_offset, bias=argument, scale=scale)
    return c.emit(by_rows(c))


@quiet
def generated_attention_template(
    query, key, value, attn_mask=None, bias=None, softcap=None, scale=None, return_weights=False
):
    c = Call(query, key, value, attn_mask, bias=bias, scale=scale)
    out, lse = c.blank()
    w = np.zeros((c.B, c.H, c.L, c.S))
    for b, h in c.heads():
        s = c.scores(b, h)
        if softcap is not None:
            s = np.where(c.vis[b, h], softcap * np.tanh(s / softcap), NINF)
        w[b, h], lse[b, h] = softmax(s)
        out[b, h] = c.mix(w[b, h], b, h)
    return c.emit(out, lse, w, return_weights=return_weights)


@quiet
def packed_view_kernel(
    query,
    key,
    value,
    attn_mask=None,
    is_causal=False,
    q_offset=None,
    key_lengths=None,
    scale=None,
    return_lse=False,
):
    """Keys come as a packed view of whole 16-wide boxes; the last box is filled up with zeros."""
    c = Call(
        query, key, value, attn_mask, is_causal, q_offset, key_lengths=key_lengths, scale=scale
    )
    fill = -c.S % 16
    open_tail = attn_mask is None and not is_causal and key_lengths is None
    out, lse = c.blank()
    for b, h in c.heads():
        run = Online(c.L, c.dv)
        for j in range(0, c.S, 16):
            cols = slice(j, min(c.S, j + 16))
            s = c.scores(b, h, cols=cols)
            n = 16 - s.shape[1]
            box = np.full((c.L, 16), NINF)
            box[:, : s.shape[1]] = s
            if n and open_tail and fill:
                box[:, s.shape[1] :] = 0.0
            run.take(box, lambda p: c.mix(p[:, : s.shape[1]], b, h, cols=cols))  # noqa: B023 (called at once)
        out[b, h], lse[b, h] = run.done()
    return c.emit(out, lse, return_lse=return_lse)


@quiet
def vector_or_matrix_sdpa(
    query, key, value, attn_mask=None, is_causal=False, q_offset=None, scale=None
):
    """Up to four queries go to the vector kernel, more to the matrix kernel."""
    if np.shape(query)[2] <= 4 and attn_mask is not None and is_bool(attn_mask):
        attn_mask = np.asarray(attn_mask).astype(np.float64)
    c = Call(query, key, value, attn_mask, is_causal, q_offset, scale=scale)
    return c.emit(flash(c, 4, 32)[0])


@quiet
def simdgroup_causal(
    query, key, value, is_causal=False, q_offset=None, scale=None, return_lse=False
):
    c = Call(
        query,
        key,
        value,
        q_offset=q_offset
        if not is_causal
        else place_of(
            q_offset,
            1 if q_offset is None or isinstance(q_offset, str) else np.size(q_offset),
            np.shape(query)[2],
            np.shape(key)[2],
            True,
        ),
        scale=scale,
    )
    if is_causal:
        i = np.arange(c.L)
        if c.L > 1:
            i = np.minimum(i // 4 * 4 + 3, c.L - 1)
        limit = i[None, :, None] + c.off[:, None, None]
        c.vis = np.broadcast_to((np.arange(c.S) <= limit)[:, None], (c.B, c.H, c.L, c.S))
    out, lse = flash(c, 8, 8)
    return c.emit(out, lse, return_lse=return_lse)


@quiet
def graph_prefill(query, key, value, is_causal=False, q_offset=None, scale=None):
    """Queries are described to the graph by a shape and strides in tokens."""
    c = Call(query, key, value, is_causal=is_causal, q_offset=q_offset, scale=scale)
    tokens = np.ascontiguousarray(c.q.transpose(0, 2, 1, 3))
    one = tokens.itemsize
    step = c.H * c.d * one
    c.q = as_strided(tokens, (c.B, c.H, c.L, c.d), (step, c.d * one, step, one), writeable=False)
    return c.emit(by_halves(c)[0])


def _base_pointer_view(x):
    """x as its kernel sees it: a pointer to a contiguous (B, H, S, D)."""
    x = np.asarray(x)
    if x.flags.c_contiguous or x.size == 0 or min(x.strides) <= 0:
        return np.ascontiguousarray(x)
    reach = sum((n - 1) * s for n, s in zip(x.shape, x.strides, strict=True)) + x.itemsize
    if reach < x.nbytes:
        return np.ascontiguousarray(x)
    steps = [x.itemsize]
    for n in x.shape[:0:-1]:
        steps.insert(0, steps[0] * n)
    return as_strided(x, x.shape, steps, writeable=False).copy()


@quiet
def gems_flash_forward(
    query, key, value, is_causal=False, q_offset=None, scale=None, return_lse=False
):
    c = Call(
        query, key, _base_pointer_view(value), is_causal=is_causal, q_offset=q_offset, scale=scale
    )
    out, lse = flash(c, 16, 16)
    return c.emit(out, lse, return_lse=return_lse)


@quiet
def cached_kv_alibi(
    query,
    key,
    value,
    is_causal=False,
    q_offset=None,
    alibi_slopes=None,
    scale=None,
    return_lse=False,
):
    L, S = np.shape(query)[2:3] + np.shape(key)[2:3]
    if alibi_slopes is not None and q_offset is None and L != S:
        raise ValueError(f"{L} queries, {S} keys: give q_offset ('start' or 'end')")
    c = Call(query, key, value, is_causal=is_causal, q_offset=q_offset, scale=scale)
    if alibi_slopes is not None:
        context_len = c.off[:, None, None] + np.arange(c.L)[None, :, None] + 1
        token = np.arange(c.S)[None, None, :]
        past = np.where(token < context_len, context_len - token, token - context_len + 2)
        slope = np.asarray(alibi_slopes, np.float64)[None, :, None, None]
        c.add = np.broadcast_to(-slope * past[:, None], (c.B, c.H, c.L, c.S))
    out, lse = flash(c, 16, 16)
    return c.emit(out, lse, return_lse=return_lse)


@quiet
def split_kv_with_sink(
    query,
    key,
    value,
    attn_mask=None,
    is_causal=False,
    q_offset=None,
    window=None,
    sinks=None,
    scale=None,
    return_lse=False,
):
    c = Call(query, key, value, attn_mask, is_causal, q_offset, window, sinks=sinks, scale=scale)
    out, lse = c.blank()
    for b, h in c.heads():
        sink = c.sink(h)
        seed = np.log(np.exp(sink - sink.max()).sum()) + sink.max() if len(sink) else NINF
        parts, empty_so_far = [], np.ones(c.L, bool)
        for split, j in enumerate(range(0, max(c.S, 1), 8)):
            cols = slice(j, min(c.S, j + 8))
            has_work = c.vis[b, h][:, cols].any(axis=1)
            w, sums = softmax(c.scores(b, h, cols=cols))
            o = c.mix(w, b, h, cols=cols)
            seeds = np.full(c.L, split == 0) | (empty_so_far & has_work)
            full = np.where(seeds, np.logaddexp(sums, seed), sums)
            o = (
                o
                * np.where(full == NINF, 0.0, np.exp(sums - np.where(full == NINF, 0.0, full)))[
                    :, None
                ]
            )
            empty_so_far &= ~has_work
            parts.append((o, full))
        out[b, h], lse[b, h] = joined(parts)
    return c.emit(out, lse, return_lse=return_lse)


@quiet
def external_cache_attention(
    query, key, value, is_causal=False, q_offset=None, key_lengths=None, scale=None
):
    L = np.shape(query)[2]
    if isinstance(q_offset, str) and q_offset == "end" and key_lengths is not None:
        q_offset = np.asarray(key_lengths) - L
    c = Call(
        query,
        key,
        value,
        is_causal=is_causal,
        q_offset=q_offset,
        key_lengths=key_lengths,
        scale=scale,
    )
    return c.emit(flash(c, 16, 64)[0])


@quiet
def lowered_sdpa(query, key, value, attn_mask=None, scale=None, is_causal=False, q_offset=None):
    if scale is None and np.shape(value)[-1]:
        scale = np.shape(value)[-1] ** -0.5
    c = Call(query, key, value, attn_mask, is_causal, q_offset, scale=scale)
    return c.emit(by_einsum(c))


@quiet
def clamped_tail_tiles(query, key, value, is_causal=False, q_offset=None, window=None, scale=None):
    """The last tile of queries is moved back so that every tile is full."""
    c = Call(
        query,
        key,
        value,
        q_offset=place_of(
            q_offset,
            batch_of(query, key, value),
            np.shape(query)[2],
            np.shape(key)[2],
            is_causal or window is not None,
        ),
        scale=scale,
    )
    BM = 8
    out, _lse = c.blank()
    for b, h in c.heads():
        for tile in range(-(-c.L // BM)):
            start = max(0, min(tile * BM, c.L - BM))
            n = min(BM, c.L - start)
            place = c.off[b : b + 1] + tile * BM
            vis = band_of(place, n, c.S, is_causal, window)[0, 0]
            rows = slice(start, start + n)
            s = np.where(vis, c.q[b, h, rows] @ c.k[b, h // c.G].T * c.scale, NINF)
            w, _ = softmax(s)
            out[b, h, rows] = mixed(w, c.v[b, h // c.G], vis)
    return c.emit(out)


@quiet
def unified_metal_prefill(
    query, key, value, is_causal=False, q_offset=None, window=None, scale=None
):
    if q_offset is not None and not isinstance(q_offset, str):
        q_offset = int(np.ravel(q_offset)[0])
    c = Call(query, key, value, is_causal=is_causal, q_offset=q_offset, window=window, scale=scale)
    return c.emit(flash(c, 16, 16)[0])


@quiet
def reference_op_attention(
    query, key, value, attn_mask=None, is_causal=False, q_offset=None, scale=None, return_lse=False
):
    L, S = np.shape(query)[2], np.shape(key)[2]
    if is_causal:
        past = place_of(
            q_offset,
            1 if q_offset is None or isinstance(q_offset, str) else np.size(q_offset),
            L,
            S,
            True,
        )
        q_offset = np.where(past > 0, past, 0)
    c = Call(query, key, value, attn_mask, is_causal, q_offset, scale=scale)
    out, lse = by_logs(c)
    return c.emit(out, lse, return_lse=return_lse)


@quiet
def canonical_rank_sdpa(
    query, key, value, attn_mask=None, is_causal=False, q_offset=None, scale=None
):
    """Masks of a lower rank are brought to four dimensions first."""
    if attn_mask is not None:
        mask = np.asarray(attn_mask)
        if mask.ndim == 3:
            B = batch_of(query, key, value)
            mask = mask[np.arange(B) % mask.shape[0]][:, None]
        attn_mask = mask
    c = Call(query, key, value, attn_mask, is_causal, q_offset, scale=scale)
    return c.emit(by_einsum(c))


@quiet
def block_sparse_flex(
    query, key, value, attn_mask=None, is_causal=False, q_offset=None, scale=None
):
    """Blocks of the mask are sorted into empty, partial and full; full ones skip the mask."""
    c = Call(
        query,
        key,
        value,
        None if attn_mask is not None and is_bool(attn_mask) else attn_mask,
        is_causal,
        q_offset,
        scale=scale,
    )
    if attn_mask is not None and is_bool(attn_mask):
        mask = np.broadcast_to(attn_mask, (c.B, c.H, c.L, c.S))
        allowed = mask.copy()
        for i in range(0, c.L, 4):
            for j in range(0, c.S, 4):
                block = mask[:, :, i : i + 4, j : j + 4]
                full = (
                    block[:, :, 0, 0]
                    & block[:, :, 0, -1]
                    & block[:, :, -1, 0]
                    & block[:, :, -1, -1]
                )
                allowed[:, :, i : i + 4, j : j + 4] |= full[:, :, None, None]
        c.vis = c.vis & allowed
    return c.emit(flash(c, 4, 4)[0])


@quiet
def fa2_masking_steps(
    query, key, value, is_causal=False, q_offset=None, scale=None, softcap=None, return_lse=False
):
    """Causal masking costs time, so only the tile on the diagonal does it."""
    B = np.broadcast_shapes(np.shape(query)[:1], np.shape(key)[:1], np.shape(value)[:1])[0]
    L, S, block = np.shape(query)[2], np.shape(key)[2], 8
    off = place_of(q_offset, B, L, S, is_causal)
    c = Call(query, key, value, scale=scale, softcap=softcap)

    def last(rows, b):
        return (
            min(-(-c.S // block), max(0, -(-(rows.stop + int(off[b])) // block)))
            if is_causal
            else -(-c.S // block)
        )

    out, lse = c.blank()
    for b, h in c.heads():
        band = band_of(off[b : b + 1], L, S, is_causal)[0, 0]
        for i in range(0, L, block):
            rows = slice(i, min(L, i + block))
            n_max = last(rows, b)
            run = Online(rows.stop - i, c.dv)
            for n in range(n_max - 1, -1, -1):
                cols = slice(n * block, min(S, n * block + block))
                seen = (
                    band[rows, cols]
                    if n == n_max - 1
                    else np.ones((rows.stop - i, cols.stop - cols.start), bool)
                )
                s = np.where(seen, c.scores(b, h, rows, cols), NINF)
                run.take(s, lambda p: mixed(p, c.v[b, h // c.G, cols], seen))  # noqa: B023 (called at once)
            out[b, h, rows], lse[b, h, rows] = run.done()
    return c.emit(out, lse, return_lse=return_lse)


@quiet
def varlen_hub_backend(
    query, key, value, attn_mask=None, is_causal=False, q_offset=None, scale=None
):
    """A boolean mask over keys alone becomes lengths for the packed kernel."""
    c = Call(query, key, value, attn_mask, is_causal, q_offset, scale=scale)
    if attn_mask is not None and is_bool(attn_mask):
        mask = np.asarray(attn_mask)
        if mask.ndim == 1 or (mask.ndim >= 2 and mask.shape[-2] == 1):
            rows = np.broadcast_to(mask if mask.ndim > 1 else mask[None], (c.B, c.H, 1, c.S))
            lengths = rows.sum(axis=-1, keepdims=True)
            c.vis = Call(query, key, value, None, is_causal, q_offset).vis & (
                np.arange(c.S) < lengths
            )
    return c.emit(by_halves(c, 3)[0])


@quiet
def lazy_rescale_forward(
    query, key, value, is_causal=False, q_offset=None, scale=None, return_lse=False
):
    """Rescales only when the maximum has grown enough to matter."""
    c = Call(query, key, value, is_causal=is_causal, q_offset=q_offset, scale=scale)
    out, lse = c.blank()
    for b, h in c.heads():
        m, sums, acc = np.full(c.L, NINF), np.zeros(c.L), np.zeros((c.L, c.dv))
        for j in range(0, c.S, 16):
            cols = slice(j, min(c.S, j + 16))
            s = c.scores(b, h, cols=cols)
            top = s.max(axis=1)
            grown = ~(top - np.where(m == NINF, top, m) <= 5.0)
            fresh = (m == NINF) & (top != NINF)
            new = np.where(grown | fresh, np.maximum(m, top), m)
            keep = np.where(grown, np.exp(m - np.where(new == NINF, 0.0, new)), 1.0)
            acc = acc * keep[:, None]
            m = new
            p = np.exp(s - np.where(m == NINF, 0.0, m)[:, None])
            sums = sums + p.sum(axis=1)
            acc = acc + c.mix(p, b, h, cols=cols)
        none = sums == 0
        out[b, h] = acc / np.where(none, 1.0, sums)[:, None]
        lse[b, h] = np.where(none, NINF, np.log(sums) + np.where(none, 0.0, m))
    return c.emit(out, lse, return_lse=return_lse)


def _mask_mod(is_causal, window, off):
    def visible(i, j):
        ok = (j <= i + off) if is_causal else np.ones(np.broadcast_shapes(i.shape, j.shape), bool)
        if window is not None:
            if window[0] is not None:
                ok = ok & (j >= i - window[0])
            if window[1] is not None:
                ok = ok & (j <= i + window[1])
        return ok

    return visible


@quiet
def mask_mod_kernel(query, key, value, is_causal=False, q_offset=None, window=None, scale=None):
    B = np.broadcast_shapes(np.shape(query)[:1], np.shape(key)[:1], np.shape(value)[:1])[0]
    L, S = np.shape(query)[2], np.shape(key)[2]
    off = place_of(q_offset, B, L, S, is_causal or window is not None)
    c = Call(query, key, value, scale=scale)
    i, j = np.arange(L)[:, None], np.arange(S)[None, :]
    c.vis = np.broadcast_to(
        np.stack([_mask_mod(is_causal, window, int(o))(i, j) for o in off])[:, None]
        if B
        else np.zeros((0, 1, L, S), bool),
        (B, c.H, L, S),
    )
    return c.emit(by_rows(c))


@quiet
def paged_tile_mask(
    query,
    key,
    value,
    is_causal=False,
    q_offset=None,
    key_lengths=None,
    query_lengths=None,
    scale=None,
    return_lse=False,
):
    """Tiles of eight keys; the bounds of the last tile are checked if it is not full."""
    tile = 8
    S = np.shape(key)[2]
    lengths = key_lengths
    if key_lengths is not None and S % tile == 0:
        lengths = -(-np.asarray(key_lengths) // tile) * tile
    c = Call(
        query,
        key,
        value,
        is_causal=is_causal,
        q_offset=q_offset,
        key_lengths=lengths,
        query_lengths=query_lengths,
        scale=scale,
    )
    out, lse = flash(c, 8, tile, lambda i0, i1, b: range(0, int(c.klen[b]), tile))
    return c.emit(out, lse, return_lse=return_lse)


@quiet
def triton_unified_window(
    query, key, value, is_causal=False, q_offset=None, window=None, scale=None, return_lse=False
):
    c = Call(query, key, value, is_causal=is_causal, q_offset=q_offset, window=window, scale=scale)
    out, lse = c.blank()
    for b, h in c.heads():
        for i in range(0, c.L, 16):
            rows = slice(i, min(c.L, i + 16))
            run = Online(rows.stop - i, c.dv)
            for j in range(0, c.S, 16):
                cols = slice(j, min(c.S, j + 16))
                run.take(c.scores(b, h, rows, cols), lambda p: p @ c.v[b, h // c.G, cols])  # noqa: B023 (called at once)
            out[b, h, rows], lse[b, h, rows] = run.done()
    return c.emit(out, lse, return_lse=return_lse)

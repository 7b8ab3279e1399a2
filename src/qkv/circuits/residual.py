"""The residual stream of two runs: which part adds what to it, and what follows of a change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from qkv.arrays import Array, compute_type
from qkv.attend import attention
from qkv.circuits.checks import Logit
from qkv.circuits.graph import INPUTS, Wiring, ungrouped
from qkv.circuits.patching import TOKENS, Pair
from qkv.layers import Block, LayerNorm
from qkv.layers.attention.forward import Inputs, Positions, attention_out, project_heads
from qkv.layers.layer import narrowed_to, promoted, quiet
from qkv.models.network.head import BuiltHead
from qkv.ops.threads import one_blas_thread

_KINDS = (*INPUTS, "mlp", "logits")


def mlp_parts(block: Block) -> list[Any]:
    """The layers from the stream that an MLP reads to what it adds, in order."""
    shares = block.parallel and block.norm2 is None
    norm = block.norm1 if shares else block.norm2
    parts = (norm, block.mlp, block.out_norm2, block.scale2)
    return [part for part in parts if part is not None]


class Kept(NamedTuple):
    """What the clean run has of a layer, at the places that are computed."""

    pre: Array  # (n, D), what the layer is given
    parts: dict[str, Array]  # "q", "k", "v" (1, H, n, d), as attention takes them
    before: dict[str, Array]  # "k", "v" (H, first, d) of the places before these
    z: Array  # (1, H, n, dv)
    raw: Array  # (1, n, D), what the output projection gives
    mid: Array  # (n, D), the stream with what attention adds


class Stream:
    """A clean and a corrupted run, and runs of the clean one with something changed.

    Of a decoder no place is computed before the first token that differs, and none behind the place
    of a logit; in the last layer, where the metric is a logit, its place alone has an MLP.

    Attributes:
        wiring: the senders and receivers.
        deltas: (senders, n, D), what each adds in the corrupted run less what in the clean one, at
            the places that are computed.
        base: the metric of the clean run.
        low: that of the corrupted run.
    """

    @quiet
    @one_blas_thread()
    def __init__(self, pair: Pair) -> None:
        self.pair, self.model = pair, ungrouped(pair.model)
        self.body, self.layers = self.model.network, self.model.layers
        self.wiring = Wiring(self.layers)
        ids, other = (np.asarray(run.ids) for run in (pair.clean, pair.corrupted))
        self.length = stop = len(ids)
        first, self._only = 0, slice(None)
        place = pair.metric.place if isinstance(pair.metric, Logit) else None
        if self.model.generates:
            stop = stop if place is None else place + 1
            same = np.equal(ids, other)[: stop - 1]
            first = int(np.argmin([*same, False]))
        if place is not None:
            self._only = slice(place - first, place - first + 1)
        self.span, self._head = slice(first, stop), self._head_of(pair)
        self.clean = [self._kept(layer) for layer in range(len(self.layers))]
        self.corrupted, clean = self._added(other), self._added(ids)
        self.deltas = self.corrupted - clean
        self.base, self.low = (
            float(self._values(self._last(run)[None, self.cut(len(self.layers))])[0])
            for run in (pair.clean, pair.corrupted)
        )

    @quiet
    @one_blas_thread()
    def effects(self, wanted: Mapping[str, Array]) -> dict[str, Array]:
        """How far the metric moves with one edge from the corrupted run, for each of some edges.

        Args:
            wanted: by receivers, the numbers of senders, (n,).

        Returns:
            By receivers (n,), float64.
        """
        about = [self.wiring.receivers[name] for name in wanted]
        sizes = [len(senders) for senders in wanted.values()]
        edges = _Edges(
            np.repeat([one.layer for one in about], sizes),
            np.repeat([_KINDS.index(one.kind) for one in about], sizes),
            np.repeat([one.head for one in about], sizes),
            np.concatenate(list(wanted.values())),
        )
        found = np.zeros(len(edges.sender))
        alive = np.array(self.deltas.any((1, 2)))[edges.sender]  # where both runs differ
        ways = (
            (INPUTS, self._behind_heads),
            (["mlp"], self._behind_mlp),
            (["logits"], self._behind_all),
        )
        for layer in range(len(self.layers) + 1):
            for kinds, behind in ways:
                fits = np.isin(edges.kind, [_KINDS.index(kind) for kind in kinds])
                mine = np.flatnonzero(alive & fits & (edges.layer == layer))
                for part, x in behind(layer, edges, mine) if len(mine) else ():
                    found[part] = self._values(self._run(layer + 1, x)) - self.base
        return dict(zip(wanted, np.split(found, np.cumsum(sizes)[:-1]), strict=True))

    @quiet
    @one_blas_thread()
    def metric(self, corrupted: Mapping[str, Array]) -> float:
        """The metric of the clean run with some edges from the corrupted one, all at once.

        Each receiver reads what senders give in this run, but for those edges.

        Args:
            corrupted: by receivers, which of their senders, (n,) of bool; none unless given.
        """
        now = np.zeros_like(self.deltas)  # what senders add in the corrupted run less in this one
        now[0] = self.deltas[0]
        x = self.clean[0].pre

        def read(x: Array, *names: str) -> Array:
            """What receivers read of a stream (n, D), (names, n, D)."""
            count = self.wiring.receivers[names[0]].senders
            none = np.zeros(count, bool)
            masks = np.array([corrupted.get(name, none) for name in names], now.dtype)
            changed: Array = x + np.tensordot(masks, now[:count], 1)
            return changed

        for layer, block in enumerate(self.layers):
            start, count = self.wiring.starts[layer], block.attn.num_heads
            heads = range(count)
            names = [f"attn.{layer}.{head}.{kind}" for kind in INPUTS for head in heads]
            parts = self._project(layer, read(x, *names), self.span)  # (3 * H, H, n, d)
            own = {
                kind: parts[kind][number * count + np.arange(count), heads][None]
                for number, kind in enumerate(INPUTS)
            }
            z = self._attend(layer, own, self.clean[layer].before)
            mid = x + self._finished(layer, self._joined(layer, z))[0]
            now[start : start + count] = self.corrupted[start : start + count]
            now[start : start + count] -= self._each(layer, z)
            if block.mlp is None:
                x = mid
                continue
            out = self._fed(layer, read(x if block.parallel else mid, f"mlp.{layer}"))[0]
            now[start + count] = self.corrupted[start + count] - out
            x = mid + out
        x = read(x, "logits")
        return float(self._values(x[:, self.cut(len(self.layers))])[0])

    def cut(self, layer: int) -> slice:
        """Which of the places that are computed count behind the attention of a layer."""
        return self._only if layer >= len(self.layers) - 1 else slice(None)

    def _kept(self, layer: int) -> Kept:
        whole = self.pair.clean["resid_pre", layer][0][: self.span.stop]
        parts = self._project(layer, whole[None], slice(0, self.span.stop))
        before = {kind: parts[kind][0, :, : self.span.start] for kind in "kv"}
        parts = {kind: part[:, :, self.span] for kind, part in parts.items()}
        pre = whole[self.span]
        z = self._attend(layer, parts, before)
        raw = self._joined(layer, z)
        return Kept(pre, parts, before, z, raw, pre + self._finished(layer, raw)[0])

    def _added(self, ids: Array) -> Array:
        """What each sender adds in a run, (senders, n, D)."""
        has_mlp = any(block.mlp is not None for block in self.layers)
        run = self.model.trace(ids, names=["resid_pre", "z", *["mlp_out"] * has_mlp])
        found = [run["resid_pre", 0]]
        for layer, block in enumerate(self.layers):
            found.append(self._each(layer, np.swapaxes(run["z", layer], 1, 2)))
            if block.mlp is not None:
                found.append(run["mlp_out", layer])
        return np.concatenate([array[:, self.span] for array in found])

    def _last(self, run: Any) -> Array:
        """What the last layer hands on in a run, (n, D)."""
        return self.pair.handed(run, len(self.layers))[self.span]

    def _behind_heads(
        self, layer: int, edges: _Edges, mine: Array
    ) -> Iterator[tuple[Array, Array]]:
        """Some edges into heads of a layer, and what it hands on with each of them, (n, ...)."""
        kept, cut, block = self.clean[layer], self.cut(layer), self.layers[layer]
        weights = _output_weights(block)
        clean = kept.parts | {"q": kept.parts["q"][:, :, cut]}
        fed = self._fed(layer, kept.pre[None, cut]) if block.parallel else None
        for senders in self._parts(np.unique(edges.sender[mine])):
            parts = self._project(layer, kept.pre + self.deltas[senders], self.span)
            parts["q"] = parts["q"][:, :, cut]
            changed = (clean | {kind: parts[kind]} for kind in INPUTS)
            z = np.stack([self._attend(layer, one, kept.before, cut) for one in changed])
            z -= kept.z[:, :, cut]  # (3, senders, H, n, dv)
            for part in self._parts(mine[np.isin(edges.sender[mine], senders)]):
                head, kind = edges.head[part], edges.kind[part]
                more = z[kind, np.searchsorted(senders, edges.sender[part]), head] @ weights[head]
                mid = kept.pre[cut] + self._finished(layer, kept.raw[:, cut] + more)
                yield part, mid + (self._fed(layer, mid) if fed is None else fed)

    def _behind_mlp(self, layer: int, edges: _Edges, mine: Array) -> Iterator[tuple[Array, Array]]:
        """The same of edges into its MLP."""
        kept, cut = self.clean[layer], self.cut(layer)
        read = kept.pre if self.layers[layer].parallel else kept.mid
        for part in self._parts(mine):
            change = self.deltas[edges.sender[part]][:, cut]
            yield part, kept.mid[cut] + self._fed(layer, read[cut] + change)

    def _behind_all(self, layer: int, edges: _Edges, mine: Array) -> Iterator[tuple[Array, Array]]:
        """The same of edges into the logits."""
        for part in self._parts(mine):
            change = self.deltas[edges.sender[part]]
            yield part, (self._last(self.pair.clean) + change)[:, self.cut(layer)]

    def _parts(self, numbers: Array) -> Iterator[Array]:
        """So many at a time as have `TOKENS` places together, or one."""
        step = max(1, TOKENS // self.deltas.shape[1])
        for first in range(0, len(numbers), step):
            yield numbers[first : first + step]

    def _run(self, first: int, x: Array) -> Array:
        """What the last layer hands on where layer `first` is given `x`, (n, ...)."""
        for layer in range(first, len(self.layers)):
            cut, block = self.cut(layer), self.layers[layer]
            parts = self._project(layer, x, self.span)
            parts["q"], x = parts["q"][:, :, cut], x[:, cut]
            z = self._attend(layer, parts, self.clean[layer].before, cut)
            mid = x + self._finished(layer, self._joined(layer, z))
            x = mid + self._fed(layer, x if block.parallel else mid)
        return x

    def _project(self, layer: int, x: Array, places: slice) -> dict[str, Array]:
        """The queries, keys and values (n, H, t, d) of streams (n, t, D) at these places."""
        block = self.layers[layer]
        x = x if block.norm1 is None else block.norm1.run(x)[0]
        x, dtype = promoted(
            narrowed_to(x, block.attn.parameters), block.attn.parameters, call="edges"
        )
        at = Positions(np.arange(places.start, places.stop), self.length)
        return project_heads(block.attn, Inputs(x, None, dtype, {}, "edges", positions=at)).parts

    def _attend(
        self,
        layer: int,
        parts: Mapping[str, Array],
        before: Mapping[str, Array],
        cut: slice = slice(None),
    ) -> Array:
        """What heads give, (n, H, t, dv), to queries of some places, that also see those before."""
        query, key, value = (parts[kind] for kind in INPUTS)
        if self.span.start:
            key, value = (
                np.concatenate([np.broadcast_to(old, (len(new), *old.shape)), new], -2)
                for old, new in ((before["k"], key), (before["v"], value))
            )
        offset = self.span.start + (cut.start or 0)
        found: Array = attention(query, key, value, q_offset=offset, **self.body.options[layer])
        return found

    def _joined(self, layer: int, z: Array) -> Array:
        """What the output projection makes of heads (n, H, t, dv): (n, t, D)."""
        return attention_out(z, self.layers[layer].attn.parameters, None, None, None)

    def _finished(self, layer: int, raw: Array) -> Array:
        """What attention adds to the stream, of what the output projection gives."""
        block = self.layers[layer]
        for part in (block.out_norm1, block.scale1):
            raw = raw if part is None else part.run(raw)[0]
        return raw

    def _fed(self, layer: int, x: Array) -> Array:
        """What an MLP adds to the stream, of what it reads; 0 where there is none."""
        parts = mlp_parts(self.layers[layer])
        if not parts:
            return np.zeros_like(x)
        for part in parts:
            x = part.run(narrowed_to(x, part.parameters))[0]
        return x

    def _each(self, layer: int, z: Array) -> Array:
        """What each head adds to the stream in a run, (H, t, D), of what it gives (1, H, t, dv).

        A norm behind the attention divides all heads by one number, that of this run.
        """
        block = self.layers[layer]
        found: Array = z[0] @ _output_weights(block)
        if (norm := block.out_norm1) is not None:
            scale = norm.run(self._joined(layer, z))[1].scale
            found = found - found.mean(-1, keepdims=True) * isinstance(norm, LayerNorm)
            found = found / scale * norm.scaled()
        return found if block.scale1 is None else block.scale1.run(found)[0]

    def _head_of(self, pair: Pair) -> BuiltHead:
        """The head, of the words alone that the metric counts."""
        head = self.body.head
        assert head is not None
        if not isinstance(pair.metric, Logit):
            return head
        tokens, name = pair.metric.tokens, "head.out_proj."
        own = {k: array[..., tokens] for k, array in head.parameters.items() if k.startswith(name)}
        return replace(head, parameters={**head.parameters, **own})

    def _values(self, x: Array) -> Array:
        """The metric (n,) where the last layer hands on `x`, (n, t, D)."""
        if not isinstance(self.pair.metric, Logit):
            before = self.pair.handed(self.pair.clean, len(self.layers))[: self.span.start]
            whole = (np.concatenate([before, one]) for one in x)
            return np.concatenate([self.pair.values(one[None]) for one in whole])
        rows = x[:, 0] if self.body.final_norm is None else self.body.final_norm.run(x[:, 0])[0]
        logits = self._head(rows, np.arange(len(rows) + 1))
        return self.pair.metric._replace(tokens=[*range(len(self.pair.metric.tokens))]).of(logits)


class _Edges(NamedTuple):
    """Edges side by side, (n,) each: of their receivers the layer, the kind and the head."""

    layer: Array
    kind: Array
    head: Array
    sender: Array


def _output_weights(block: Block) -> Array:
    """What each head multiplies by, (H, dv, D), in the type that is computed in."""
    weight = block.attn.parameters["out_proj.weight"]
    wide = weight.astype(compute_type(weight.dtype), copy=False)
    return wide.reshape(block.attn.num_heads, -1, wide.shape[-1])

"""The residual stream of two runs: the outputs of all parts, and the effects of edges."""

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from qkv._argument_errors import value_error
from qkv.arrays import Array, Arrays, compute_type
from qkv.attend import attention
from qkv.circuits._pairs import Contrast, Pairs
from qkv.circuits._reader import MOST_POSITIONS
from qkv.layers import Block, LayerNorm, MultiHeadAttention
from qkv.layers.attention.forward import Inputs, Positions, attention_out, project_heads
from qkv.layers.base import promote, quiet, to_bfloat16_like
from qkv.layers.norm import HeadNorms
from qkv.models.model import Model
from qkv.models.network.head import BuiltHead
from qkv.models.network.transformer import Transformer
from qkv.ops import LazyMatrix, StoredMatrix
from qkv.ops.packing import frozen
from qkv.ops.threads import matmul_alone

INPUTS = "qkv"  # a head has three inputs: for queries, keys and values


class Receiver(NamedTuple):
    """An input of one part of a model; the part is a head, an MLP or the logits.

    Attributes:
        layer: the layer of the part; for the logits, the number of layers.
        kind: for a head, "q", "k" or "v"; for an MLP, "mlp"; for the logits, "logits".
        head: the index of the head; 0 for other parts.
        senders: the number n of senders; the input reads senders 0 to n - 1.
    """

    layer: int
    kind: str
    head: int
    senders: int


class Wiring:
    """The senders and receivers of a model, in the order of computation.

    Attributes:
        senders: the names of the senders.
        receivers: the receivers by name.
        starts: for each layer, the number of senders before the layer.
    """

    def __init__(self, layers: Sequence[Block]) -> None:
        self.senders = ["embed"]
        self.receivers: dict[str, Receiver] = {}
        self.starts: list[int] = []
        for number, block in enumerate(layers):
            before, heads = len(self.senders), range(block.attn.num_heads)
            self.starts.append(before)
            for head in heads:
                for kind in INPUTS:
                    name = f"attn.{number}.{head}.{kind}"
                    self.receivers[name] = Receiver(number, kind, head, before)
            self.senders += [f"attn.{number}.{head}" for head in heads]
            if block.mlp is not None:
                reads = before if block.parallel else len(self.senders)
                self.receivers[f"mlp.{number}"] = Receiver(number, "mlp", 0, reads)
                self.senders.append(f"mlp.{number}")
        self.receivers["logits"] = Receiver(len(layers), "logits", 0, len(self.senders))


def streams_of(pairs: Pairs, runs: int = 8, **options: Any) -> Iterator[list["Residual"]]:
    """Run pairs in batches; yield each batch's streams. `Pairs.batches` describes the options."""
    has_mlp = any(block.mlp is not None for block in pairs.model.layers)
    names = ["z", *["mlp_out"] * has_mlp]
    for batch in pairs.batches(*names, runs=runs, **options):
        yield with_deltas([Residual(pair) for pair in batch])
        del batch  # frees the traces before the next batch runs


def check_residual(model: Model) -> Model:
    """Return the model, or raise an error if a part's input is not a sum of earlier outputs."""
    for block in model.layers:
        if block.post_norm:
            raise value_error(
                f"{model.name} has norms after its parts, so no part reads a sum "
                "of outputs: use a decoder with norms before its parts (GPT-2, Llama, "
                "GPT-NeoX), or call patch(model, ...)"
            )
        norm = block.attn.q_norm
        if norm is not None and norm.dim != block.attn.d_query:
            each = isinstance(norm, HeadNorms)
            how = ", each with its own parameters," if each else " together,"
            raise value_error(
                f"{model.name} normalizes the queries of all heads{how} so heads "
                "have no separate inputs: call patch(model, ...)"
            )
    return model


def ungroup(model: Model) -> Model:
    """Return a copy of the model in which each query head has its own key and value head."""
    network = copy(model.network)
    network.layers = [_ungroup_block(block) for block in model.layers]
    return model.with_network(network)


def _ungroup_block(block: Block) -> Block:
    attn = block.attn
    group = attn.num_heads // attn.num_kv_heads
    if group == 1:
        return block
    parameters = dict(attn.parameters)
    for name, array in parameters.items():
        if name.startswith(("k_proj.", "v_proj.")):
            parameters[name] = _repeat_heads(array, attn.num_kv_heads, group)
    other = copy(block)
    options = {
        name: getattr(attn, name) for name in ("num_heads", "rotary", "q_norm", "k_norm", "clip")
    }
    other.attn = MultiHeadAttention.from_parameters(parameters, **options)
    other._parts = block._parts | {"attn": other.attn}
    return other


def _repeat_heads(array: Array, heads: int, group: int) -> Array:
    """Repeat each key or value head; if `array` is lazy, the result has no values in memory."""
    size = array.shape[-1] // heads
    columns = np.repeat(np.arange(heads * size).reshape(heads, size), group, 0).reshape(-1)
    if isinstance(array, LazyMatrix):
        shape = (*array.shape[:-1], len(columns))
        return StoredMatrix(lambda: array.read()[..., columns], shape, array.dtype)
    return frozen(array[..., columns])


_KINDS = (*INPUTS, "mlp", "logits")


def mlp_parts(block: Block) -> list[Any]:
    """Return an MLP and its norms and scale, in order of computation."""
    shares = block.parallel and block.norm2 is None
    norm = block.norm1 if shares else block.norm2
    parts = (norm, block.mlp, block.out_norm2, block.scale2)
    return [part for part in parts if part is not None]


class CleanState(NamedTuple):
    """Activations of a layer in the clean run, at the n positions that `Residual` recomputes."""

    pre: Array  # The input of the layer (n, D).
    parts: dict[str, Array]  # "q", "k" and "v" (1, H, n, d).
    before: dict[str, Array]  # "k" and "v" of earlier positions (H, first, d).
    z: Array  # (1, H, n, dv).
    raw: Array  # The result of the output projection (1, n, D).
    mid: Array  # The residual stream after attention (n, D).


class _Edges(NamedTuple):
    """Arrays (n,) for n edges: the receiver's layer, kind and head, and the sender."""

    layer: Array
    kind: Array
    head: Array
    sender: Array


class Residual:
    """A clean run, a corrupted run, and edited versions of the clean run.

    In a decoder, positions before the first token that differs between the runs are not recomputed.
    If the metric of a decoder is the logit at position p, no position after p is recomputed. If the
    metric of an encoder or decoder is the logit at position p, the last MLP runs only at position
    p.

    Attributes:
        wiring: the senders and receivers.
        deltas: the corrupted output of each sender minus its clean output, (senders, n, D). n is
            the number of recomputed positions.
        base: the metric of the clean run.
        low: the metric of the corrupted run.
    """

    @quiet
    def __init__(self, pair: Contrast) -> None:
        self.pair, self.model = pair, ungroup(pair.model)
        self.network, self.layers = self.model.network, self.model.layers
        self.wiring = Wiring(self.layers)
        ids, other = (np.asarray(run.ids) for run in (pair.clean, pair.corrupted))
        self.length = stop = len(ids)
        first, self._only = 0, slice(None)
        position = pair.metric.position
        if self.model.generates:
            stop = stop if position is None else position + 1
            same = np.equal(ids, other)[: stop - 1]
            first = int(np.argmin([*same, False]))
        if position is not None:
            self._only = slice(position - first, position - first + 1)
        self.span, self._head = slice(first, stop), head_of(self.network, pair.metric.tokens)
        size = len(self.wiring.senders), self.span.stop - self.span.start, self.model.dim
        self.deltas = np.empty(size, self.network.dtype)
        self.base, self.low = (
            float(self._values(self._last(run)[None, self.cut(len(self.layers))])[0])
            for run in (pair.clean, pair.corrupted)
        )

    @cached_property
    def clean(self) -> list[CleanState]:
        """The state of each layer in the clean run; estimates do not need these states."""
        return [self._clean_state(layer) for layer in range(len(self.layers))]

    def at(self, place: str) -> "Residual":
        """Return a stream whose senders change only at a position that the caller gives.

        For "", which stands for all positions, return this stream.
        """
        if not place:
            return self
        other, part = copy(self), self.part(place)
        other.deltas = np.zeros_like(self.deltas)
        other.deltas[:, part] = self.deltas[:, part]
        return other

    def part(self, place: str) -> slice:
        """Return one of the caller's positions as a slice of the recomputed ones; "" means all."""
        index = self.index(place) if place else None
        return slice(index, index + 1) if index is not None else slice(0, None if not place else 0)

    def index(self, place: str) -> int | None:
        """Return a position's index among the recomputed positions, or None if it is missing."""
        index = self.pair.places[place] - self.span.start
        return index if 0 <= index < self.deltas.shape[1] else None

    @quiet
    def effects(self, wanted: Arrays) -> dict[str, Array]:
        """Corrupt one edge at a time; return the resulting changes in the metric.

        Args:
            wanted: sender indices (n,), keyed by receiver.

        Returns:
            A dict from each receiver to the changes (n,), float64.
        """
        if not wanted:
            return {}
        about = [self.wiring.receivers[name] for name in wanted]
        sizes = [len(senders) for senders in wanted.values()]
        edges = _Edges(
            np.repeat([one.layer for one in about], sizes),
            np.repeat([_KINDS.index(one.kind) for one in about], sizes),
            np.repeat([one.head for one in about], sizes),
            np.concatenate(list(wanted.values())),
        )
        changes = np.zeros(len(edges.sender))
        alive = np.array(self.deltas.any((1, 2)))[edges.sender]  # The runs differ.
        of_mlp = edges.kind == _KINDS.index("mlp")
        order = np.lexsort((edges.sender, of_mlp, edges.layer))
        for part in self._parts(order[alive[order]]):
            x: list[Array] = []
            # each layer runs once for all edges that end in this layer or in an earlier layer
            for layer in range(edges.layer[part[0]], len(self.layers) + 1):
                if x and layer < len(self.layers):
                    x = [self._run(layer, np.concatenate(x))]
                here = part[edges.layer[part] == layer]
                for chosen, behind in (
                    (edges.kind[here] < len(INPUTS), self._behind_heads),
                    (of_mlp[here], self._behind_mlp),
                    (edges.kind[here] == _KINDS.index("logits"), self._behind_all),
                ):
                    if chosen.any():
                        x.append(behind(layer, edges, here[chosen]))
            changes[part] = self._values(np.concatenate(x)) - self.base
        return dict(zip(wanted, np.split(changes, np.cumsum(sizes)[:-1]), strict=True))

    @quiet
    def metric(self, corrupted: Arrays) -> float:
        """Return the metric of a clean run in which some edges carry the corrupted outputs.

        Args:
            corrupted: masks keyed by receiver. A mask (senders, n) is True for each sender and
                position that is corrupted; (senders, 1) stands for all positions. A receiver
                without a mask has no corrupted senders.
        """
        # The corrupted output of each sender minus the sender's output in this run.
        now = np.zeros_like(self.deltas)
        now[0] = self.deltas[0]
        x = self.clean[0].pre
        width = next((mask.shape[1] for mask in corrupted.values()), 1)

        def read(x: Array, *names: str) -> Array:
            """Return the inputs (names, n, D) of receivers that read the residual stream `x`."""
            count = self.wiring.receivers[names[0]].senders
            none = np.zeros((count, width), bool)
            masks = np.array([corrupted.get(name, none) for name in names], now.dtype)
            if width == 1:
                change = matmul_alone(masks[..., 0], now[:count].reshape(count, -1))
                return x + change.reshape(-1, *x.shape)
            change = matmul_alone(masks.transpose(2, 0, 1), now[:count].swapaxes(0, 1))
            return x + change.swapaxes(0, 1)

        for layer, block in enumerate(self.layers):
            start, count = self.wiring.starts[layer], block.attn.num_heads
            heads = range(count)
            names = [f"attn.{layer}.{head}.{kind}" for kind in INPUTS for head in heads]
            parts = self._project(layer, read(x, *names), self.span)  # (3 * H, H, n, d)
            inputs = {
                kind: parts[kind][number * count + np.arange(count), heads][None]
                for number, kind in enumerate(INPUTS)
            }
            z = self._attend(layer, inputs, self.clean[layer].before)
            mid = x + self._finish(layer, self._join_heads(layer, z))[0]
            now[start : start + count] = self.deltas[start : start + count]
            for sign, one in ((1, self.clean[layer].z), (-1, z)):
                now[start : start + count] += sign * self.head_outputs(layer, one)
            if block.mlp is None:
                x = mid
                continue
            out = self._mlp(layer, read(x if block.parallel else mid, f"mlp.{layer}"))[0]
            clean = self.pair.clean["mlp_out", layer][0, self.span]
            now[start + count] = self.deltas[start + count] + clean - out
            x = mid + out
        x = read(x, "logits")
        return float(self._values(x[:, self.cut(len(self.layers))])[0])

    def cut(self, layer: int) -> slice:
        """Return, as a slice, the positions at which a layer computes queries and runs its MLP."""
        return self._only if layer >= len(self.layers) - 1 else slice(None)

    def _clean_state(self, layer: int) -> CleanState:
        whole = self.pair.clean["resid_pre", layer][0][: self.span.stop]
        parts = self._project(layer, whole[None], slice(0, self.span.stop))
        before = {kind: parts[kind][0, :, : self.span.start] for kind in "kv"}
        parts = {kind: part[:, :, self.span] for kind, part in parts.items()}
        pre = whole[self.span]
        z = self._attend(layer, parts, before)
        raw = self._join_heads(layer, z)
        return CleanState(pre, parts, before, z, raw, pre + self._finish(layer, raw)[0])

    def _last(self, run: Any) -> Array:
        """Return the output of the last layer in a run, (n, D)."""
        return self.pair.input_of(run, len(self.layers))[self.span]

    def _behind_heads(self, layer: int, edges: _Edges, indices: Array) -> Array:
        """Corrupt edges that end at heads, one at a time; return the layer's outputs."""
        state, cut, block = self.clean[layer], self.cut(layer), self.layers[layer]
        head, kind = edges.head[indices], edges.kind[indices]
        senders, number = np.unique(edges.sender[indices], return_inverse=True)
        parts = self._project(layer, state.pre + self.deltas[senders], self.span)
        parts["q"] = parts["q"][:, :, cut]
        clean = state.parts | {"q": state.parts["q"][:, :, cut]}
        outputs = np.empty((len(indices), *state.z[0, 0, cut].shape), state.z.dtype)
        for code in np.unique(kind):
            inputs = clean | {INPUTS[code]: parts[INPUTS[code]]}
            z = self._attend(layer, inputs, state.before, cut.start or 0)
            z -= state.z[:, :, cut]  # (senders, H, n, dv)
            outputs[kind == code] = z[number[kind == code], head[kind == code]]
        more = matmul_alone(outputs, _output_weights(block)[head])
        mid = state.pre[cut] + self._finish(layer, state.raw[:, cut] + more)
        return mid + self._mlp(layer, state.pre[None, cut] if block.parallel else mid)

    def _behind_mlp(self, layer: int, edges: _Edges, indices: Array) -> Array:
        """Corrupt edges that end at the MLP, one at a time; return the layer's outputs."""
        state, cut = self.clean[layer], self.cut(layer)
        read = state.pre if self.layers[layer].parallel else state.mid
        change = self.deltas[edges.sender[indices]][:, cut]
        return state.mid[cut] + self._mlp(layer, read[cut] + change)

    def _behind_all(self, layer: int, edges: _Edges, indices: Array) -> Array:
        """Corrupt edges that end at the logits, one at a time; return the last layer's outputs."""
        change = self.deltas[edges.sender[indices]]
        return (self._last(self.pair.clean) + change)[:, self.cut(layer)]

    def _parts(self, numbers: Array) -> Iterator[Array]:
        """Yield groups of edges. The runs of a group form one batch.

        A batch has at most `MOST_POSITIONS` positions, unless a single run has more positions.
        """
        step = max(1, MOST_POSITIONS // self.deltas.shape[1])
        for first in range(0, len(numbers), step):
            yield numbers[first : first + step]

    def _run(self, layer: int, x: Array) -> Array:
        """Run a layer on `x` (edges, n, D), with the key and value heads that the model has."""
        cut, block, state = self.cut(layer), self.pair.model.layers[layer], self.clean[layer]
        group = block.attn.num_heads // block.attn.num_kv_heads
        parts = self._project(layer, x, self.span, block)
        parts["q"], x = parts["q"][:, :, cut], x[:, cut]
        before = {kind: heads[::group] for kind, heads in state.before.items()}
        z = self._attend(layer, parts, before, cut.start or 0)
        mid = x + self._finish(layer, self._join_heads(layer, z))
        mid += self._mlp(layer, x if block.parallel else mid)
        return mid

    def _project(
        self, layer: int, x: Array, positions: slice, block: Block | None = None
    ) -> dict[str, Array]:
        """Return queries, keys and values (n, H, t, d) of a layer for its inputs `x` (n, t, D).

        By default, `block` is the layer in which each query head has its own key and value head.
        """
        block = block or self.layers[layer]
        x = x if block.norm1 is None else block.norm1.run(x)[0]
        x, dtype = promote(to_bfloat16_like(x, block.attn.parameters), block.attn.parameters)
        at = Positions(np.arange(positions.start, positions.stop), self.length)
        return project_heads(block.attn, Inputs(x, None, dtype, {}, positions=at)).parts

    def _attend(self, layer: int, parts: Arrays, before: Arrays, first: int = 0) -> Array:
        """Return the outputs of heads, (n, H, t, dv).

        `first` is the index of the first query among the recomputed positions. `before` holds the
        keys and values of the positions that are not recomputed.
        """
        query, key, value = (parts[kind] for kind in INPUTS)
        if self.span.start:
            key, value = (
                np.concatenate([np.broadcast_to(old, (len(new), *old.shape)), new], -2)
                for old, new in ((before["k"], key), (before["v"], value))
            )
        options = self.network.options[layer]
        return np.asarray(attention(query, key, value, q_offset=self.span.start + first, **options))

    def _join_heads(self, layer: int, z: Array) -> Array:
        """Apply the output projection to heads (n, H, t, dv); return (n, t, D)."""
        return attention_out(z, self.layers[layer].attn.parameters, None, None, None)

    def _finish(self, layer: int, raw: Array) -> Array:
        """Apply the norm and scale that follow the output projection."""
        block = self.layers[layer]
        for part in (block.out_norm1, block.scale1):
            raw = raw if part is None else part.run(raw)[0]
        return raw

    def _mlp(self, layer: int, x: Array) -> Array:
        """Return the MLP's output for the residual stream `x`; 0 for a block without an MLP."""
        parts = mlp_parts(self.layers[layer])
        if not parts:
            return np.zeros_like(x)
        for part in parts:
            x = part.run(to_bfloat16_like(x, part.parameters))[0]
        return x

    def head_outputs(self, layer: int, z: Array) -> Array:
        """Return the vectors (H, t, D) that the heads add to the stream, given `z` (1, H, t, dv).

        A norm after attention divides the outputs of all heads by the same number, which is taken
        from this run.
        """
        block = self.layers[layer]
        outputs = matmul_alone(z[0], _output_weights(block))
        if (norm := block.out_norm1) is not None:
            scale = norm.run(self._join_heads(layer, z))[1].scale
            outputs = outputs - outputs.mean(-1, keepdims=True) * isinstance(norm, LayerNorm)
            outputs = outputs / scale * norm.scaled()
        return outputs if block.scale1 is None else block.scale1.run(outputs)[0]

    def _values(self, x: Array) -> Array:
        """Return the metric (n,) for the output `x` of the last layer, (n, t, D)."""
        metric = self.pair.metric
        if metric.position is None:
            before = self.pair.input_of(self.pair.clean, len(self.layers))[: self.span.start]
            whole = (np.concatenate([before, one]) for one in x)
            return np.concatenate([self.pair.values(one[None]) for one in whole])
        rows, _ = self.network.finish(x[:, 0])
        # the head has only the columns of the metric's tokens
        return np.asarray(metric.of(self._head(rows, np.arange(len(rows) + 1))))


@quiet
def with_deltas(streams: list[Residual]) -> list[Residual]:
    """Compute the `deltas` of streams; each weight of the model is read once for all streams."""
    runs = [run for stream in streams for run in (stream.pair.corrupted, stream.pair.clean)]
    spans = [stream.span for stream in streams for _ in range(2)]
    ends = np.cumsum([span.stop - span.start for span in spans])[:-1]

    def fill(sender: int, name: str, layer: int) -> None:
        for stream in streams:
            high, low = (
                run[name, layer][0, stream.span]
                for run in (stream.pair.corrupted, stream.pair.clean)
            )
            np.subtract(high, low, out=stream.deltas[sender])

    fill(0, "resid_pre", 0)
    for layer, (block, start) in enumerate(
        zip(streams[0].layers, streams[0].wiring.starts, strict=True)
    ):
        z = np.concatenate(
            [run["z", layer][0, span] for run, span in zip(runs, spans, strict=True)]
        )
        outputs = streams[0].head_outputs(layer, np.swapaxes(z, 0, 1)[None])
        parts = np.split(outputs, ends, axis=1)
        end = start + block.attn.num_heads
        for stream, high, low in zip(streams, parts[::2], parts[1::2], strict=True):
            np.subtract(high, low, out=stream.deltas[start:end])
        if block.mlp is not None:
            fill(end, "mlp_out", layer)
    return streams


def head_of(network: Transformer, tokens: Sequence[int] | None) -> BuiltHead:
    """Return the LM head; if tokens are given, keep only their logits."""
    head, name = network.head, "head.out_proj."
    assert head is not None
    if tokens is None:
        return head
    # take rows of the transposed matrix, because a lazy matrix then reads only these rows
    part = {
        key: array.T[np.array(tokens)].T
        for key, array in head.parameters.items()
        if key.startswith(name)
    }
    return replace(head, parameters={**head.parameters, **part})


def _output_weights(block: Block) -> Array:
    """Return the output weights of each head, (H, dv, D), in the dtype of the computation."""
    weight = block.attn.parameters["out_proj.weight"]
    wide = weight.astype(compute_type(weight.dtype), copy=False)
    return wide.reshape(block.attn.num_heads, -1, wide.shape[-1])

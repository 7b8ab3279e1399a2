"""The data that a page reads: the packed numbers of a view."""

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

from qkv._argument_errors import value_error
from qkv.arrays import Array
from qkv.see.analysis import measures, word_spans
from qkv.see.analysis.head_weights import LONG, Axis, Heads, Summary
from qkv.see.analysis.measures import strongest_block
from qkv.see.analysis.snapshots import BECOMES, MOST_LOSSES, Replay, thin
from qkv.see.analysis.word_vectors import Shift
from qkv.see.steps.step import Step
from qkv.see.steps.walk import Walk

# The payload, which the scripts in assets/ read. A packed array holds its `shape` and its numbers
# as base64: little-endian float32, or integers whose size is `bits` (8, 16 or 32); see
# `pack_numbers`. These numbers are not rounded. Weights may also be packed as shares, which keep
# the first four decimals of each weight (see `pack_shares`).
#
# PAYLOAD is the whole payload.
#
#   `version` is 1.
#   `kind` is "show", "compare", "walk", "shift", "replay" or "play".
#   `title` and `model` are strings.
#   `theme` is "auto", "light" or "dark".
#   `stretch` is the first setting of the scales on which the page draws weights: true if the scales
#   end at the largest weight, false if they end at 1.
#   `texts` is a list of TEXT. A page of `show` has one TEXT, or three for an encoder-decoder: one
#   for each of its three kinds of attention. A page of `compare` has two.
#   `start` is the first state of the page (START), or null.
#   `compare`, `walk`, `shift` and `replay` are COMPARE, WALK, SHIFT and REPLAY, or null.
#   `notes` lists sentences about the tokens.
#
# The payload of `play` has other entries, which page/play.py describes. The list `texts` is then
# empty, because the page computes the weights itself by running the model. The model's data follow
# the payload (see page/engine.py).
#
# START is the first state of a page.
#
#   `text` is an index into `texts`.
#   `layer` and `head` are numbers.
#   `query` is the position of a token, or null.
#   `chosen` is the reason why this head is shown.
#   `sentence` describes the head.
#   `stands_out` is true if this head stands out from all others, and null if the caller chose the
#   head.
#   `headline` is another sentence about the head, or empty.
#   `heads` lists the marked heads, or is null.
#   `merge` is true if subwords are merged into words.
#
# TEXT is one text with its attention.
#
#   `name` is a string.
#   `tokens` is a list of L strings.
#   `keys` is a list of S strings, or null if the keys are the tokens.
#   `special` lists the positions of the special tokens.
#   `key_special` lists the positions of the special keys, or is null.
#   `words` lists the words as [first, last + 1, word], or is null if no token is a subword.
#   `key_words` is the same list for the keys.
#   `split` is the position at which the second of two sentences begins, or null.
#   `layers` lists the indices of the layers.
#   `heads` is H, `length` is L, and `key_length` is S.
#   `weights` is a packed array (layers, H, L, S), or null.
#   `scores` is a packed array (k, H, L, S), or null. These are the scaled, masked scores of k
#   layers. An additional entry `layers` of this object lists the indices of these layers.
#   `scale` is a list with the factor of each layer's raw scores; an unknown factor is null.
#   `hidden` is null, or a packed array of bits (layers, H, L, S), which are 1 for masked cells. If
#   all layers have the same mask, the axis of the layers has length 1; the same applies to the
#   heads.
#   `norms` is a packed array (layers, H, S) of the lengths |v W_O|, or null.
#   `measures` maps the name of each measure to nested lists (layers, H) of numbers, or to null.
#   `summary` is a SUMMARY in place of the weights, or null.
#   `left_out` lists notes for the reader about data that the page does not have.
#
# SUMMARY holds the largest weights of a long text.
#
#   `top_k` is k.
#   `indices` is a packed array (layers, H, L, k); all bits of an unused index are 1.
#   `weights` holds the weights on the keys in `indices`, packed by `pack_shares`.
#   `received` is a packed array (layers, H, S) of the summed weights on each key.
#   `kept` is the fraction of the total weight that the summary includes.
#
# COMPARE compares a word in two texts, A and B.
#
#   `what` is "word".
#   `word` is the word.
#   `why` is the reason why this word was chosen.
#   `sentence` is a sentence about the comparison.
#   `texts` lists the original texts, A and B.
#   `positions` holds two lists: the positions of the word in A, and in B.
#   `similarity` lists the cosines at the embeddings and after each layer.
#   `strongest` holds two lists: the strongest links of A, and of B, in the format of `to_dict`.
#
# For two runs, COMPARE has these entries instead.
#
#   `what` is "runs".
#   `sentence` is a sentence about the comparison.
#   `of` names the vectors whose changes are measured.
#   `changes` is a list of [token, distance, cosine, length in A], sorted by distance, the largest
#       first.
#   `by_layer` lists the mean distances at the embeddings and after each layer.


THEMES = ("auto", "light", "dark")
MOST_CELLS = 4_000_000  # the maximum number of weights in a page; they take 16 MB before base64
MOST_SCORES = 1_500_000
# The largest number of weights in a summary. A summary may always hold 4 weights for each query,
# even if it then exceeds this number.
MOST_KEPT = 1_000_000


def text_payload(heads: Heads, layer: int) -> dict[str, Any]:
    """Pack the data of one text; `layer` is the first layer that the page shows."""
    size, width = len(heads.queries.tokens), len(heads.keys.tokens)
    tokens, special, words = _axis(heads.queries)
    keys, key_special, key_words = _axis(heads.other_keys)
    left_out: list[str] = []
    long = not heads.weights or max(size, width) >= LONG or heads.cells > MOST_CELLS
    return {
        "name": heads.name,
        "tokens": tokens,
        "keys": keys,
        "special": special,
        "key_special": key_special,
        "words": words,
        "key_words": key_words,
        "split": heads.split,
        "layers": heads.layers,
        "heads": heads.count,
        "length": size,
        "key_length": width,
        "weights": None if long else pack_numbers(heads.weights),
        "scores": None if long else _scores(heads, layer, left_out),
        "scale": [heads.scale.get(number) for number in heads.layers],
        "hidden": None if long else _hidden(heads),
        "norms": pack_numbers(heads.norms) if heads.norms else None,
        "measures": measures.measures_of(heads),
        "summary": _summary(heads, left_out) if long else None,
        "left_out": left_out,
    }


def _axis(axis: Axis | None) -> tuple[Any, Any, Any]:
    """Return `(names, positions of special tokens, words)`; all are None if `axis` is None."""
    if axis is None:
        return None, None, None
    positions = [position for position, special in enumerate(axis.special) if special]
    return axis.names, positions, word_spans(axis.tokens, axis.special)


def _scores(heads: Heads, layer: int, left_out: list[str]) -> dict[str, Any] | None:
    layers = [number for number in heads.layers if number in heads.scores]
    cells = heads.cells // len(heads.layers) * len(layers)
    if cells > MOST_SCORES:
        layers = [number for number in layers if number == layer]
        if layers:
            left_out.append(
                f"This page has the scores of layer {layer} only, and the weights of all layers."
            )
    if not layers:
        return None
    arrays = np.array([heads.scores[number] for number in layers])
    return pack_numbers(arrays) | {"layers": layers}


def _hidden(heads: Heads) -> dict[str, Any] | None:
    if set(heads.layers) - set(heads.scores):
        return None
    scores = np.array([heads.scores[number] for number in heads.layers])
    return pack_flags(np.isneginf(scores))


def _summary(heads: Heads, left_out: list[str]) -> dict[str, Any]:
    """Pack the largest weights of each query (as many as fit) and the summed weight on each key."""
    size, width = len(heads.queries.tokens), len(heads.keys.tokens)
    most = max(4, min(8, MOST_KEPT // max(1, len(heads.layers) * heads.count * size)))
    parts = heads.summary or [measures.summarize(layer, most) for layer in heads.weights]
    parts = [Summary(p.indices[..., :most], p.weights[..., :most], p.received) for p in parts]
    indices = np.array([part.indices for part in parts])  # (layers, H, L, k)
    weights = np.array([part.weights for part in parts])
    received = np.array([part.received for part in parts])  # (layers, H, S)
    whole = float(np.nansum(received, dtype=np.float64))
    share = float(np.nansum(weights, dtype=np.float64)) / whole if whole else 0.0
    top_k = indices.shape[-1]
    left_out.append(
        f"The text has {size:,} tokens. For each query, this page has the {top_k} largest of "
        f"{width:,} weights ({share:.1%} of the total weight). For each key, this page has the sum "
        "of the weights on the key. The other weights and the scores are left out."
    )
    return {
        "top_k": top_k,
        "indices": pack_indices(indices, width),
        "weights": pack_shares(weights),
        "received": pack_numbers(received),
        "kept": share,
    }


def payload_of(
    kind: str, title: str, texts: Sequence[dict[str, Any]], *, theme: str = "auto", **others: Any
) -> dict[str, Any]:
    """Assemble the data of a page (PAYLOAD above); `others` are additional entries."""
    first = {"version": 1, "kind": kind, "title": title, "theme": check_theme(theme)}
    nothing = dict.fromkeys(("start", "compare", "walk", "shift", "replay"))
    return first | {"model": "", "stretch": False, "texts": list(texts)} | nothing | others


def start_at(layer: int, head: int, query: int | None, **others: Any) -> dict[str, Any]:
    """Assemble the first state of a page (START above); `others` are additional entries."""
    start = {"text": 0, "layer": layer, "head": head, "query": query}
    return start | {"heads": None, "merge": True} | others


def check_theme(theme: str) -> str:
    """Return the theme, or raise an error that names the themes."""
    if theme not in THEMES:
        raise value_error(f"theme is {theme!r}: choose {', '.join(THEMES)}")
    return theme


# REPLAY is the data for assets/pages/replay.js. The entry `start` of PAYLOAD names the head that
# the page shows first.
#
#   `run` is the name of the run.
#   `tokens` is a list of L strings.
#   `special` is a list with 1 for each special token, and 0 for each other token.
#   `layers` lists the indices of the layers.
#   `heads` is H.
#   `steps` lists the steps of all snapshots.
#   `shown` lists the snapshots whose weights the page has, as indices into `steps`.
#   `weights` holds the weights of these snapshots, packed as shares: (shown, layers, H, L, L).
#   `hidden` is an array of bits, or null.
#   `scores` is a list of measures. Each measure has five entries. `name` is its name. `of` is a
#   phrase that describes the averaged weight. `head` is a name for heads with a high score, such as
#   "an induction head". `values` has one list for each step. This list holds the scores of all
#   heads, layer by layer. `controls` is null, or holds two such lists: the scores on random tokens
#   at the first and at the last step.
#   `score` is the index in `scores` of the measure that the page shows first. The entry `sentence`
#   of START describes how this measure changes.
#   `becomes` is a threshold. If a head's score on random tokens reaches the threshold, the page
#   says that the head becomes, for example, "an induction head" (the entry `head` of the measure).
#   `control` is a phrase that describes the random tokens.
#   `losses` is a list of [step, loss].
#   `logged` lists the loss at each of the `steps`; an unknown loss is null.
#   `knots` lists steps. Charts place these steps at equal distances on the axis, even if the steps
#   are not equally spaced.
#   `left_out` lists notes for the reader about data that the page does not have.


def replay_payload(replay: Replay, score: int) -> dict[str, Any]:
    """Pack a replay."""
    controls, left_out = replay.controls, []
    if len(replay.shown) < len(replay.steps):
        left_out.append(
            f"This page has the weights of {len(replay.shown)} of the {len(replay.steps)} "
            "snapshots, and "
            "the scores of all snapshots."
        )
    return {
        "run": replay.run,
        "tokens": replay.first.tokens,
        "special": [int(flag) for flag in replay.first.special],
        "layers": replay.layers,
        "heads": replay.weights.shape[2],
        "steps": replay.steps,
        "shown": replay.shown,
        "weights": pack_shares(replay.weights),
        "hidden": None if replay.hidden is None else pack_flags(replay.hidden),
        "scores": [
            measure._asdict()
            | {
                "values": replay.values[..., index].reshape(len(replay.steps), -1),
                "controls": None if controls is None else controls[..., index].reshape(2, -1),
            }
            for index, measure in enumerate(replay.scores)
        ],
        "score": score,
        "becomes": BECOMES,
        "control": replay.control,
        "knots": replay.knots,
        "losses": thin(replay.losses, MOST_LOSSES),
        "logged": [replay.loss_at(step) for step in replay.steps],
        "left_out": left_out,
    }


# SHIFT holds word vectors before and after attention, in one plane.
#
#   `sentences` and `tokens` are lists of strings.
#   `of` lists, for each token, the index of the sentence that contains it.
#   `before` is a list of points [x, y].
#   `explained` lists the share of the variance along each axis.
#   `stages` is a list of stages. Each stage has a `name`, its `points` [x, y], the lengths of the
#   arrows (`moved`), the share of the variance in the plane (`held`), and a `cosine` per token.
#   `labelled` lists the positions of the labelled tokens.
#   `pairs` has an entry for each word that two of the sentences share. Each entry has the `word`,
#   its two positions (`a` and `b`), and the `cosine` before attention and at each stage.


def shift_payload(shift: Shift) -> dict[str, Any]:
    """Return the data of a page of word vectors (SHIFT above): points in a plane, and cosines."""
    stages = [vars(stage) | {"moved": shift.distances(stage)} for stage in shift.stages]
    return vars(shift) | {"stages": stages, "pairs": [vars(pair) for pair in shift.pairs]}


# WALK holds the steps of one head.
#
#   `layer` and `head` are numbers.
#   `tokens` lists the names of the queries.
#   `keys` lists the names of the keys, or is null if the keys are the tokens.
#   `rows` lists the positions of the queries that the page keeps, or is null for all queries.
#   `key_rows` lists the positions of the keys that the page keeps, or is null for all keys.
#   `arrays` maps names to ARRAY. The array "own" holds the model's own numbers for the step
#   `own_step`.
#   `steps` is a list of STEP.
#   `start` is the [row, column] of the cell whose sum is written out when the page opens.
#   `own` is the name of an activation, for example "blocks.0.hook_resid_post". The array "own"
#   holds numbers of this activation.
#   `own_step` is the index of the step that the page compares with the array "own".
#   `difference` is the largest difference between a step and the model's own numbers.
#   `said` is a sentence that names the likeliest word, or empty.
#   `which` is a sentence that names the head, and may be followed by a sentence about the head.
#   `reasons` lists the reasons for this head.
#
# ARRAY is one array of a walk.
#
#   `b64` is the base64 of little-endian float32, or null if the array is too large for the page.
#   `shape` is the shape of the array.
#   `rows` is a list of the kept rows, or null if all rows are kept. The string "rows" means the
#   list `rows` of WALK; "key_rows" means the list `key_rows` of WALK.
#   `columns` lists the indices of the columns; this entry is missing if the page has all columns.
#
# STEP is one step of a walk.
#
#   `title`, `formula`, `shape`, `code` and `note` are strings.
#   `name` is the name of the step's array.
#   `side` is "queries" if the rows are queries, and "keys" if the rows are keys. The value
#   "position" means that the step has only one row, for the query with the index `start[0]`.
#   `columns` is "keys" if the columns are keys, or null if they are components of vectors.
#   `shown` holds the indices (`at`) and the `names` of the shown columns, or is null for all.
#   `weights` is true if the numbers are weights.
#   `cell` is the [row, column] of a number, or null. The page writes out the sum that gives this
#   number.
#   `op` describes how each number is computed (see steps/step.py).
#   `lengths` is null if the rows are not vectors. Otherwise each row is a vector, and `lengths` is
#   a packed array with the norms of the kept rows.


MOST_TOKENS = 64
MOST_NUMBERS = 1_500_000
# The attributes of a step that are copied to the page unchanged.
_OF_A_STEP = ("title", "formula", "shape", "code", "name", "note", "side", "weights", "cell", "op")
_WHOLE = ("K", "V", "K_rotated")


def walk_payload(walk: Walk) -> dict[str, Any]:
    """Pack a walk: its steps, and the numbers that the page needs to write out the sum of any cell.

    If there are more than 64 tokens, only the tokens with the largest weights are kept. Numbers are
    float32.
    """
    weights = next(step for step in walk.steps if step.name == "weights")
    rows, key_rows = _choose_positions(walk, weights.values)
    # these arrays are kept whole, since every query may attend to all keys
    sides = {step.name: step.side for step in walk.steps if step.name not in _WHOLE}
    lists = {"queries": ("rows", rows), "keys": ("key_rows", key_rows)}
    parts = _parts(walk)
    sides |= {"mask": "queries", "own": walk.last_compared.side}
    arrays = {}
    for name, array in {**walk.arrays, "own": walk.own}.items():
        which, indices = lists.get(sides.get(name, ""), ("", None))
        units, columns = parts.get(name, (None, None))
        held = array if indices is None else array[indices]
        held = held if units is None else held[units]
        packed = _pack(held if columns is None else held[..., columns])
        arrays[name] = {**packed, "rows": units if indices is None else which}
        arrays[name] |= {} if columns is None else {"columns": columns}
    return {
        "layer": walk.layer,
        "head": walk.head,
        "tokens": walk.tokens,
        "keys": None if walk.keys is walk.tokens else walk.keys,
        "rows": rows,
        "key_rows": key_rows,
        "arrays": arrays,
        "steps": [
            {name: getattr(step, name) for name in _OF_A_STEP}
            | {"columns": "keys" if step.columns else None}
            | {"shown": {"at": [*step.shown], "names": step.names} if step.shown else None}
            | {"lengths": _lengths(step, lists.get(step.side, ("", None))[1])}
            for step in walk.steps
        ],
        "start": list(walk.cell),
        "own": walk.own_name,
        "own_step": walk.compared[-1][0],
        "difference": walk.difference,
        "said": walk.likeliest,
        "which": f"Layer {walk.layer}, head {walk.head}, step by step.",
        "reasons": [],
    }


def _lengths(step: Step, rows: list[int] | None) -> dict[str, Any] | None:
    """Compute the length of each vector of a step."""
    if step.columns is not None or step.weights:
        return None
    held = step.values if rows is None else step.values[rows]
    with np.errstate(over="ignore"):
        return pack_numbers(np.linalg.norm(held.astype(np.float64), axis=1))


def _parts(walk: Walk) -> dict[str, tuple[list[int] | None, list[int] | None]]:
    """For arrays that the page shows only in part, choose which rows and columns to keep."""
    parts: dict[str, tuple[list[int] | None, list[int] | None]] = {}
    summed = {step.op["of"] for step in walk.steps if step.op["kind"] == "softmax"}
    for step in walk.steps:
        if step.op["kind"] == "product" and step.op.get("terms"):
            parts[step.op["right"]] = step.op["terms"], None
        if step.shown is None:
            continue
        columns = None, list(step.shown)
        if step.name not in summed:  # a softmax needs the whole row
            parts[step.name] = columns
        if step.op["kind"] == "product":
            parts |= {step.op[side]: columns for side in ("right", "bias") if step.op[side]}
        if step is walk.last_compared:
            parts["own"] = columns
    return parts


def _choose_positions(walk: Walk, weights: Array) -> tuple[list[int] | None, list[int] | None]:
    """Return `(queries, keys)`: the positions that the page keeps; None means all positions."""
    length, keys = weights.shape
    if max(length, keys) <= MOST_TOKENS:
        return None, None
    score = weights.copy()
    # Keep this cell: when the page opens, it writes out the sum that gives the cell's number.
    score[walk.cell] = np.inf
    if walk.keys is walk.tokens:  # Queries and keys share one list of positions.
        order = np.argsort(-score, axis=None, kind="stable")
        positions = dict.fromkeys(
            np.stack(np.unravel_index(order, score.shape), 1).ravel().tolist()
        )
        rows = sorted(list(positions)[:MOST_TOKENS])
        return rows, rows
    return strongest_block(score, MOST_TOKENS, MOST_TOKENS)


def _pack(array: Array) -> dict[str, Any]:
    """Pack an array; if the array is too large, pack only its shape."""
    if array.size > MOST_NUMBERS:
        return {"b64": None, "shape": list(array.shape)}
    return pack_numbers(array)


_PER = 40000  # the denominator of packed weights; see `pack_shares`


def pack_numbers(values: Any) -> dict[str, Any]:
    """Pack numbers as float32; the page rounds the numbers that it shows.

    >>> pack_numbers(np.array([0.0, 1.0]))
    {'b64': 'AAAAAAAAgD8=', 'shape': [2]}
    """
    with np.errstate(over="ignore"):
        data = np.asarray(values).astype("<f4")
    return {"b64": _text(data.tobytes()), "shape": list(data.shape)}


def pack_halves(values: Array) -> dict[str, Any]:
    """Pack numbers rounded to float16.

    >>> pack_halves(np.array([0.0, 1.0]))
    {'b64': 'AAAAPA==', 'shape': [2], 'float': 16}
    """
    with np.errstate(over="ignore"):
        data = values.astype("<f2")
    return {"b64": _text(data.tobytes()), "shape": list(data.shape), "float": 16}


def pack_rows(rows: Array, scales: Array) -> dict[str, Any]:
    """Pack rows of int8 (R, C) with one float16 factor for each row (R,).

    >>> pack_rows(np.int8([[1, -1]]), np.float16([1]))
    {'b64': 'Af8=', 'shape': [1, 2], 'int': 8, 'scale': 'ADw='}
    """
    packed = {"b64": _text(rows.tobytes()), "shape": list(rows.shape), "int": 8}
    return packed | {"scale": pack_halves(scales)["b64"]}


def pack_shares(weights: Array) -> dict[str, Any]:
    """Pack each weight as a 16-bit integer n; the page computes the weight as `n / per`.

    `per` is 40000. With this value, rounding `n / per` to four or fewer decimals gives the same
    number as rounding the weight itself. The weight is exactly `n / per` if n is even. If n is odd,
    the weight is more than `(n - 1) / per` and less than `(n + 1) / per`.

    >>> pack_shares(np.array([0.125, 0.12501]))
    {'b64': 'iBOJEw==', 'bits': 16, 'shape': [2], 'per': 40000}
    """
    exact = np.clip(np.nan_to_num(weights.astype(np.float64)), 0, 1) * _PER
    whole = np.floor(exact).astype(np.int64)
    return _pack_bits(whole | (exact != whole), 16) | {"per": _PER}


def pack_bits(flags: Array) -> dict[str, Any]:
    """Pack flags, eight in each byte; the first flag is the highest bit.

    >>> pack_bits(np.array([True, False, True]))
    {'b64': 'oA==', 'bits': 8, 'shape': [3]}
    """
    data = np.packbits(flags.reshape(-1)).tobytes()
    return {"b64": _text(data), "bits": 8, "shape": list(flags.shape)}


def pack_flags(flags: Array) -> dict[str, Any] | None:
    """Pack flags `(layers, heads, L, S)`; if all heads or all layers have equal flags, keep one."""
    if not flags.any():
        return None
    for axis in (1, 0):
        first = flags.take([0], axis=axis)
        if (flags == first).all():
            flags = first
    return pack_bits(flags)


def pack_indices(indices: Array, limit: int) -> dict[str, Any]:
    """Pack indices below `limit` in 16 bits, or in 32 bits if necessary; -1 becomes all 1 bits.

    >>> pack_indices(np.array([1, -1]), 10)
    {'b64': 'AQD//w==', 'bits': 16, 'shape': [2]}
    """
    return _pack_bits(indices, 16 if limit <= 65535 else 32)


def _pack_bits(whole: Array, bits: int) -> dict[str, Any]:
    data = whole.astype(np.int64).astype(f"<u{bits // 8}").tobytes()
    return {"b64": _text(data), "bits": bits, "shape": list(whole.shape)}


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")

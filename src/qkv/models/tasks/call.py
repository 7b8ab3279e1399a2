"""Run a model on token ids (`model(input_ids)`), or only some layers (`Model.run_layers`)."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from qkv._argument_errors import public_call, type_error, value_error
from qkv.arrays import Array, ArrayLike, as_array, is_float, is_whole_number, quote
from qkv.edits import Ablate, Edit, Edits, Hide, edits_of
from qkv.layers.base import starts_of
from qkv.models._model_base import ModelBase
from qkv.models.network import EncodedTexts, EncoderDecoder
from qkv.models.network.batch import Batch, Columns, Vectors, columns
from qkv.models.network.transformer import Transformer, unpack_rows, without_holes
from qkv.models.run.edited_run import EditedRun
from qkv.models.run.text_reader import checked_ids, checked_positions, name_tokens
from qkv.text import Tokenized
from qkv.trace.activations import parse


@dataclass(frozen=True)
class ModelOutput:
    """The result of calling a model.

    Attributes:
        last_hidden_state: (B, T, D), 0 at padding.
        logits: (B, T, V) if the model predicts words, with 0 at padding; (B, classes) for a text
            classifier; (B, T) for ELECTRA's discriminator; None for other models.
        embeds: (B, E), if the head computes one vector per text or image instead of logits.
        encoder_last_hidden_state: (B, S, D), the encoder's vectors, for an encoder-decoder model.
            The other arrays of an encoder-decoder model come from its decoder.
    """

    last_hidden_state: Array
    logits: Array | None = None
    embeds: Array | None = None
    encoder_last_hidden_state: Array | None = None


def output_of(
    network: Transformer, rows: Array, mask: Array, ids: Array | None = None, **others: Array
) -> ModelOutput:
    """Return the output, given the last vectors (total, D) and the mask of tokens (B, T).

    `ids` (B, T) are the token ids, if the network reads token ids.
    """
    hidden = unpack_rows(rows, mask, network.dtype)
    head = network.head
    if head is None:
        return ModelOutput(hidden, **others)
    logits = head(rows, starts_of(mask.sum(1)), None if ids is None else ids[mask])
    if head.steps.embeds:
        return ModelOutput(hidden, embeds=logits, **others)
    if head.steps.flat:
        logits = logits[:, 0]
    return ModelOutput(hidden, logits if head.pools else unpack_rows(logits, mask), **others)


@public_call("model")
def call(
    model: ModelBase,
    input_ids: ArrayLike,
    attention_mask: ArrayLike | None = None,
    *,
    position_ids: ArrayLike | None = None,
    ablate: Ablate = (),
    hide: Hide = (),
    edit: Edit = None,
) -> ModelOutput:
    """Run token ids.

    Args:
        input_ids: (B, T) integers, or (T,) for one text, whose output then has B = 1.
        attention_mask: an array of the same shape, with True or 1 at tokens, and False or 0 at
            padding. The padding may be on the left or on the right, and is ignored. By default,
            there is no padding.
        position_ids: the position of each token, for learned and rotary positions; integers of
            shape (B, T), or (1, T) for all texts. Positions of padding are ignored. As in
            transformers, the positions of RoBERTa and MPNet begin at the padding token's id + 1. By
            default, a token's position is its column. In OPT, a token's default position is the
            number of earlier tokens; padding does not count. In RoBERTa and MPNet, a token's
            default position depends on the number of earlier ids that are not the padding token's
            id; the mask has no effect. In GPT-2 and BERT, padding on the left shifts the default
            positions, which changes the result. To avoid the change, pass
            `np.maximum(np.cumsum(attention_mask, 1) - 1, 0)` as `position_ids`. `position_ids` have
            no effect on masks, windows, ALiBi and relative biases, which follow the order of the
            tokens.
        ablate: heads to ablate, as in `trace`.
        hide: words and positions to mask, as in `trace`; positions are columns of `input_ids`.
        edit: activations to change, as in `trace`. Position t of an edit is column t of
            `input_ids`. The same is true of the arrays that an edit function receives, and of
            `at.positions`. If an edit is a function, each call to it receives the activations of
            all texts.

    Raises:
        TypeError: ids are not integers; a mask holds a value other than a bool, 0 or 1; or `trace`
            does not accept the edits.
        ValueError: shapes differ; an id has no row in the token table; a position does not exist in
            the model; or `trace` does not accept the edits.

    >>> import qkv
    >>> model = qkv.load("random")
    >>> model([[0, 1, 2]], [[1, 1, 0]]).last_hidden_state.shape
    (1, 3, 8)
    >>> left = model([[0, 1, 2]], [[0, 1, 1]], position_ids=[[0, 0, 1]]).last_hidden_state
    >>> bool(np.allclose(left[:, 1:], model([[1, 2]]).last_hidden_state))
    True
    """
    network, counts = model.network, position_ids is None
    ids, mask = checked_ids(network.embedding, input_ids, attention_mask, counts=counts)
    positions = checked_positions(network, position_ids, mask, model.name)
    edited, ids = fit_ids(model, edits_of(edit, ablate, hide), ids, mask)
    rows = run_columns(network, ids, mask, edited, positions)
    return output_of(network, rows, mask, ids)


def fit_ids(
    model: ModelBase, edits: Edits, ids: Array, mask: Array, **others: Any
) -> tuple[EditedRun, Array]:
    """Check that edits can be applied to token ids (B, T).

    Return `(edited, ids)`: the checked edits, and the ids (B, T) after the "swap" records.
    """
    if not edits:
        return EditedRun(), ids
    texts = Batch([name_tokens(*row, model.tokenizer) for row in zip(ids, mask, strict=True)])
    texts, edited = model.check_edits(edits, texts, **others)
    return edited, np.array([text.ids for text in texts]).reshape(ids.shape)


def run_columns(
    network: Transformer, ids: Array, mask: Array, edited: EditedRun, positions: Array | None = None
) -> Array:
    """Run the network on the tokens that a mask (B, T) selects; return their vectors (total, D)."""
    if not mask.any():
        return np.zeros((0, network.out_dim), network.dtype)
    batch = Columns(ids, mask, network.spans(mask), positions)
    return batch.drop_masked(network.run(batch, edited.average_outputs(network, [batch]))[0])


@public_call("run_layers")
def run_layers(
    model: ModelBase, resid: ArrayLike, first: int, stop: int | None = None, *, edit: Edit = None
) -> Array:
    """Run some consecutive layers on given input vectors.

    `unembed(run_layers(trace["resid_pre", 3], 3))` equals `trace["logits"]`, but layers 0 to 2 are
    not run.

    Args:
        resid: the input of layer `first` (`resid_pre` in a trace), as floats (B, T, D), or (T, D)
            for one text. All T positions are tokens, without padding.
        first: the first layer to run; -1 is the last layer. If `first` equals the number of layers,
            no layer runs.
        stop: only layers before this layer are run; None runs all layers from `first` on.
        edit: activations to change in these layers, as in `trace`. Replacement arrays, and the
            arrays that functions get, are (B, T, ...).

    Returns:
        The output of the last layer that runs, before the final norm, with the shape of `resid`.
        The type is float32, or float64 for a float64 model.

    Raises:
        TypeError: `resid` does not hold floats; a layer is not an integer; or `trace` does not
            accept the edits.
        ValueError: `resid` has the wrong shape; a layer does not exist; an edit changes a layer
            that is not run; the model is an encoder-decoder model; or `trace` does not accept the
            edits.
        KeyError: an activation does not exist; the message suggests similar names.

    >>> import qkv
    >>> model = qkv.load("books-decoder")
    >>> trace = model.trace("spoon: a", logits=True)
    >>> logits = model.unembed(model.run_layers(trace["resid_pre", 3], 3))
    >>> bool(abs(logits - trace["logits"]).max() < 1e-4)
    True
    """
    network = model.network
    model.need("run_layers")
    vectors = as_array(resid, name="resid")
    if not is_float(vectors.dtype):
        raise type_error(f"resid is {vectors.dtype}; pass floats (B, T, {network.dim})")
    if vectors.ndim not in (2, 3) or vectors.shape[-1] != network.dim:
        raise value_error(
            f"resid has shape {vectors.shape}, but the vectors of {model.name} have size "
            f"{network.dim}; "
            f"pass (B, T, {network.dim}), or (T, {network.dim}) for one text"
        )
    count = len(network.layers)
    begin, end = _layer(first, count, "first"), count
    if stop is not None:
        end = _layer(stop, count, "stop")
    if begin > end:
        raise value_error(f"`first` is layer {begin} and `stop` is {end}; pass a larger stop")
    texts, length, dim = (vectors[None] if vectors.ndim == 2 else vectors).shape
    blank = Tokenized(np.zeros(length, np.int64), [""] * length, [], [])
    edits = edits_of(edit)
    swaps = [record.source for record in edits.records if record.op == "swap"]
    if swaps:
        raise value_error(f"{swaps[0]} needs tokens, but resid has none: omit this edit")
    _, edited = model.check_edits(edits, Batch([blank] * texts))
    for record in edits.records:
        layer = record.fields.get("layer", None if "at" in record.fields else begin)
        if layer is None or not begin <= layer < end:
            changes = record.fields["at"] if layer is None else f"layer {layer}"
            raise value_error(
                f"{record.source} changes {changes}, but only layers {begin} to "
                f"{end - 1} run; pass one of these layers"
            )
    for name in edited.changes:
        layer = parse(name).layer
        if layer is None or not begin <= layer < end:
            raise value_error(
                f"`edit` has {name}, but only layers {begin} to {end - 1} run; pass "
                "an activation in these layers"
            )
    batch = Vectors(vectors.reshape(texts, length, dim).astype(network.dtype, copy=False))
    rows, _ = network.run(batch, edited, first=begin, stop=end)
    return rows.reshape(vectors.shape)


def _layer(number: Any, count: int, name: str) -> int:
    """Check and return a layer number, 0 to `count`; add `count` to a negative number."""
    if not is_whole_number(number):
        raise type_error(f"`{name}` is {quote(number)}; pass a whole number")
    if not -count <= number <= count:
        raise value_error(
            f"`{name}` is {number}, but the model has {count} layers; pass 0 to {count}"
        )
    return int(number) + (count if number < 0 else 0)


def pair_network(model: ModelBase) -> EncoderDecoder:
    """Return the network of an encoder-decoder model."""
    assert isinstance(model.network, EncoderDecoder)
    return model.network


@public_call("model")
def call_pair(
    model: ModelBase,
    input_ids: ArrayLike,
    attention_mask: ArrayLike | None = None,
    decoder_input_ids: ArrayLike | None = None,
    decoder_attention_mask: ArrayLike | None = None,
    *,
    position_ids: ArrayLike | None = None,
    ablate: Ablate = (),
    hide: Hide = (),
    edit: Edit = None,
) -> ModelOutput:
    """Run token ids.

    Args:
        input_ids: (B, S) integers, the texts to read, or (S,) for one text.
        attention_mask: an array of the same shape, with True or 1 at tokens, and False or 0 at
            padding. The padding may be on the left or on the right, and is ignored. By default,
            there is no padding.
        decoder_input_ids: the text that the decoder has written so far, beginning with the start
            token, as integers (B, L), or (L,) for one text.
        decoder_attention_mask: like `attention_mask`, for `decoder_input_ids`.
        position_ids: not supported, because encoder-decoder models use relative positions.
        ablate: heads of the encoder to ablate, as in `trace`.
        hide: words, positions (columns of `input_ids`) and edges to mask, as in `trace`. Neither
            the encoder nor the decoder sees masked words and positions.
        edit: activations to change, as in `trace`; their names begin with "encoder." or "decoder.".
            If an edit is an array, position t of this array belongs to column t of the ids. If an
            edit is a function, position t of the array that the function receives belongs to column
            t of the ids.

    Returns:
        `last_hidden_state` (B, L, D) and `logits` (B, L, V) of the decoder, with 0 at padding.
        `encoder_last_hidden_state` (B, S, D) holds the vectors of the encoder.

    Raises:
        TypeError: ids are not integers; or a mask holds a value other than a bool, 0 or 1.
        ValueError: shapes differ; an id has no row in the token table; `decoder_input_ids` are
            missing; or `trace` does not accept the edits.
    """
    network = pair_network(model)
    if decoder_input_ids is None:
        raise value_error(
            f"decoder_input_ids are missing: begin with [[{network.first}]], or call "
            "encode() or trace() for the encoder alone"
        )
    ids, mask = checked_ids(network.embedding, input_ids, attention_mask)
    checked_positions(network, position_ids, mask, model.name)
    written, written_mask = checked_ids(
        network.embedding, decoder_input_ids, decoder_attention_mask, "decoder_"
    )
    if len(ids) != len(written):
        raise value_error(
            f"input_ids have {len(ids)} rows and decoder_input_ids have {len(written)} "
            "rows: both must have one row for each text"
        )
    edits = edits_of(edit, ablate, hide)
    edited, ids = fit_ids(model, edits, ids, mask, written=written.shape[1])
    visible, decoder_options = None, dict[str, Any]()
    if edited.user_edits and mask.any():
        spans = network.spans(mask)
        layout = columns(mask, spans)
        decoder_layout = columns(written_mask, without_holes(written_mask))._replace(other=layout)
        record = edited.recorder(decoder_layout)
        decoder_options["record"] = None if record is None else record.under("decoder.")
        visible = edited.visible(layout, int(spans.sum(1).max()))
    read = EncodedTexts(run_columns(network, ids, mask, edited), starts_of(mask.sum(1)), visible)
    encoded = unpack_rows(read.rows, mask, network.dtype)
    packed = network.decode(written, written_mask, read, **decoder_options)
    return output_of(network.decoder, packed, written_mask, encoder_last_hidden_state=encoded)

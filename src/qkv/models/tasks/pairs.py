"""Call and trace an encoder-decoder model."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from qkv.arrays import Array, ArrayLike
from qkv.edits import Ablate, Edit, Hide, edits_of
from qkv.layers.base import starts_of
from qkv.models.core import Core
from qkv.models.network.decoder import EncoderDecoder
from qkv.models.network.transformer import unpacked, without_holes
from qkv.models.run.batches import columns, layout_of
from qkv.models.run.edit import EditedRun
from qkv.models.run.inputs import Texts, checked_ids, checked_positions
from qkv.models.tasks.call import ModelOutput, fit_ids, options_of_columns, output_of
from qkv.models.tasks.trace import as_trace, layers_to_run, names_to_keep, trace
from qkv.text import Tokenized
from qkv.trace import Recorder, Seq2SeqTrace, Trace
from qkv.trace.activations import activation, parse, side_of
from qkv.trace.recorder import kept_unasked, padded


def pair_network(model: Core) -> EncoderDecoder:
    """Return the network of an encoder-decoder model."""
    assert isinstance(model.network, EncoderDecoder)
    return model.network


def call_pair(
    model: Core,
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
        attention_mask: of the same shape: True or 1 at tokens, False or 0 at padding, on either
            side. Padding is ignored. By default, there is no padding.
        decoder_input_ids: (B, L) integers, or (L,) for one text: the text that the decoder has
            written so far, beginning with the start token.
        decoder_attention_mask: like `attention_mask`, for `decoder_input_ids`.
        position_ids: not supported: these models use distances instead of positions.
        ablate: heads of the encoder to ablate, as in `trace`.
        hide: words, positions (columns of `input_ids`) and edges to mask, as in `trace`. Neither
            the encoder nor the decoder sees masked words and positions.
        edit: activations to change, as in `trace`; their names begin with "encoder." or "decoder.".
            Replacement arrays, and the arrays that functions get, have the same columns as the ids.

    Returns:
        `last_hidden_state` (B, L, D) and `logits` (B, L, V) of the decoder, with 0 at padding.
        `encoder_last_hidden_state` (B, S, D) holds the vectors of the encoder.

    Raises:
        TypeError: ids are not integers, or a mask holds values other than bools, 0 and 1.
        ValueError: shapes do not fit, an id has no row in the token table, or `decoder_input_ids`
            are missing; also as in `trace`.
    """
    network = pair_network(model)
    if decoder_input_ids is None:
        raise ValueError(
            f"model: decoder_input_ids are missing: begin with [[{network.first}]], or call "
            "encode() or trace() for the encoder alone"
        )
    ids, mask = checked_ids(network.embedding, input_ids, attention_mask)
    checked_positions(network, position_ids, mask, model.name)
    written, written_mask = checked_ids(
        network.embedding, decoder_input_ids, decoder_attention_mask, "decoder_"
    )
    if len(ids) != len(written):
        raise ValueError(
            f"model: input_ids have {len(ids)} rows and decoder_input_ids {len(written)}: "
            "give one row of each per text"
        )
    edits = edits_of(edit, ablate, hide, call="model")
    edited, ids = fit_ids(model, edits, ids, mask, written=written.shape[1])
    options = options_of_columns(model, edited, ids, mask)
    decoder_options: dict[str, Any] = {}
    if edited.asked and mask.any():
        spans = network.spans(mask)
        layout = columns(mask, spans)
        own = columns(written_mask, without_holes(written_mask))._replace(other=layout)
        record = edited.recorder(own)
        decoder_options["record"] = None if record is None else record.under("decoder.")
        decoder_options["visible"] = edited.visible(layout, int(spans.sum(1).max()))
    rows, cu_lengths = network.masked(ids, mask, **options)
    encoded = unpacked(rows, mask, network.dtype)
    packed = network.decode(written, written_mask, rows, cu_lengths, **decoder_options)
    return output_of(network.decoder, packed, written_mask, encoder_last_hidden_state=encoded)


def trace_pair(
    model: Core,
    texts: Texts,
    *,
    target: Texts | None = None,
    logits: bool = False,
    ablate: Ablate = (),
    hide: Hide = (),
    edit: Edit = None,
    **kept: Any,
) -> Trace | Seq2SeqTrace:
    """Run texts and keep every activation, keyed by name.

    Without a target, only the encoder runs, as in `Model.trace`. With a target, the decoder gets
    the tokens that predict the target: the start token and all tokens of the target except the end
    token.

    Args:
        texts: the texts that the encoder reads; see `Model.trace`.
        target: the texts that the decoder writes, one per text in `texts`; or token ids, which must
            begin with the start token.
        logits: whether to keep `trace["decoder.logits"]` (B, T, V) too; only with a target.
        ablate: as in `Model.trace`, heads of the encoder.
        hide: as in `Model.trace`, for the encoder's texts. With a target, the decoder does not see
            these words and positions either.
        edit: as in `Model.trace`. With a target, names begin with "encoder." or "decoder.":
            "decoder.z" stands for all layers of the decoder, and ("decoder.z", 3) for one layer.
        kept: `layers`, `names` and `top_k` of `Model.trace`, which apply to both the encoder and
            the decoder; without a target, also `batch_size`. A name that begins with "encoder." or
            "decoder.", such as "decoder.hook_resid_post", is kept for that side only.

    Returns:
        A `Trace` of the encoder or, with a target, a `Seq2SeqTrace` of the encoder and the decoder.
    """
    if target is None:
        return trace(model, texts, logits=logits, ablate=ablate, hide=hide, edit=edit, **kept)
    if kept.pop("batch_size", None) is not None:
        raise ValueError("trace: batch_size is for texts without a target: omit batch_size")
    keep = names_to_keep(pair_network(model).pair_hook_names, **kept)
    if logits:
        model._need_words("trace")
    single, batch = model.reader.read(texts)
    _, written = model.reader.read(target)
    if len(batch) != len(written):
        raise ValueError(
            f"trace: there are {len(batch)} texts and {len(written)} targets: give one target for "
            "each text"
        )
    if not isinstance(target, np.ndarray | list | tuple) or isinstance(target[0], str):
        for number, text in enumerate(written):
            has_end = text.special[-1] and int(text.ids[-1]) in model._eos_ids
            written[number] = after_start(model, text, len(text) - has_end)
    edits = edits_of(edit, ablate, hide, call="trace")
    batch, edited = model._fit(edits, batch, written=max(map(len, written)))
    edited.check_summaries(kept.get("top_k"))
    return traced_pair(model, batch, written, edited, keep, kept.get("top_k"), single, logits)


def traced_pair(
    model: Core,
    batch: Sequence[Tokenized],
    written: Sequence[Tokenized],
    edited: EditedRun,
    keep: Callable[[str], bool] = kept_unasked,
    top_k: int | None = None,
    single: bool = False,
    logits: bool = False,
) -> Seq2SeqTrace:
    """Return the trace of texts and of the decoder's input for each text."""
    network = pair_network(model)
    starts = starts_of(map(len, written))
    ids = padded(np.concatenate([text.ids for text in written]), starts)  # (B, L)
    real = np.arange(ids.shape[1]) < np.diff(starts)[:, None]
    layout, longest = layout_of(range(len(batch)), batch), max(map(len, batch))
    names = network.pair_hook_names
    write_to = None if logits else layers_to_run(names, keep, "decoder")
    # every layer of the decoder reads the last vectors of the encoder
    read_to = layers_to_run(names, keep, "encoder") if write_to == 0 else None
    edited = model._with_means(edited, batch, len(batch))
    masks, visible = edited.masks(layout, longest), edited.visible(layout, longest)
    own = layout_of(layout.texts, written)._replace(other=layout)
    read, write = (edited.recorder(side, keep) or Recorder(keep) for side in (layout, own))
    rows, cu_lengths = model.reader.run(
        network, batch, record=read.under("encoder."), top_k=top_k, masks=masks, stop=read_to
    )
    last = network.decode(
        ids,
        real,
        rows,
        cu_lengths,
        visible=visible,
        record=write.under("decoder."),
        top_k=top_k,
        stop=write_to,
    )
    if logits:
        write.arrays["decoder.logits"] = unpacked(network.logits(last), real)
    parts: dict[str, dict[str, Array]] = {"encoder": {}, "decoder": {}, "cross": {}}
    for name, array in (read.arrays | write.arrays).items():
        at, row = parse(name), activation(name)
        is_own = "token" in row.axes and not (at.crosses and row.of_keys)
        if at.side == "decoder" and is_own:
            array[~real] = 0  # computed for padding
        parts["cross" if at.crosses else at.side][side_of(name)[1]] = array
    changed = edited.asked
    across = {} if visible is None else {"attn_mask": visible}
    return Seq2SeqTrace(
        as_trace(model, parts["encoder"], batch, network, masks, single, changed),
        as_trace(model, parts["decoder"], written, network.decoder, None, single, changed),
        parts["cross"],
        settings={
            i: {**layer.options, **across} for i, layer in enumerate(network.cross_attention)
        },
    )


def after_start(model: Core, text: Tokenized, count: int) -> Tokenized:
    """Return the decoder's start token, followed by the first `count` tokens of a text."""
    first = pair_network(model).first
    name = None if model.tokenizer is None else model.tokenizer.token(first)
    return Tokenized(
        ids=np.concatenate([[first], text.ids[:count]]),
        tokens=[name or str(first), *text.tokens[:count]],
        offsets=[(0, 0), *text.offsets[:count]],
        special=[True, *text.special[:count]],
        text=text.text,
    )

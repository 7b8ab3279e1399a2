"""Models that read one text and write another: their design, and what can be asked of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from qkv.arrays import Array
from qkv.edits import Ablate, Edit, Hide, edits_of
from qkv.layers.packed import padded, starts_of
from qkv.models.files.read import ModelError, is_whole
from qkv.models.model import Model, ModelOutput, output_of
from qkv.models.network.decoder import EncoderDecoder
from qkv.models.network.head import BuiltHead
from qkv.models.network.transformer import unpacked, without_holes
from qkv.models.run.edit import EditedRun
from qkv.models.run.inputs import Texts, checked_ids, checked_positions
from qkv.models.run.layout import columns, layout_of
from qkv.models.tasks.generate import Row
from qkv.models.tasks.trace import layers_to_run, names_to_keep
from qkv.text import Tokenized
from qkv.trace import Recorder, Seq2SeqTrace, Trace
from qkv.trace.activations import activation
from qkv.trace.names import parse, side_of
from qkv.trace.recorder import kept_unasked


class Seq2SeqModel(Model):
    """A model that reads one text and writes another.

    What `Model` does with texts is done by the encoder: `encode` pools its vectors and `trace`
    shows what is in it, unless there is a `target`. `num_layers` and `num_heads` are the
    encoder's. `generate` gives the text that the decoder writes.
    """

    continues: ClassVar[bool] = False
    _body: EncoderDecoder

    def _build(self) -> None:
        super()._build()
        first = self._generation.get("decoder_start_token_id")
        if first is None:
            first = self._body.first
        rows = len(self._body.embedding.table)
        if not is_whole(first) or not 0 <= first < rows:
            raise ModelError(
                f"load: decoder_start_token_id of {self.name} is {first!r:.40}: it must be the id "
                f"of a token, 0 to {rows - 1}"
            )
        self._body.first = first

    def __call__(
        self,
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
            input_ids: (B, S) integers, the texts that are read; or (S,) for one.
            attention_mask: of the same shape, True or 1 where there is a token; elsewhere is
                padding, on whichever side, which is not read. Without it all are tokens.
            decoder_input_ids: (B, L) integers, what is written so far, from the start token on; or
                (L,) for one.
            decoder_attention_mask: of the same shape, the same for these.
            position_ids: an error, as these models know no positions but distances of columns.
            ablate: heads of the encoder to go without, as in `trace`.
            hide: words of the texts that are read, places and edges, as in `trace`: neither encoder
                nor decoder looks at such words and places. Places are columns of `input_ids`.
            edit: activations to change, as in `trace`, by names that begin with "encoder." or
                "decoder."; what functions get and arrays are has the columns of the ids.

        Returns:
            `last_hidden_state` (B, L, D) and `logits` (B, L, V) of the decoder, 0 where its mask
            hides, and `encoder_last_hidden_state` (B, S, D).

        Raises:
            TypeError: ids that are not integers, a mask that is not of bools or 0 and 1.
            ValueError: shapes that do not fit, an id that the table does not have, no
                `decoder_input_ids`; as for `trace`.
        """
        body = self._body
        if decoder_input_ids is None:
            raise ValueError(
                f"model: decoder_input_ids are missing: begin with [[{body.first}]], or call "
                "encode() or trace() for the encoder alone"
            )
        ids, mask = checked_ids(body.embedding, input_ids, attention_mask)
        checked_positions(body, position_ids, mask, self.name)
        written, shown = checked_ids(
            body.embedding, decoder_input_ids, decoder_attention_mask, "decoder_"
        )
        if len(ids) != len(written):
            raise ValueError(
                f"model: input_ids have {len(ids)} rows and decoder_input_ids {len(written)}: "
                "there must be one of each for a text"
            )
        edits = edits_of(edit, ablate, hide, call="model")
        edited, ids = self._fit_ids(edits, ids, mask, written=written.shape[1])
        options = self._of_columns(edited, ids, mask)
        others = self._of_written(edited, mask, shown)
        rows, cu_lengths = body.masked(ids, mask, **options)
        encoded = unpacked(rows, mask, body.dtype)
        packed = body.decode(written, shown, rows, cu_lengths, **others)
        return output_of(body.decoder, packed, shown, encoder_last_hidden_state=encoded)

    def _of_written(self, edited: EditedRun, mask: Array, shown: Array) -> dict[str, Any]:
        """The options of `EncoderDecoder.decode` for these edits, by the masks of both texts."""
        if not edited.asked or not mask.any():
            return {}
        spans = self._body.spans(mask)
        layout = columns(mask, spans)
        record = edited.recorder(columns(shown, without_holes(shown))._replace(other=layout))
        return {
            "record": None if record is None else record.under("decoder."),
            "visible": edited.visible(layout, int(spans.sum(1).max())),
        }

    def trace(  # type: ignore[override]  # its texts are written by a decoder, `target`
        self,
        texts: Texts,
        *,
        target: Texts | None = None,
        logits: bool = False,
        ablate: Ablate = (),
        hide: Hide = (),
        edit: Edit = None,
        **kept: Any,
    ) -> Trace | Seq2SeqTrace:
        """Run texts and keep every intermediate by its name.

        Without a target only the encoder is run, and all is as in `Model.trace`. With one the
        decoder is given what predicts it: the start token and all of its tokens but the one that
        ends it.

        Args:
            texts: what is read; see `Model.trace`.
            target: what is written, a text for each of `texts`; or token ids from the start
                token on, which are taken as they are.
            logits: keep `trace["decoder.logits"]` (B, T, V) too; only with a target.
            ablate: as in `Model.trace`, heads of the encoder.
            hide: as in `Model.trace`, in what is read; with a target, the decoder does not look at
                such words and places either.
            edit: as in `Model.trace`; with a target names begin with "encoder." or "decoder.", as
                "decoder.z" for that of all its layers, or ("decoder.z", 3).
            kept: `layers`, `names` and `top_k` of `Model.trace`, for encoder and decoder alike, and
                without a target `batch_size`.
                Names with "encoder." or "decoder." in front are kept of that one alone:
                "pattern", "decoder.hook_resid_post", "decoder.0.cross_attn.hook_pattern".

        Returns:
            A `Trace` of the encoder; with a target a `Seq2SeqTrace` of both.
        """
        if target is None:
            return super().trace(texts, logits=logits, ablate=ablate, hide=hide, edit=edit, **kept)
        if kept.pop("batch_size", None) is not None:
            raise ValueError("trace: batch_size is for texts without a target: leave it out")
        keep = names_to_keep(self._body.pair_hook_names, **kept)
        if logits:
            self._need_words("trace")
        single, batch = self._texts(texts)
        _, written = self._texts(target)
        if len(batch) != len(written):
            raise ValueError(
                f"trace: there are {len(batch)} texts and {len(written)} targets: give one each"
            )
        if not isinstance(target, np.ndarray | list | tuple) or isinstance(target[0], str):
            for number, text in enumerate(written):
                ended = text.special[-1] and int(text.ids[-1]) in self._eos_ids
                written[number] = self._after_start(text, len(text) - ended)
        edits = edits_of(edit, ablate, hide, call="trace")
        batch = self._swapped(edits, batch)
        names = map(self._with_names, batch)
        edited = self._fit(edits, names, written=max(map(len, written)))
        edited.check_summaries(kept.get("top_k"))
        return self._pair_traced(
            batch, written, single, keep, kept.get("top_k"), logits=logits, edited=edited
        )

    def _pair_traced(
        self,
        batch: Sequence[Tokenized],
        written: Sequence[Tokenized],
        single: bool,
        keep: Callable[[str], bool] = kept_unasked,
        top_k: int | None = None,
        *,
        logits: bool = False,
        edited: EditedRun,
    ) -> Seq2SeqTrace:
        """The trace of texts, and of what the decoder is given with them."""
        starts = starts_of(map(len, written))
        ids = padded(np.concatenate([text.ids for text in written]), starts)  # (B, L)
        real = np.arange(ids.shape[1]) < np.diff(starts)[:, None]
        layout, longest = layout_of(range(len(batch)), batch), max(map(len, batch))
        names = self._body.pair_hook_names
        write_to = None if logits else layers_to_run(names, keep, "decoder")
        # a layer of the decoder looks at all that the encoder gives
        read_to = layers_to_run(names, keep, "encoder") if write_to == 0 else None
        edited = edited.averaged(
            sum(map(len, batch)), lambda make: self._run(batch, record=make(layout))
        )
        masks, visible = edited.masks(layout, longest), edited.visible(layout, longest)
        own = layout_of(layout.texts, written)._replace(other=layout)
        read, write = (edited.recorder(one, keep) or Recorder(keep) for one in (layout, own))
        rows, cu_lengths = self._run(
            batch, record=read.under("encoder."), top_k=top_k, masks=masks, stop=read_to
        )
        last = self._body.decode(
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
            write.arrays["decoder.logits"] = unpacked(self._body.logits(last), real)
        parts: dict[str, dict[str, Array]] = {"encoder": {}, "decoder": {}, "cross": {}}
        for name, array in (read.arrays | write.arrays).items():
            at, one = parse(name), activation(name)
            is_own = "token" in one.axes and not (at.crosses and one.of_keys)
            if at.side == "decoder" and is_own:
                array[~real] = 0  # computed on the way, and nobody's
            parts["cross" if at.crosses else at.side][side_of(name)[1]] = array
        asked, body = edited.asked, self._body
        across = {} if visible is None else {"attn_mask": visible}
        return Seq2SeqTrace(
            self._as_trace(parts["encoder"], batch, single, body, masks, asked),
            self._as_trace(parts["decoder"], written, single, body.decoder, changed=asked),
            parts["cross"],
            settings={i: {**one.options, **across} for i, one in enumerate(body.cross_attention)},
        )

    @property
    def _head(self) -> BuiltHead | None:
        return self._body.decoder.head

    def _after_start(self, text: Tokenized, count: int) -> Tokenized:
        """The token that a decoder begins with, and the first tokens of a text."""
        first = self._body.first
        known = None if self.tokenizer is None else self.tokenizer.token(first)
        return Tokenized(
            ids=np.concatenate([[first], text.ids[:count]]),
            tokens=[known or str(first), *text.tokens[:count]],
            offsets=[(0, 0), *text.offsets[:count]],
            special=[True, *text.special[:count]],
            text=text.text,
        )

    def _rows_traced(self, rows: Sequence[Row], edited: EditedRun) -> Seq2SeqTrace:
        # all new tokens but the last, which chose none
        written = [self._after_start(row.added(self.tokenizer), len(row.ids) - 1) for row in rows]
        return self._pair_traced([row.given for row in rows], written, False, edited=edited)

"""A model with its tokenizer: texts in, a trace or vectors out."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from qkv.arrays import Array, as_array, is_float, is_whole_number, shown, whole_number
from qkv.edits import Ablate, Edit, Edits, Hide, edits_of
from qkv.layers.packed import padded, starts_of
from qkv.models.comparing import ComparingModel
from qkv.models.elsewhere import GENERATING, advising
from qkv.models.network.transformer import Transformer, unpacked
from qkv.models.run.edit import EditedRun
from qkv.models.run.fit_edits import check, hide_value, spliced_names
from qkv.models.run.inputs import checked_ids, checked_positions, named
from qkv.models.run.layout import Layout, columns, layout_of
from qkv.models.run.streams import batches, joined
from qkv.models.run.truncation import Cut, callers, counting
from qkv.models.tasks.generate import DEFAULT_NEW, Row, steps, tokens_to_add
from qkv.models.tasks.gradient import (
    check_functions,
    check_type,
    gradients,
    names_of,
    target_of,
    word_id,
)
from qkv.models.tasks.heads import HeadWeights, head_weights
from qkv.models.tasks.predict import Guesses, in_words, likeliest, mask_places, one_text
from qkv.models.tasks.resume import run_layers
from qkv.models.tasks.sampling import Sampling
from qkv.models.tasks.spelling import TextStream, check_stop, spelled
from qkv.models.tasks.trace import Names, layers_to_run, names_to_keep
from qkv.ops.loss import cross_entropy
from qkv.text import Tokenized
from qkv.text.tokenized import told_unknown
from qkv.trace import Recorder, Trace
from qkv.trace.recorder import kept_unasked


@dataclass(frozen=True)
class ModelOutput:
    """What calling a model gives.

    Attributes:
        last_hidden_state: (B, T, D), 0 where the attention mask hides.
        logits: where the model has a head: (B, T, V) over words, 0 where the mask hides, or
            (B, classes) for a classifier; of ELECTRA's discriminator (B, T), as transformers has
            them.
        embeds: (B, E), where the head gives a vector of each text or image in place of logits.
        encoder_last_hidden_state: (B, S, D) where there is an encoder beside the decoder, to
            which the other two belong.
    """

    last_hidden_state: Array
    logits: Array | None = None
    embeds: Array | None = None
    encoder_last_hidden_state: Array | None = None


def output_of(
    body: Transformer, rows: Array, mask: Array, ids: Array | None = None, **others: Array
) -> ModelOutput:
    """What comes of a transformer's last vectors (total, D), those that a mask (B, T) shows.

    `ids` (B, T) are those of the tokens, where there are any.
    """
    out = unpacked(rows, mask, body.dtype)
    if body.head is None:
        return ModelOutput(out, **others)
    found = body.head(rows, starts_of(mask.sum(1)), None if ids is None else ids[mask])
    if body.head.steps.embeds:
        return ModelOutput(out, embeds=found, **others)
    if body.head.steps.flat:
        found = found[:, 0]
    return ModelOutput(out, found if body.head.pools else unpacked(found, mask), **others)


class Model(ComparingModel):
    """A model that `qkv.load` has read.

    Attributes:
        name: what it was asked for by.
        config: what its config.json says.
        tokenizer: cuts a text into the model's tokens; None if the folder has none.
        design: its sizes and options, from which the same is built on other parameters.

    >>> import qkv
    >>> model = qkv.load("random")
    >>> model.trace("The cat sat on the mat.")["pattern", 0].shape
    (1, 2, 7, 7)
    >>> model.encode(["The cat sat.", "I love you today."]).shape
    (2, 8)
    """

    continues: ClassVar[bool] = True  # whether what it generates goes on from the prompt

    def trace(
        self,
        texts: str | Iterable[str] | Sequence[Sequence[int]] | Array,
        *,
        layers: int | Iterable[int] | None = None,
        names: Names | None = None,
        top_k: int | None = None,
        logits: bool = False,
        batch_size: int | None = None,
        ablate: Ablate = (),
        hide: Hide = (),
        edit: Edit = None,
    ) -> Trace:
        """Run texts and keep every intermediate by its name.

        A text longer than `max_seq_length` is cut, its last special token kept, and a warning says
        so. What is padding beside a longer text is 0, scores there are -inf.

        Does a head, a word or a direction matter? `ablate` and `hide` run the texts without it, and
        `edit` changes any activation on the way: what is computed later follows from it, and
        nothing that is earlier. The trace keeps what the run went on with, and `trace.changed` says
        what was asked for.

        Args:
            texts: one text or several; or the ids of their tokens, (T,) integers for one and
                (B, T), or a list of such for texts of unlike lengths, for several.
            layers: the layers to keep, counted from 0, or from the end with -1; all by default. The
                final norm (`ln_final`) is kept with the last. No layer above the last one that is
                kept is run, unless `logits` are asked for.
            names: the names to keep, in full ("blocks.0.attn.hook_pattern"), short ("pattern",
                "ln1.scale"), or by tuples as a trace is indexed (("pattern", 3)). By default all
                but `attn.hook_result`, which is kept by name alone.
            top_k: keep only a summary of each layer's attention, `top_indices`, `top_weights`
                (B, Hq, T, top_k), `received` (B, Hq, T) and `lse` (B, Hq, T), and what `names`
                asks for: for texts whose (T, T) weights would not fit.
            logits: keep `trace["logits"]` (B, T, V) too, what the head gives for each word of the
                vocabulary.
            batch_size: how many texts are run at once, the trace being of all; None for as many as
                have some thousand tokens. What is not kept needs memory for so many alone.
            ablate: heads to go without, as (layer, head), (layer, None) for all of a layer: their
                `hook_z` is 0, and they add nothing; their `hook_pattern` stays what the softmax
                gave. Or a mapping from such pairs to what `hook_z` is: "zero", an array (d,), or
                "mean", over all tokens of all these texts in a run of the model as it is; of a head
                that is named twice the last counts.
            hide: words, or special tokens such as "[SEP]", that no token may look at, themselves
                included, wherever they occur; or places, of each text that has them, from its end
                with -1. What is hidden still looks at the others; a token that sees nothing gets 0.
                Or edges, in a list: (query, key) for one place that does not look at one other,
                (query, key, layer) and (query, key, layer, head) for there alone.
            edit: a list of records, such as `{"op": "mask", "query": 4, "key": 1}`, which apply to
                each text and mean the same over HTTP and in the page (`qkv.edits.schema()`
                describes them); or a mapping from activations to functions or to arrays. An
                activation has its full name, or a tuple as a trace is indexed, ("resid_post", 3);
                "resid_post" and ("resid_post", None) are those of all layers, ("resid_post", (1,
                2)) of several. A function f(array) or f(array, at) gets a copy of the array as the
                trace shows it, (B, T, ...), 0 in padding, -inf among scores, and gives one of that
                shape. `at` says where it is: `at.name`, `at.layer`, `at.texts`, `at.positions` and
                `at.step`, as `qkv.models.At` describes them. A function gets all texts at once,
                which are then run at once and need memory for that, or with `batch_size` so many at
                a time. An array, (B, T, ...) or (1, T, ...), takes the place of what was computed.
                Scores are edited behind the mask, weights behind the softmax; of a head that is
                ablated `hook_z` is what takes its place. What is edited in layers that are not run
                changes nothing, and no function is called for it.

        Raises:
            TypeError: a text is not a string, `ablate` holds no pairs, `hide` neither words, places
                nor edges, or `edit` no functions or arrays; a function gives no array.
            ValueError: a text is empty, there is none, there is no such layer or head, a word or
                place to hide is in no text, a text has no other word, an array or what a function
                gives has another shape, `top_k` and an edit of weights are both given, or `logits`
                are asked of a model that gives none over words.
            KeyError: there is no such name; the message has the nearest ones.

        >>> import qkv
        >>> trace = qkv.load("random").trace("I love you", names=["pattern", "embed"])
        >>> trace.names(), trace.tokens
        (['hook_embed', 'blocks.0.attn.hook_pattern'], ['i', 'love', 'you'])
        >>> trace = qkv.load("random").trace("I love you", hide=["love"])
        >>> trace.pattern(layer=0, head=1).round(2)[:, 1], trace.changed
        (array([0., 0., 0.], dtype=float32), {'hide': ['love']})
        >>> twice = qkv.load("random").trace("I love you", edit={("z", 0): lambda z: 2 * z})
        >>> plain = qkv.load("random").trace("I love you")
        >>> bool((twice["z", 0] == 2 * plain["z", 0]).all()), twice.changed
        (True, {'edit': ['blocks.0.attn.hook_z']})
        >>> def no_love(out, at):
        ...     out[at.positions == 1] = 0
        ...     return out
        >>> trace = qkv.load("random").trace("I love you", edit={"attn_out": no_love})
        >>> trace["attn_out", 0].any(-1)
        array([[ True, False,  True]])
        """
        kept: dict[str, Any] = {"layers": layers, "names": names, "top_k": top_k, "logits": logits}
        edits = edits_of(edit, ablate, hide, call="trace")
        return self._trace(texts, kept, edits, batch_size=batch_size)

    def trace_stream(
        self,
        texts: Iterable[str] | Sequence[Sequence[int]] | Array,
        *,
        batch_size: int = 64,
        layers: int | Iterable[int] | None = None,
        names: Names | None = None,
        top_k: int | None = None,
        logits: bool = False,
        ablate: Ablate = (),
        hide: Hide = (),
        edit: Edit = None,
    ) -> Iterator[Trace]:
        """A trace for each batch of texts, in order, for more than memory has room for.

        Texts are read as it goes, and nothing of a trace is kept here once it is given: memory is
        that of one trace, and of the one before as long as you hold it.

        Args:
            texts: any iterable of texts, or of the ids of their tokens, (T,) each.
            batch_size: how many texts each trace has; the last may have fewer.
            layers: as for `trace`, and so are all that follow.
            names: the names to keep.
            top_k: keep only a summary of each layer's attention.
            logits: keep the logits too.
            ablate: heads to go without; not with "mean", which is over all texts of a call.
            hide: words, places and edges that are not looked at, in the texts that have them.
            edit: activations to change, in each batch on its own: a function gets all texts of a
                batch, and `at.texts` says which of all these are; an array is (1, T, ...), or that
                of a batch, T its longest text.

        Returns:
            An iterator over traces, whose `tokens` are nested, as for a list of texts.

        Raises:
            TypeError: `texts` are one text, or an argument is of a wrong type.
            ValueError: as for `trace`; numbers of texts are those of all. What is wrong with a text
                is raised when its batch is reached, and behind the last one that no text has what
                is to be hidden.
            KeyError: there is no such name.

        >>> import qkv
        >>> texts = (f"the cat sat {n} times" for n in range(100))
        >>> [len(trace) for trace in qkv.load("random").trace_stream(texts, batch_size=40)]
        [40, 40, 20]
        """
        kept: dict[str, Any] = {"layers": layers, "names": names, "top_k": top_k, "logits": logits}
        edits = edits_of(edit, ablate, hide, call="trace_stream")
        self._keeping("trace_stream", self._hook_names(edits), **kept)
        check(edits, self._body, self._reads)
        absent = {hide_value(one) for one in edits.records if one.source == "hide"}
        given = batches(texts, batch_size)

        def traces() -> Iterator[Trace]:
            cut, first = Cut(self.max_seq_length), 0
            for part in given:
                with counting(cut):
                    found = self._trace(part, kept, edits, first=first, absent=absent)
                first += len(found)
                yield found
                del found
            cut.warn()
            if absent and first:
                one = shown(min(absent, key=str))
                raise ValueError(
                    f"trace_stream: hide has {one}, which is in none of the texts: leave it out"
                )

        return traces()

    def _hook_names(self, edits: Edits) -> list[str]:
        """The names that a trace of a run with these edits may have."""
        return [*self._body.hook_names, *spliced_names(edits, self._body)]

    def _keeping(
        self, call: str, known: Sequence[str], logits: bool = False, **kept: Any
    ) -> Callable[[str], bool]:
        """Says of each known name whether a trace keeps it, once it is known that it may."""
        if logits:
            self._need_words(call)
            if not self.continues:
                wanted = "add target=..." if call == "trace" else "call trace(text, target=...)"
                raise ValueError(f"{call}: {self.name} gives logits where it writes: {wanted}")
        return names_to_keep(known, call=call, **kept)

    def _trace(
        self,
        texts: Any,
        kept: Mapping[str, Any],
        edits: Edits,
        *,
        batch_size: int | None = None,
        first: int = 0,
        absent: set[Any] | None = None,
    ) -> Trace:
        """The trace of texts, which errors count from `first`; `absent` is as for `fit`."""
        call, known = edits.call, self._hook_names(edits)
        keep = self._keeping(call, known, **kept)
        if batch_size is not None:
            batch_size = whole_number(batch_size, call=call, name="batch_size", least=1)
        stop = None if kept["logits"] else layers_to_run(known, keep)
        single, batch = self._texts(texts, call, first)
        batch = self._swapped(edits, batch, first)
        edited = self._fit_with_means(
            edits, batch, batch_size, stop=stop, first=first, absent=absent
        )
        edited.check_summaries(kept["top_k"])
        if edited.calls and batch_size is None:
            batch_size = len(batch)

        def run(part: range) -> dict[str, Array]:
            """The arrays of some of the texts."""
            own = batch[part.start : part.stop]
            layout = layout_of(part, own)
            masks = edited.masks(layout, max(map(len, own)))
            record = edited.recorder(layout, keep) or Recorder(keep)
            rows, cu_lengths = self._run(
                own, record=record, top_k=kept["top_k"], masks=masks, stop=stop
            )
            if kept["logits"]:
                found = self._body.logits(rows)  # (total, V)
                record.arrays["logits"] = (
                    found[None] if len(own) == 1 else padded(found, cu_lengths)
                )
            return record.arrays

        arrays = joined(batch, batch_size, run)
        masks = edited.masks(Layout(range(len(batch))), max(map(len, batch)))
        return self._as_trace(arrays, batch, single, self._body, masks, edited.asked)

    def _as_trace(
        self,
        arrays: Mapping[str, Array],
        batch: Sequence[Tokenized],
        single: bool,
        body: Transformer,
        masks: Mapping[int, Array] | None = None,
        changed: Mapping[str, Sequence[Any]] | None = None,
    ) -> Trace:
        """What was recorded of these texts, which a body ran with such masks."""
        return Trace(
            arrays,
            tokens=[text.tokens for text in batch],
            ids=[text.ids.tolist() for text in batch],
            offsets=[text.offsets for text in batch],
            special=[text.special for text in batch],
            texts=[text.text for text in batch],
            settings=body.settings(max(map(len, batch)), masks),
            single=single,
            model=self.name,
            changed=changed,
            last_is_normed=self.design.last_is_normed,
            num_layers=len(body.layers),
            untrained=body.untrained,
        )

    @advising("generate", GENERATING)
    def generate(
        self,
        prompt: str | Iterable[str] | Sequence[Sequence[int]] | Array,
        *,
        max_new_tokens: int | None = None,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        stream: bool = False,
        stop: str | Iterable[str] = (),
        trace: bool = False,
        ablate: Ablate = (),
        hide: Hide = (),
        edit: Edit = None,
    ) -> Any:
        """Continue a text, or several at once, token by token.

        A text ends with a token that ends texts (`eos_token_id` of generation_config.json, or
        else of config.json), before a stop string, or after `max_new_tokens`. With a temperature,
        tokens are drawn as `transformers` does it: of the logits divided by it the `top_k` largest,
        of these the likeliest until their probabilities sum to `top_p`.

        Args:
            prompt: one text or several; or the ids of their tokens, (T,) integers for one and
                (B, T), or a list of such for texts of unlike lengths, for several.
            max_new_tokens: the most tokens that are added to each. Without it 64, or as many as
                the model has positions for.
            temperature: 0 for the likeliest token each time; else what logits are divided by.
                `top_k`, `top_p` and `seed` need one above 0.
            top_k: how many of the likeliest tokens may be drawn.
            top_p: the probability, above 0 and at most 1, that those that may be drawn sum to.
            seed: makes what is drawn the same again; each text draws numbers of its own.
            stream: give the pieces as they come, each word once it is whole.
            stop: strings that a new text ends before.
            trace: keep, for each new token, what it looked at while it was chosen.
            ablate: heads to go without, as in `trace`, for prompt and new tokens; not with "mean".
            hide: words of the prompt, and places and edges of the text as it grows, as in `trace`;
                negative ones count from the end of the prompt.
            edit: activations to change, as in `trace`. A function gets the places that a step
                computes, `at.positions`: those of the prompt in `at.step` 0, then one at a time,
                and of weights all keys that a layer still has. An array applies to the prompt. Of a
                model that reads one text and writes another, names begin with "encoder." or
                "decoder.", and `ablate` and `hide` are about the text that is read.

        Returns:
            A `Generated`, which is a string, the new text without the prompt, and has `prompt`,
            `ids`, `finish_reason` and with `trace=True` also `trace`, `logits`, `probabilities`
            and `looked_at`. For several prompts a list of them. With `stream=True` an iterator
            over strings, for several prompts over (number of the prompt, string). A model without
            a tokenizer shows ids as numbers.

        Raises:
            TypeError: a prompt or an argument is of a wrong type.
            ValueError: the model has no head for the next token, or no tokenizer for text; a
                prompt is empty, or with what is to be added longer than the model's positions; an
                argument makes no sense.
            FloatingPointError: the model's logits are not finite.

        Source:
            Top-p: Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration".

        >>> import qkv
        >>> text = qkv.load("books-decoder").generate("bank:")
        >>> text.prompt, text.finish_reason, len(text.split()) > 3
        ('bank:', 'eos', True)
        """
        sampling = Sampling(temperature, top_k, top_p)
        if max_new_tokens is not None:
            max_new_tokens = whole_number(
                max_new_tokens, call="generate", name="max_new_tokens", least=1
            )
        if seed is not None:
            seed = whole_number(seed, call="generate", name="seed", least=0, most=math.inf)
        sampling.check_draws(seed)
        stop_strings = check_stop(stop)
        if stream and trace:
            raise ValueError("generate: stream and trace do not go together: choose one of them")
        edits = edits_of(edit, ablate, hide, call="generate")
        if edits.changes and trace:
            raise ValueError(
                "generate: trace and edit do not go together, as a trace runs the whole text again "
                "at once: generate first, then trace(prompt + result, edit=...)"
            )
        single, rows = self.rows(
            prompt, max_new_tokens=max_new_tokens, stop=stop_strings, seed=seed
        )
        prompts = self._swapped(edits, [row.given for row in rows])
        for row, tokens in zip(rows, prompts, strict=True):
            row.given = tokens
        edited = self._fit(
            edits,
            map(self._with_names, prompts),
            more=[row.max_new_tokens for row in rows] if self.continues else (),
            written=None if self.continues else 1,
        )
        steps = self.steps(rows, sampling, top=0 if trace else None, edited=edited)
        if stream:
            pieces = (piece for step in steps for piece in step)
            return (piece for _, piece in pieces) if single else pieces
        for _ in steps:
            pass
        traced = self._rows_traced(rows, edited) if trace and rows else None
        results = [row.result(traced and traced[number]) for number, row in enumerate(rows)]
        return results[0] if single else results

    @property
    def generates(self) -> bool:
        """Whether `generate` continues texts with it."""
        return self._body.generates

    def rows(
        self,
        prompt: Any,
        *,
        max_new_tokens: int | None = None,
        usual: int = DEFAULT_NEW,
        copies: int = 1,
        stop: Sequence[str] = (),
        seed: int | None = None,
    ) -> tuple[bool, list[Row]]:
        """Whether it is one prompt, and the prompts as `steps` takes them, a step at a time.

        Args:
            prompt: as for `generate`, with its errors; so are `max_new_tokens` and `seed`.
            max_new_tokens: the same.
            usual: how many tokens are added where that is not said, as far as they fit.
            copies: how often each prompt is continued; its rows follow each other.
            stop: strings that a new text ends before.
            seed: of the numbers that each row draws.
        """
        if not self.generates:
            raise ValueError(
                f"generate: {self.name} has nothing that predicts the next token: load a decoder "
                "with its head (architectures in its config.json says ...ForCausalLM)"
            )
        single, prompts, batch = self._prompts(prompt)
        decode, limit = spelled(self.tokenizer), self.design.max_seq_length
        seeds = np.random.SeedSequence(seed).spawn(len(batch) * copies)
        rows = []
        for number, tokens in enumerate(batch):
            which = "the prompt" if len(batch) == 1 else f"prompt {number}"
            count = tokens_to_add(which, len(tokens), max_new_tokens, limit, self.name, usual)
            ids = tokens.ids.tolist()
            given = prompts[number] if prompts else decode(ids)
            for own in seeds[number * copies : (number + 1) * copies]:
                text = TextStream(decode, ids if self.continues else (), stop)
                rows.append(Row(given, tokens, count, text, np.random.default_rng(own)))
        return single, rows

    def steps(
        self,
        rows: Sequence[Row],
        sampling: Sampling,
        *,
        top: int | None = None,
        measure_prompts: bool = False,
        edited: EditedRun | None = None,
    ) -> Iterator[list[tuple[int, str]]]:
        """Generate a token of each row at a time: give the text that is whole with it, by its row.

        Args:
            rows: of `rows`, which the new tokens are added to.
            sampling: how a token is chosen.
            top: measure each new token, with so many of the likeliest; None measures none.
            measure_prompts: whether the tokens of the prompts are measured too, before the first
                step; of a model whose text goes on from the prompt.
            edited: what is done otherwise.
        """
        return steps(
            self._body,
            rows,
            sampling=sampling,
            eos_ids=self._eos_ids,
            top=top,
            measure_prompts=measure_prompts,
            edited=edited or EditedRun(),
        )

    def _rows_traced(self, rows: Sequence[Row], edited: EditedRun) -> Any:
        """The trace of prompts and what they were continued with."""
        batch = [row.whole(self.tokenizer) for row in rows]
        layout = Layout(range(len(batch)))
        masks = edited.masks(layout, max(map(len, batch)))
        record = edited.recorder(layout, kept_unasked) or Recorder()
        self._run(batch, record=record, masks=masks)
        return self._as_trace(record.arrays, batch, False, self._body, masks, edited.asked)

    def predict(
        self,
        text: Any,
        top_k: int = 5,
        *,
        ablate: Ablate = (),
        hide: Hide = (),
        edit: Edit = None,
    ) -> Guesses:
        """The likeliest words at each mask token of a text, or, of a decoder, behind the text.

        A word is as a reader knows it: without the mark of the blank before it, and with "##" in
        front where it continues the word before.

        Args:
            text: one text, in which an encoder has a gap wherever a word is missing: its mask
                token, or another way to write one (`mask`); or the ids of its tokens, (T,) or
                (1, T).
            top_k: how many words.
            ablate: heads to go without, as in `trace`.
            hide: words and places that no token may look at, as in `trace`.
            edit: activations to change, as in `trace`.

        Returns:
            For each mask token in turn, or for the one next place, a list of `top_k` pairs of a
            word and its probability, the likeliest first. Probabilities are those of the softmax of
            the logits over the whole vocabulary, in float64.

        Raises:
            TypeError: `text` is neither a string nor integers, or `top_k` is not a whole number.
            ValueError: the model has no head over words, or reads one text and writes another; the
                text is empty or too long, has no mask token, or is not one; `top_k` is below 1 or
                above V; as for `trace`.
            FloatingPointError: the model's logits are not finite.

        >>> import qkv
        >>> (first,) = qkv.load().predict("The sun rises in the [MASK].", top_k=3)
        >>> len(first), all(0 < probability < 1 for _, probability in first)
        (3, True)
        """
        tokens, places = self.blanks(text)
        unknown, tokenizer = tokens.unknown(), self.tokenizer
        if unknown and tokenizer is not None and tokenizer.unknown is not None:
            said = told_unknown(unknown, tokenizer.unknown).removeprefix("The ").rstrip(".")
            warnings.warn(f"predict: the {said}", UserWarning, stacklevel=callers())
        return self.guesses(tokens, places, top_k, edits_of(edit, ablate, hide, call="predict"))

    def losses(
        self, text: Any, *, ablate: Ablate = (), hide: Hide = (), edit: Edit = None
    ) -> Array:
        """The cross-entropy of each token of a text but the first, given the tokens before it.

        Its mean is the loss of a language model on this text, and the exponential of that mean the
        perplexity per token.

        Args:
            text: one text, or the ids of its tokens, (T,) or (1, T).
            ablate: heads to ablate, as in `trace`.
            hide: masked tokens and edges, as in `trace`.
            edit: activations to change, as in `trace`.

        Returns:
            (T - 1,) in nats: float32, or float64 for a model of that type.

        Raises:
            TypeError: `text` is neither a string nor integers.
            ValueError: the model is no decoder, or what `trace` refuses.

        >>> import qkv
        >>> model = qkv.load("books-decoder")
        >>> losses = model.losses("the king of the north")
        >>> bool(losses[2] < losses[3])  # "the" behind "of" is likelier than "north" behind "the"
        True
        """
        if not self.generates:
            raise ValueError(
                f"losses: {self.name} is no decoder and does not predict each token from those "
                "before it: predict(text) gives probabilities at a mask token"
            )
        trace = self.trace(text, names=[], logits=True, ablate=ablate, hide=hide, edit=edit)
        if len(trace) != 1:
            raise ValueError(f"losses: there are {len(trace)} texts: give one text a call")
        found, _ = cross_entropy(trace["logits"][0, :-1], np.array(trace[0].ids[1:], np.int64))
        return found

    def blanks(self, text: Any) -> tuple[Tokenized, list[int]]:
        """The tokens of a text, and the places at which `predict` reads its guesses off.

        Args:
            text: as for `predict`, with its errors.
        """
        self._need_words("predict")
        if not self.continues:
            raise ValueError(
                f"predict: {self.name} reads one text and writes another: call generate(text)"
            )
        tokens = one_text(
            text,
            name=self.name,
            need_tokenizer=self._need_tokenizer,
            prepared=self._sentence.prepared,
            rows=len(self._body.embedding.table),
            limit=self.max_seq_length,
            mask=self.mask,
            cuts=not self.generates,
        )
        tokens = self._with_names(tokens)
        if self.generates:
            return tokens, [len(tokens) - 1]
        return tokens, mask_places(tokens, self.tokenizer, self.name)

    def guesses(
        self,
        tokens: Tokenized,
        places: Sequence[int],
        top_k: int = 5,
        edits: Edits | None = None,
    ) -> Guesses:
        """What `predict` gives for a text that `blanks` has read."""
        edits = edits or Edits("predict")
        most = self._need_words("predict")
        top_k = whole_number(top_k, call="predict", name="top_k", least=1)
        if top_k > most:
            raise ValueError(
                f"predict: top_k is {top_k} and {self.name} has {most} words: give 1 to {most}"
            )
        [tokens] = self._swapped(edits, [tokens])
        edited = self._fit_with_means(edits, [tokens])
        rows, _ = self._run([tokens], **edited.packed([0], [tokens]))
        logits = self._body.logits(rows[list(places)])
        ranked = likeliest(logits, top_k, edited.why)
        behind = places if self.generates else [place - 1 for place in places]
        before = [tokens.tokens[max(0, place) : place + 1] for place in behind]
        return in_words(ranked, before, self.tokenizer)

    def unembed(self, resid: ArrayLike, *, norm: bool = True) -> Array:
        """Vectors as logits over words: through the final norm, where there is one, and the head.

        The head of a masked-LM is its linear layer, activation and norm too. Where the norms of a
        model stand before its parts, `unembed(trace["resid_post", -1])` is `trace["logits"]`; where
        they stand after, `unembed(trace["normalized_resid_post", -1])` is.

        Args:
            resid: (..., D), float.
            norm: whether vectors go through the final norm first; False for what has been through
                it. The norm inside a masked-LM head is always part of the head.

        Returns:
            (..., V), float32, or float64 for a model of that.

        Raises:
            TypeError: `resid` is not of floats.
            ValueError: it has another size than D, or the model has no head over words.

        >>> import qkv
        >>> model = qkv.load()
        >>> trace = model.trace("The sun rises.", logits=True)
        >>> found = model.unembed(trace["normalized_resid_post", -1])
        >>> found.shape == trace["logits"].shape, bool(abs(found - trace["logits"]).max() < 1e-4)
        (True, True)
        """
        self._need_words("unembed")
        array = as_array(resid, call="unembed", name="resid")
        if not is_float(array.dtype):
            raise TypeError(f"unembed: resid is {array.dtype}: give floats (..., {self.dim})")
        if array.shape[-1:] != (self.dim,):
            raise ValueError(
                f"unembed: resid has shape {array.shape} and {self.name} has vectors of "
                f"{self.dim}: give (..., {self.dim})"
            )
        rows = array.reshape(-1, self.dim).astype(self._body.dtype, copy=False)
        found = self._body.unembed(rows, norm=norm)
        return found.reshape(*array.shape[:-1], found.shape[-1])

    def run_layers(
        self, resid: ArrayLike, first: int, stop: int | None = None, *, edit: Edit = None
    ) -> Array:
        """Run some of the layers, on the vectors that the first of them takes.

        `unembed(run_layers(trace["resid_pre", 3], 3))` is `trace["logits"]`, and nothing below
        layer 3 is computed for it.

        Args:
            resid: (B, T, D), or (T, D) for one text, float: `resid_pre` of layer `first`. All of
                the T places are tokens: there is no padding.
            first: the layer that is run first, from the end with -1; the number of layers runs
                none.
            stop: the layer before which the run ends; None for behind the last.
            edit: activations of these layers to change, as in `trace`; what functions get and
                arrays are is (B, T, ...).

        Returns:
            What the last of these layers hands on, of the shape of `resid`, before the final norm;
            float32, or float64 for a model of that.

        Raises:
            TypeError: `resid` is not of floats, or a layer no whole number; as for `trace`.
            ValueError: `resid` has another shape, there is no such layer, an edit is of a layer
                that is not run; as for `trace`.
            KeyError: there is no such activation; the message has the nearest ones.

        >>> import qkv
        >>> model = qkv.load("books-decoder")
        >>> trace = model.trace("spoon: a", logits=True)
        >>> found = model.unembed(model.run_layers(trace["resid_pre", 3], 3))
        >>> bool(abs(found - trace["logits"]).max() < 1e-4)
        True
        """
        return run_layers(self._body, resid, first, stop, edit, self.name, self._reads)

    def head_weights(self, layer: int) -> HeadWeights:
        """What each head of a layer multiplies by, raw: no norm folded in, rotary left out.

        Args:
            layer: counted from 0, or from the end with -1; of a model that reads one text and
                writes another, a layer of the encoder.

        Returns:
            `.W_Q`, `.W_K`, `.W_V` (Hq, D, d) and `.W_O` (Hq, d, D), key heads that are shared
            repeated, in float32, or float64 for a model of that; their biases `.b_Q`, `.b_K`,
            `.b_V` (Hq, d) and `.b_O` (D,), 0 where the model has none; `.qk` and `.ov`, their
            products as factors: `.left` (Hq, D, d), `.right` (Hq, d, D), `.full()` (Hq, D, D) and
            `.eigenvalues` (Hq, d), those of the d x d product; and the model's tables, the same in
            every layer: `.W_E` (V, D), `.W_pos` (rows, D) or None, `.W_U` (D, V) and `.b_U` (V,),
            None where the model gives no logits over words.

        Raises:
            TypeError: `layer` is not a whole number.
            ValueError: there is no such layer.

        Source:
            Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits".

        >>> import qkv
        >>> heads = qkv.load("random").head_weights(0)
        >>> heads.W_Q.shape, heads.ov.full().shape, heads.qk.eigenvalues.shape
        ((2, 8, 4), (2, 8, 8), (2, 4))
        """
        count = self.num_layers
        if not is_whole_number(layer):
            raise TypeError(f"head_weights: layer is {shown(layer)}: give a whole number")
        if not -count <= layer < count:
            raise ValueError(
                f"head_weights: there is no layer {layer}: the model has {count}, 0 to {count - 1}"
            )
        embedding, head = self._body.embedding, self._body.head
        own = head.parameters if head is not None and head.predicts else {}
        ends = {
            "embed": embedding.table,
            "positions": embedding.positions,
            "unembed": own.get("head.out_proj.weight"),
            "bias": own.get("head.out_proj.bias"),
        }
        return head_weights(self._body.layers[layer].attn, ends)

    def gradient(
        self,
        text: Any,
        *,
        of: Any,
        at: Any = ("embed",),
        ablate: Ablate = (),
        hide: Hide = (),
        edit: Edit = None,
    ) -> dict[Any, Array]:
        """The gradient of a logit or an activation for activations, in an edited run or not.

        No gradient of a parameter is computed, and no layer above the last one that counts.

        Args:
            text: one text or several, or the ids of their tokens, as for `trace`.
            of: what it is the gradient of. `(place, token)` is the logit of a token at a place of
                each text, `(place, token, other)` how far it is above that of another; a place
                counts from the end with -1; a token is an id, or a string that is one token of the
                vocabulary (as it is cut behind nothing: GPT-2 knows "the" and " the"). An array of
                floats (B, T, V) weighs the logits of `trace(..., logits=True)`, which are summed.
                A mapping `{activation: array}` weighs activations by arrays of their shapes: 1 at
                the place of one neuron, 0 elsewhere.
            at: the activations, by their names as a trace has them: "embed", ("resid_post", 3),
                ("pattern", 0), "blocks.3.attn.hook_result"; "z" is that of all layers.
            ablate: heads to go without, as in `trace`.
            hide: words, places and edges that are not looked at, as in `trace`.
            edit: activations to change, as in `trace`. The gradient of an edited activation is
                that of what takes its place. Through records it goes on as their arithmetic says:
                "add" passes it, "ablate", "set", "patch" and "row" stop it. An array stops it. It
                goes through an `SAE`, whose features `at` may name. The derivative of a function is
                not known, so `at` may have its activation, and what comes later.

        Returns:
            For each activation, by its name as it was asked for, an array of the shape that the
            trace has it in, (B, T, ...), 0 in the padding; for one of all layers as `trace.stack`
            gives it, (layers, B, T, ...). float32, or float64 for a model of that.

        Raises:
            TypeError: an argument is of a wrong type, or the model is in half precision.
            ValueError: `of` is of logits and the model has no head over words; it reads one text
                and writes another; there is no such place or token; an array has another shape
                than what it weighs; a text is empty; a gradient would pass through a function; or
                as for `trace`.
            KeyError: there is no such activation; the message has the nearest ones.

        Source:
            Simonyan, Vedaldi and Zisserman 2014, "Deep Inside Convolutional Networks"; the backward
            pass: Rumelhart, Hinton and Williams 1986.

        >>> import qkv
        >>> model = qkv.load()
        >>> trace = model.trace("The sun [MASK].")
        >>> found = model.gradient("The sun [MASK].", of=(3, "the"), at=["embed", ("z", -1)])
        >>> all(found[name].shape == trace[name].shape for name in ("embed", ("z", -1)))
        True
        >>> neuron = np.zeros(trace["post", 1].shape)
        >>> neuron[0, 3, 7] = 1  # of layer 1, at the mask
        >>> found = model.gradient("The sun [MASK].", of={("post", 1): neuron}, at=[("pattern", 0)])
        >>> found["pattern", 0].shape == trace["pattern", 0].shape
        True
        """
        if not self.continues:
            raise ValueError(
                f"gradient: {self.name} reads one text and writes another, and there is no "
                "backward pass through both: take a model of one text"
            )
        words = 0 if isinstance(of, Mapping) else self._need_words("gradient")
        check_type(self._weights.parameters.values(), self.name)
        edits = edits_of(edit, ablate, hide, call="gradient")
        names = names_of(at, self._body, spliced=spliced_names(edits, self._body))
        _, batch = self._texts(text, "gradient")
        prepared = self._sentence.prepared

        def token_id(word: Any) -> int:
            return word_id(word, words, self.tokenizer, prepared, self.name)

        target = target_of(of, [len(one) for one in batch], self._body, token_id)
        batch = self._swapped(edits, batch)
        edited = self._fit(edits, map(self._with_names, batch))
        check_functions(edited.changes, names, self._body)
        edited = self._with_means(edited, batch)
        return gradients(self._body, batch, target, names, edited)

    def __call__(
        self,
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
            input_ids: (B, T) integers, or (T,) for one text, which gives what (1, T) gives.
            attention_mask: of the same shape, True or 1 where there is a token; elsewhere is
                padding, on whichever side, which is not read. Without it all are tokens.
            position_ids: (B, T) integers, or (1, T) for all texts, where each token stands, for
                learned and rotary positions; those of padding are not read. RoBERTa's and MPNet's
                begin at the padding's id + 1, as in transformers. Without them positions are as
                there: a token's column, or how many tokens come before it (OPT; RoBERTa and MPNet
                count those that are not the padding token). Where columns are learned positions
                (GPT-2, BERT), a text with padding on its left differs from the text alone:
                `np.maximum(np.cumsum(attention_mask, 1) - 1, 0)` makes them the same. Masks,
                windows, ALiBi and relative biases go by the order of the columns all the same.
            ablate: heads to go without, as in `trace`.
            hide: words that no token may look at, as in `trace`, and places: columns of
                `input_ids`.
            edit: activations to change, as in `trace`; what functions get and arrays are has
                the columns of `input_ids`, and so has `at.positions`. A function gets all texts.

        Raises:
            TypeError: ids that are not integers, a mask that is not of bools or 0 and 1; as for
                `trace`.
            ValueError: shapes that do not fit, an id that the table does not have, a position that
                the model does not have; as for `trace`.

        >>> import qkv
        >>> model = qkv.load("random")
        >>> model([[0, 1, 2]], [[1, 1, 0]]).last_hidden_state.shape
        (1, 3, 8)
        >>> left = model([[0, 1, 2]], [[0, 1, 1]], position_ids=[[0, 0, 1]]).last_hidden_state
        >>> bool(np.allclose(left[:, 1:], model([[1, 2]]).last_hidden_state))
        True
        """
        counts = position_ids is None
        ids, mask = checked_ids(self._body.embedding, input_ids, attention_mask, counts=counts)
        positions = checked_positions(self._body, position_ids, mask, self.name)
        edits = edits_of(edit, ablate, hide, call="model")
        edited, ids = self._fit_ids(edits, ids, mask)
        options = self._of_columns(edited, ids, mask, positions)
        rows, _ = self._body.masked(ids, mask, **options)
        return output_of(self._body, rows, mask, ids)

    def _fit_ids(
        self, edits: Edits, ids: Array, mask: Array, **others: Any
    ) -> tuple[EditedRun, Array]:
        """What a run of ids (B, T) does differently, and the ids once some are swapped."""
        if not edits:
            return EditedRun(), ids
        texts = [named(*row, self.tokenizer) for row in zip(ids, mask, strict=True)]
        texts = self._swapped(edits, texts)
        ids = np.array([text.ids for text in texts]).reshape(ids.shape)
        return self._fit(edits, texts, **others), ids

    def _of_columns(
        self, edited: EditedRun, ids: Array, mask: Array, positions: Array | None = None
    ) -> dict[str, Any]:
        """The options of `Transformer.masked` for these edits of ids (B, T) at such positions."""
        given: dict[str, Any] = {"positions": positions}
        if not edited.asked or not mask.any():
            return given
        spans = self._body.spans(mask)
        layout = columns(mask, spans)
        edited = edited.averaged(
            int(mask.sum()), lambda make: self._body.masked(ids, mask, record=make(layout), **given)
        )
        masks, record = edited.masks(layout, int(spans.sum(1).max())), edited.recorder(layout)
        if record is not None and edited.is_pair:
            record = record.under("encoder.")
        return {"record": record, "masks": masks, **given}


def handed_on(model: Model, layer: int) -> list[tuple[str, int]]:
    """What a trace may call the vectors that a layer hands on."""
    own = "normalized_resid_post" if model.layers[layer].post_norm else "resid_post"
    return [(own, layer), ("resid_pre", layer + 1)][: 1 + (layer + 1 < model.num_layers)]

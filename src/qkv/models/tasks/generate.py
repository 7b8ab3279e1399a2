"""Generate text token by token: `Model.generate`, and the functions that a server calls."""

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from qkv._argument_errors import invalid, public_call, public_items, type_error, value_error
from qkv.arrays import Array, DType, is_whole_number, quote, whole_number
from qkv.attend import KVCache
from qkv.attend.cache import keep_rows, shorten
from qkv.edits import Ablate, Edit, Hide, edits_of
from qkv.layers.stepping import NewTokens
from qkv.models._model_base import ModelBase
from qkv.models._other_libraries import GENERATING, advising
from qkv.models.network import EncodedTexts, EncoderDecoder, LongRope
from qkv.models.network.batch import Batch, PackedIds
from qkv.models.network.transformer import Transformer
from qkv.models.run.edited_run import CANNOT, EditedRun
from qkv.models.run.truncation import MAX_CHARS
from qkv.models.tasks._sampling import Measured, Sampling, measure_token
from qkv.models.tasks._spelling import BROKEN, TextStream, check_stop, decode_function
from qkv.models.tasks._together import Together
from qkv.models.tasks.tracing import after_start, as_trace, traced_pair
from qkv.text import Tokenized, Tokenizer
from qkv.trace import Recorder, Seq2SeqTrace, Trace
from qkv.trace.recorder import pad_rows

AT_ONCE = 32  # The maximum number of prompt tokens whose logits are in memory at once.
NONE_LEFT = "the rules of its generation_config.json suppress every token: remove one of them"
DEFAULT_NEW = 64  # The default number of new tokens.


class Generated(str):
    """New text, without the prompt: `result.prompt + result` is the whole text.

    Attributes:
        prompt: the text of the prompt.
        ids: the new tokens, including the token that ended the text.
        finish_reason: why the text ended: "eos" at an end token, "stop" at a stop string, "length"
            after `max_new_tokens` tokens or at the model's last position.
        trace: with `trace=True`, the trace of the prompt and the new tokens, as from `model.trace`.
        logits: with `trace=True`, the logit of each new token, (n,).
        probabilities: with `trace=True`, the probability of each new token at temperature 1.
    """

    prompt: str
    ids: list[int]
    finish_reason: Literal["eos", "stop", "length"]
    trace: Trace | Seq2SeqTrace | None = None
    logits: Array | None = None
    probabilities: Array | None = None

    @public_call("looked_at")
    def looked_at(self, token: int) -> list[Array]:
        """Return the attention weights with which the model predicted new token number `token`.

        At the position of each token, the model computes the logits of the next token. So the query
        of these weights is the token before the new token, and the keys are all tokens up to this
        query. For an encoder-decoder model, the result holds weights of the cross-attention, whose
        keys are the tokens of the encoder's text. Row `token` of each array in
        `trace.decoder.attentions` holds the weights of the decoder's self-attention.

        Returns:
            For each layer, an array (Hq, K).
            K is the number of tokens before the new token.
            For an encoder-decoder model, K is the number of tokens that the encoder reads.

        Raises:
            TypeError: `token` is not an integer.
            ValueError: the text was generated without `trace=True`.
            IndexError: the token does not exist.
        """
        if self.trace is None:
            raise value_error("nothing was traced: generate with trace=True")
        count = len(self.ids)
        if not is_whole_number(token):
            raise type_error(f"`token` is {quote(token)}; pass the number of a token")
        if not -count <= token < count:
            raise invalid(IndexError, f"`token` is {token}, but only {count} tokens were generated")
        number = token % count
        if isinstance(self.trace, Seq2SeqTrace):
            return [weights[0, :, number] for weights in self.trace.cross_attentions]
        row = len(self.trace.tokens) - count + number - 1
        return [weights[0, :, row, : row + 1] for weights in self.trace.attentions]


@public_call("generate")
@advising(GENERATING)
def generate(
    model: ModelBase,
    prompt: "str | Iterable[str] | Sequence[Sequence[int]] | Array | Prompt",
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
    """Continue one text or several texts token by token.

    A text ends with an end token (`eos_token_id` of generation_config.json, or else of
    config.json), before a stop string, or after `max_new_tokens` tokens. If the temperature is
    above 0, tokens are sampled as in transformers. First, the logits are divided by the
    temperature. Second, only the tokens with the `top_k` largest logits are kept. Third, only the
    most likely of these tokens are kept: as few as are needed for a total probability of `top_p` or
    more. The penalties, the suppressed and forced tokens, and the minimum lengths in
    generation_config.json are applied before these steps, as in transformers; the arguments of
    `generate` replace the file's do_sample, temperature, top_k, top_p and maximum lengths.

    Args:
        prompt: one text or several; or token ids, (T,) integers for one text, and (B, T) or a list
            of rows for several.
        max_new_tokens: the maximum number of tokens to add to each prompt. The default is 64, or
            fewer if the model has too few positions.
        temperature: if 0, each new token is the most likely token; otherwise, logits are divided by
            this number. `top_k`, `top_p` and `seed` need a temperature above 0.
        top_k: the number of most likely tokens to sample from.
        top_p: a number above 0 and at most 1. Tokens are sampled only from the most likely tokens:
            the smallest set whose total probability is `top_p` or more.
        seed: the seed of the random numbers, for repeatable results. Each text has its own random
            number generator.
        stream: whether to yield the text word by word as it is generated.
        stop: a new text ends before the first of these strings.
        trace: whether to trace the whole text, and to keep the logit and probability of each new
            token.
        ablate: heads to ablate, as in `trace`, for the prompt and new tokens; "mean" is not
            supported.
        hide: words, positions and edges to mask, as in `trace`. Only words of the prompt can be
            masked. Positions and edges may be in the prompt or in the new text. Negative positions
            count from the end of the prompt.
        edit: activations to change, as in `trace`. A function is called once in each step, with
            the activations of the positions `at.positions`. Step 0 computes all positions of the
            prompt; each later step computes one new position. The attention weights of a new
            position have one column for each key in the layer's cache. If an array replaces an
            activation, only the activations of the prompt are replaced. For an encoder-decoder
            model, names begin with "encoder." or "decoder.", and `ablate` and `hide` apply to the
            encoder.

    Returns:
        A `Generated`, or a list of `Generated` for several prompts.
        A `Generated` is a string, the new text without the prompt.
        The attributes of a `Generated` are `prompt`, `ids` and `finish_reason`.
        With `trace=True`, further attributes are `trace`, `logits`, `probabilities`, `looked_at`.
        With `stream=True`, the result is an iterator over strings.
        For several prompts, this iterator yields pairs (index of the prompt, string).
        If the model has no tokenizer, the new text consists of ids, for example "17 4 9".

    Raises:
        TypeError: a prompt or an argument has the wrong type.
        ValueError: the model has no head for the next token, or no tokenizer for text; a prompt is
            empty, or too long for the model's positions; or an argument is invalid.
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
        max_new_tokens = whole_number(max_new_tokens, name="max_new_tokens", least=1)
    if seed is not None:
        seed = whole_number(seed, name="seed", least=0, most=math.inf)
    sampling.check_draws(seed)
    stop_strings = check_stop(stop)
    if stream and trace:
        raise value_error("stream and trace cannot be combined: choose one of them")
    edits = edits_of(edit, ablate, hide, knows_means=False)
    if edits.changes and trace:
        raise value_error(
            "trace and edit cannot be combined, because a trace runs the whole text "
            "again in one pass: generate first, then trace(prompt + result, edit=...)"
        )
    single, added = rows(model, prompt, max_new_tokens=max_new_tokens, stop=stop_strings, seed=seed)
    more = [row.max_new_tokens for row in added] if model.continues else ()
    written = None if model.continues else 1
    prompts = Batch([row.prompt_tokens for row in added])
    prompts, edited = model.check_edits(edits, prompts, more=more, written=written)
    for row, tokens in zip(added, prompts, strict=True):
        row.prompt_tokens = tokens
    past = prompt.past if isinstance(prompt, Prompt) else None
    steps_taken = steps(model, added, sampling, top=0 if trace else None, edited=edited, past=past)
    if stream:
        new_texts = (pair for step in steps_taken for pair in step)
        texts = (text for _, text in new_texts) if single else new_texts
        return public_items("generate", texts)
    for _ in steps_taken:
        pass
    traced = _traced_rows(model, added, edited) if trace and added else None
    results = [row.result(traced and traced[number]) for number, row in enumerate(added)]
    return results[0] if single else results


@public_call("generate")
def rows(
    model: ModelBase,
    prompt: Any,
    *,
    max_new_tokens: int | None = None,
    usual: int = DEFAULT_NEW,
    copies: int = 1,
    stop: Sequence[str] = (),
    seed: int | None = None,
) -> "tuple[bool, list[Row]]":
    """Return `(single, rows)`: `single` is True for one prompt; `steps` adds tokens to the rows.

    Args:
        model: the model.
        prompt: as in `generate`. An invalid prompt raises the same errors as in `generate`.
        max_new_tokens: as in `generate`.
        usual: the default number of new tokens, if the model has enough positions.
        copies: the number of rows per prompt; the rows of a prompt are consecutive.
        stop: a new text ends before the first of these strings.
        seed: one seed for all rows. Each row gets its own random number generator from this seed.
    """
    model.need("generate")
    single, strings, batch = _read_prompts(model, prompt)
    decode, limit = decode_function(model.tokenizer), model.design.max_seq_length
    seeds = np.random.SeedSequence(seed).spawn(len(batch) * copies)
    prompts = []
    for number, tokens in enumerate(batch):
        which = "the prompt" if len(batch) == 1 else f"prompt {number}"
        count = tokens_to_add(which, len(tokens), max_new_tokens, limit, model.name, usual)
        ids = tokens.ids.tolist()
        text = strings[number] if strings else decode(ids)
        for row_seed in seeds[number * copies : (number + 1) * copies]:
            is_answer = isinstance(prompt, Prompt) or not model.continues
            stream = TextStream(decode, () if is_answer else ids, stop)
            prompts.append(Row(text, tokens, count, stream, np.random.default_rng(row_seed)))
    return single, prompts


def _read_prompts(model: ModelBase, prompt: Any) -> tuple[bool, list[str], list[Tokenized]]:
    """Return `(single, strings, tokens)`; `single` is True for one prompt.

    If the prompts are given as ids, `strings` is [].
    """
    if isinstance(prompt, Prompt):
        return True, [prompt.tokens.text], [prompt.tokens]
    if not isinstance(prompt, Iterable):
        kind = type(prompt).__name__
        raise type_error(f"the prompt is {kind}; pass a text, or a list of texts")
    single, strings, batch = model.reader.split(prompt)
    for number, text in enumerate(strings):
        if len(text) > MAX_CHARS:
            raise value_error(
                f"prompt {number} has {len(text):,} characters; pass at most {MAX_CHARS:,}"
            )
    if strings:
        tokenizer = model.reader.need_tokenizer()
        batch = tokenizer.tokenize_batch(strings)
    return single, strings, batch


def _traced_rows(
    model: ModelBase, rows: "Sequence[Row]", edited: EditedRun
) -> Trace | Seq2SeqTrace:
    """Return the trace of prompts with their new tokens."""
    if not model.continues:
        # the decoder reads all new tokens except the last, because no token follows the last
        texts = [row.new_tokens(model.tokenizer) for row in rows]
        written = [after_start(model, text, len(text) - 1) for text in texts]
        read = Batch([row.prompt_tokens for row in rows])
        return traced_pair(model, read, Batch(written), edited)
    batch, record = Batch([row.whole(model.tokenizer) for row in rows]), Recorder()
    model.network.run(batch, edited, record)
    masks = edited.masks(batch.layout, batch.longest)
    return as_trace(model, record.arrays, batch, model.network, masks, changed=edited.user_edits)


def tokens_to_add(
    which: str, count: int, wanted: int | None, limit: int | None, name: str, usual: int
) -> int:
    """Return the maximum number of tokens to add to a prompt of `count` tokens.

    Raises:
        ValueError: the prompt is empty; no position is free after the prompt; or fewer than
            `wanted` positions are free.

    >>> [tokens_to_add("the prompt", count, None, 256, "tiny", 64) for count in (202, 2)]
    [54, 64]
    """
    if not count:
        raise value_error(f"{which} is empty; pass at least one token")
    left = sys.maxsize if limit is None else limit - count
    if left < min(usual, 1):
        raise value_error(
            f"{which} has {count} tokens, but {name} takes at most {limit} tokens: "
            "no room is left for a new token; pass a shorter prompt"
        )
    if wanted is not None and wanted > left:
        raise value_error(
            f"{which} has {count} tokens and max_new_tokens is {wanted}, but "
            f"{name} takes at most {limit} tokens in all: set max_new_tokens to at most {left}"
        )
    return wanted or min(usual, left)


@dataclass
class Row:
    """A prompt and its new tokens.

    Attributes:
        given: the text of the prompt.
        prompt_tokens: the tokens of the prompt.
        max_new_tokens: the maximum number of new tokens.
        stream: converts new tokens to text.
        rng: the random numbers for sampling tokens.
        ids: the new tokens.
        measured: the logit and probability of each new token, if `steps` measures them.
        measured_prompt: the logit and probability of each prompt token except the first.
        finish_reason: as in `Generated`, after the text has ended.
    """

    given: str
    prompt_tokens: Tokenized
    max_new_tokens: int
    stream: TextStream
    rng: np.random.Generator
    ids: list[int] = field(default_factory=list)
    measured: list[Measured] = field(default_factory=list)
    measured_prompt: list[Measured] = field(default_factory=list)
    finish_reason: Literal["eos", "stop", "length"] | None = None

    def __post_init__(self) -> None:
        if not self.max_new_tokens:
            self.finish_reason = "length"

    @property
    def prompt(self) -> str:
        """The text of the prompt, without an incomplete character that new tokens complete."""
        completed = self.stream.spelling.prompt
        return self.given if completed is None else completed

    @property
    def may_complete_prompt(self) -> bool:
        """Whether the next tokens may complete the last character of the prompt."""
        is_open = self.given.endswith(BROKEN) and not self.stream.spelling.spans
        return is_open and self.finish_reason is None

    @property
    def is_measured(self) -> bool:
        """Whether `measured_prompt` already covers all tokens of the prompt except the first."""
        return len(self.measured_prompt) >= len(self.prompt_tokens) - 1

    def add(self, token: int, eos_ids: frozenset[int]) -> str:
        """Add a token, and return the words that are now complete."""
        self.ids.append(token)
        ended = token in eos_ids
        piece = "" if ended else self.stream.add(token)
        if not self.stream.stopped and (ended or len(self.ids) == self.max_new_tokens):
            self.finish_reason = "eos" if ended else "length"
            piece += self.stream.finish()
        if self.stream.stopped:
            self.finish_reason = "stop"
        return piece

    def penalise(self, model: ModelBase, logits: Array) -> Array:
        """Apply the rules of generation_config.json to the logits (V,) of the next token."""
        if not model.penalties.rules:
            return logits
        network, before = model.network, self.prompt_tokens.ids.tolist()
        before = [network.first] if isinstance(network, EncoderDecoder) else before
        return model.penalties(logits, [*before, *self.ids], len(before), self.max_new_tokens)

    def new_tokens(self, tokenizer: Tokenizer | None, begin: int = 0) -> Tokenized:
        """Return the new tokens, with offsets in a text whose new part begins at `begin`."""
        end = begin + len(self.stream.text)
        spans = [(begin + a, min(begin + b, end)) for a, b in self.stream.spelling.spans]
        known = [(tokenizer and tokenizer.token(token)) or str(token) for token in self.ids]
        special = [bool(tokenizer and tokenizer.is_special(token)) for token in self.ids]
        spans += [(0, 0)] * (len(self.ids) - len(spans))
        return Tokenized(np.array(self.ids), known, spans, special)

    def whole(self, tokenizer: Tokenizer | None) -> Tokenized:
        """Return the tokens of the prompt and the new tokens, with offsets in `prompt + text`."""
        prompt, new = self.prompt_tokens, self.new_tokens(tokenizer, len(self.prompt))
        return Tokenized(
            ids=np.concatenate([prompt.ids, new.ids]),
            tokens=prompt.tokens + new.tokens,
            offsets=prompt.offsets + new.offsets,
            special=prompt.special + new.special,
            text=self.prompt + self.stream.text,
        )

    def result(self, trace: Trace | Seq2SeqTrace | None) -> Generated:
        """Return the new text, as `generate` returns it."""
        text = Generated(self.stream.text)
        text.prompt, text.ids = self.prompt, self.ids
        text.finish_reason = self.finish_reason or "length"
        if trace is not None:
            text.trace, text.logits = trace, np.array([token.logit for token in self.measured])
            text.probabilities = np.exp([token.log_probability for token in self.measured])
        return text


@dataclass
class TextCaches:
    """The key/value caches of one text, kept between calls.

    Attributes:
        network: the network that computed the caches.
        caches: the cache of each layer.
        ids: the tokens in the caches.
    """

    network: Transformer | None = None
    caches: list[KVCache] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)

    def resume(
        self, network: Transformer, empty: list[KVCache], ids: Array, limit: int
    ) -> tuple[list[KVCache], Array]:
        """Shorten the caches to the tokens that they share with the beginning of a new text.

        If the caches do not fit, `empty` caches replace them.

        Args:
            network: the network that runs.
            empty: an empty cache for each layer.
            ids: (1, n), the tokens of the new text.
            limit: caches of at most `limit` tokens do not fit a longer text, and the reverse.

        Returns:
            The caches, and the tokens that are not in the caches, (1, m) with m > 0.
        """
        new = ids[0].tolist()
        pairs = enumerate(zip(self.ids, new[:-1], strict=False))
        same = next((at for at, (a, b) in pairs if a != b), min(len(self.ids), len(new) - 1))
        fits = (
            network is self.network and same > 0 and (len(self.ids) > limit) == (len(new) > limit)
        )
        if not fits or not all([shorten(cache, len(self.ids), same) for cache in self.caches]):
            self.network, self.caches, same = network, empty, 0
        self.ids = new[:same]
        return self.caches, ids[:, same:]


@dataclass(frozen=True)
class Prompt:
    """A prompt cut into tokens, special tokens included, with the caches of an earlier text."""

    tokens: Tokenized
    past: TextCaches | None = None


def steps(
    model: ModelBase,
    rows: Sequence[Row],
    sampling: Sampling,
    *,
    top: int | None = None,
    measure_prompts: bool = False,
    edited: EditedRun | None = None,
    past: TextCaches | None = None,
    together: Together | None = None,
) -> Iterator[list[tuple[int, str]]]:
    """Generate one token for each row in each step, and yield completed text.

    A row that already has new tokens continues after these tokens.

    Args:
        model: the model.
        rows: rows made by the function `rows`. The new tokens are added to these rows.
        sampling: the method that chooses a token.
        top: the number of most likely tokens to measure in each step, in addition to the new token.
            If `top` is None, no token is measured.
        measure_prompts: whether to also measure the tokens of the prompts, before the first new
            token. Encoder-decoder models do not support `measure_prompts`.
        edited: the edits of the run.
        past: the caches of an earlier text, for one row without edits. The tokens that both texts
            share at the beginning are not computed again. Afterwards, `past` holds the caches of
            the new text.
        together: computes each new token in one forward pass with the new tokens of other calls.
            `together` cannot be combined with `edited` or `past`.

    Yields:
        Lists of pairs (index of a row, new text of the row).
    """
    network, eos_ids, edited = model.network, model.eos_ids, edited or EditedRun()
    if not measure_prompts and all(row.finish_reason for row in rows):
        return
    batch = Batch([row.prompt_tokens for row in rows], step=0)
    new = [row.ids for row in rows]
    caches, ids, lengths = first_step(network, batch, edited, new, model.cache_dtype)
    limit = sys.maxsize if edited.user_edits else _renewal(model)
    if past is not None:
        caches, ids = past.resume(network, caches, ids, limit)
        lengths = np.array([ids.shape[1]])
    seen = np.zeros(len(rows), np.int64)
    step, joined, active = 0, None, list(range(len(rows)))
    may_drop = model.continues and not edited.user_edits
    while lengths.any():
        if together is not None and joined is not None:
            logits = together.logits(joined)  # (B, V)
        else:
            even = bool((lengths == ids.shape[1]).all())
            options = edited.step(step, seen, lengths, ids.shape[1])
            x = network.step(ids, caches, None if even else lengths, **options)  # (B, n, D)
            seen, step = seen + lengths, step + 1
            if past is not None:
                past.ids += ids[0].tolist()
            if measure_prompts:
                for row, vectors in zip(rows, x, strict=True):
                    for _ in _prompt_measured(network, row, vectors, top or 0):
                        yield []
                measure_prompts = False
            last = x[:, -1] if even else x[np.arange(len(x)), lengths - 1]
            logits = network.logits(last)  # (B, V)
        ids = np.zeros((len(active), 1), np.int64)
        lengths = np.zeros(len(active), np.int64)
        pieces = []
        for at, number in enumerate(active):
            if (row := rows[number]).finish_reason is not None:
                continue
            count = len(row.prompt_tokens) + len(row.ids)
            row_logits = logits[at]
            _check_finite(row_logits, count, edited.why)
            scores = row.penalise(model, row_logits)
            if scores is not row_logits:
                _check_finite(scores, count, NONE_LEFT)
            token = sampling(scores, row.rng)
            if top is not None:
                row.measured.append(measure_token(row_logits, token, top))
            if piece := row.add(token, eos_ids):
                pieces.append((number, piece))
            ids[at], lengths[at] = token, row.finish_reason is None
        if may_drop and 0 < 2 * lengths.sum() <= len(lengths):  # half of the texts have ended
            kept = np.flatnonzero(lengths)
            for cache in caches:
                keep_rows(cache, kept)
            ids, lengths, seen = ids[kept], lengths[kept], seen[kept]
            active = [active[at] for at in kept]
        going = [rows[number] for number in np.array(active)[lengths > 0]]
        if max((len(row.prompt_tokens) + len(row.ids) for row in going), default=0) == limit + 1:
            batch, new = Batch([row.prompt_tokens for row in going]), [row.ids for row in going]
            caches, ids, lengths = first_step(network, batch, edited, new, model.cache_dtype)
            active = [number for number in active if rows[number].finish_reason is None]
            seen, joined = np.zeros(len(active), np.int64), None
            if past is not None:
                past.caches, past.ids = caches, []
            yield pieces
            continue
        if together is None or not lengths.any():
            yield pieces
            continue
        joined = together.add(network, NewTokens(ids, caches, None if lengths.all() else lengths))
        try:
            yield pieces
        except GeneratorExit:
            together.drop(joined)
            raise


def _renewal(model: ModelBase) -> int:
    """Return the number of tokens after which caches are computed again: see `LongRope.renews`."""
    layers = getattr(model.design, "layers", ())
    scaling = layers[0].rotary and layers[0].rotary.scaling if layers else None
    if isinstance(scaling, LongRope) and scaling.renews:
        return scaling.limit
    return sys.maxsize


def first_step(
    network: Transformer,
    batch: Batch,
    edited: EditedRun,
    new: Sequence[Sequence[int]],
    cache_dtype: DType | None = None,
) -> tuple[list[KVCache], Array, Array]:
    """Return a cache for each layer, and the ids (B, n) and lengths (B,) of the first step.

    The ids are those of the prompts, or the decoder's first id, followed by the `new` ids. The
    caches of decoders store numbers of the dtype `cache_dtype`, by default the dtype of the keys.
    """
    if isinstance(network, EncoderDecoder):
        visible = edited.visible(batch.layout, batch.longest)
        encoded = EncodedTexts(network.run(batch, edited)[0], batch.cu, visible)
        record = edited.recorder(batch.layout._replace(other=batch.layout))
        caches = network.remember(encoded, record and record.under("decoder."))
        begun = [np.array([network.first])] * len(batch)
    else:
        caches = [KVCache(options.get("window"), dtype=cache_dtype) for options in network.options]
        begun = [text.ids for text in batch.texts]
    whole = [np.append(ids, np.array(more, np.int64)) for ids, more in zip(begun, new, strict=True)]
    packed = PackedIds.of(whole)
    return caches, pad_rows(packed.ids, packed.cu), packed.lengths


def _prompt_measured(network: Transformer, row: Row, vectors: Array, top: int) -> Iterator[None]:
    """Add the logit and probability of each missing token to `row.measured_prompt`.

    `vectors` (n, D) holds the last layer's output for the prompt.
    """
    ids = row.prompt_tokens.ids[1:].tolist()
    for begin in range(len(row.measured_prompt), len(ids), AT_ONCE):
        part = ids[begin : begin + AT_ONCE]
        logits = network.logits(vectors[begin : begin + len(part)])  # (n, V)
        for count, (token, row_logits) in enumerate(zip(part, logits, strict=True), begin + 1):
            _check_finite(row_logits, count)
            row.measured_prompt.append(measure_token(row_logits, token, top))
        yield


def _check_finite(logits: Array, count: int, why: str = CANNOT) -> None:
    """Raise an error if the logits (V,) that follow `count` tokens are not finite."""
    if not np.isfinite(logits.max()):
        raise invalid(
            FloatingPointError, f"the model's logits after {count} tokens are not finite: {why}"
        )

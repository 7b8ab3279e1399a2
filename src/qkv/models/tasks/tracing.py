"""Run texts and keep all or some activations: `Model.trace` and `Model.trace_stream`."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack, overload

import numpy as np

from qkv._argument_errors import (
    add_name,
    invalid,
    public_call,
    public_items,
    type_error,
    value_error,
)
from qkv.arrays import Array, Arrays, is_whole_number, quote, whole_number
from qkv.edits import Ablate, Edit, Edits, Hide, edits_of
from qkv.models._model_base import ModelBase
from qkv.models.network import EncodedTexts
from qkv.models.network.batch import Batch
from qkv.models.network.transformer import Transformer, unpack_rows
from qkv.models.run.batches import Joined, batches, parts
from qkv.models.run.check_edits import check, hide_value, spliced_names
from qkv.models.run.edited_run import EditedRun
from qkv.models.run.text_reader import Texts
from qkv.models.run.truncation import Cut, counting
from qkv.models.tasks.call import pair_network
from qkv.text import Tokenized
from qkv.trace import Recorder, Seq2SeqTrace, Trace
from qkv.trace.activations import SUMMARY, activation, parse, short_name, side_of
from qkv.trace.names import Name, NameIndex, is_tuple_name, no_layer
from qkv.trace.recorder import kept_unasked, pad_rows

Names = Name | Iterable[Name]  # one name or several names


def names_to_keep(
    known: Sequence[str],
    layers: int | Iterable[int] | None = None,
    names: Names | None = None,
    top_k: Any = None,
) -> Callable[[str], bool]:
    """Return a function that decides whether a trace keeps the activation with a given name.

    Args:
        known: all names that a trace of the model may have.
        layers: the numbers of the layers to keep, where -1 is the last layer; None keeps all
            layers.
        names: the full names, short names or tuples of the activations to keep; None keeps the
            default names.
        top_k: if given, the trace keeps only `names` and summaries of attention. A summary holds
            this number of weights per query.

    Raises:
        TypeError: a layer or `top_k` is not an integer; or a name is neither a string nor a tuple.
        ValueError: a layer does not exist, or `top_k` is below 1.
        KeyError: a name does not exist.

    >>> known = ["hook_embed", "blocks.0.attn.hook_q", "blocks.1.attn.hook_q"]
    >>> keep = names_to_keep(known, -1, "q", None)
    >>> keep("blocks.0.attn.hook_q"), keep("blocks.1.attn.hook_q"), keep("hook_embed")
    (False, True, False)
    >>> [full for full in known if names_to_keep(known, names=("q", 0))(full)]
    ['blocks.0.attn.hook_q']
    """
    if top_k is not None and not is_whole_number(top_k):
        raise type_error(f"top_k is {top_k!r}; pass a whole number")
    if top_k is not None and top_k < 1:
        raise value_error(f"top_k is {top_k}; pass 1 or more")
    full_names = {full for full in known if top_k is None and activation(full).unasked}
    alone: set[str] = set()
    if names is not None:
        full_names, alone = _resolve_names(known, names)
    if top_k is not None:
        full_names |= {full for full in known if short_name(full) in SUMMARY}
    if layers is not None:
        full_names &= _in_layers(known, layers) | alone
    return full_names.__contains__


def layers_to_run(known: Sequence[str], keep: Callable[[str], bool], side: str = "") -> int | None:
    """Return how many layers must run to compute the kept activations; None for all layers.

    Args:
        known: every name that a trace of the model may hold.
        keep: a function that decides whether a name is kept.
        side: "encoder" or "decoder" to consider only the names of this network; by default, all
            names are considered.

    >>> known = ["hook_embed", "blocks.0.attn.hook_q", "blocks.1.hook_mlp_out", "ln_final.hook_x"]
    >>> [layers_to_run(known, [name].__contains__) for name in known]
    [0, 1, 2, None]
    """
    activations = [at for at in map(parse, filter(keep, known)) if side in ("", at.side)]
    if any(at.layer is None and at.is_last for at in activations):
        return None
    return max((at.layer + 1 for at in activations if at.layer is not None), default=0)


def _resolve_names(known: Sequence[str], names: Names) -> tuple[set[str], set[str]]:
    """Return two sets of full names: all wanted names, and those of them outside all layers."""
    wanted: Any = [names] if isinstance(names, str) or is_tuple_name(names) else names
    if not isinstance(wanted, Iterable):
        raise type_error(f'`names` is {quote(names)}; pass names, such as ["pattern", ("q", 0)]')
    every = NameIndex(known)
    full_names: set[str] = set()
    outside: set[str] = set()
    for name in wanted:
        if not isinstance(name, str | tuple):
            raise type_error(
                f'`names` contains {quote(name)}; pass names, such as "pattern" or ("q", 0)'
            )
        matches = every.matching(name)
        if not matches:
            raise invalid(KeyError, f"{every.why_not(name)}")
        full_names.update(matches)
        if all(parse(full).layer is None for full in matches):
            outside.update(matches)
    return full_names, outside


def _in_layers(known: Sequence[str], layers: int | Iterable[int]) -> set[str]:
    """Return the names in these layers, and the names outside all layers.

    The final norm belongs to the last layer.
    """
    counts = NameIndex(known).counts
    numbers = list(layers) if isinstance(layers, Iterable) else [layers]
    most = max(counts.values())
    for number in numbers:
        if not is_whole_number(number):
            raise type_error(f"`layers` contains {quote(number)}: layers are whole numbers")
        if not -most <= number < most:
            raise value_error(no_layer(number, most))
    wanted, names = {int(number) for number in numbers}, set()
    for full in known:
        at = parse(full)
        layer = counts[at.side] - 1 if at.is_last else at.layer
        if layer is None or {layer, layer - counts[at.side]} & wanted:
            names.add(full)
    return names


def trace(
    model: ModelBase,
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
    """Run texts and keep every activation, keyed by name.

    A text longer than `max_seq_length` is truncated, with a warning; its last special token is
    kept. In the padding after shorter texts, scores and `lse` are -inf, `top_indices` are -1, and
    other arrays are 0.

    To test whether a head or a word matters, run the texts without the head (`ablate`) or the word
    (`hide`). You can also change any activation (`edit`). All later activations are computed from
    the changed values. The trace holds the changed activations; `trace.changed` lists the edits.

    Args:
        texts: one text, several texts, or token ids. The ids of one text are integers (T,). The ids
            of several texts are integers (B, T) or a list of rows.
        layers: the numbers of the layers to keep; -1 is the last layer. By default, all layers are
            kept. The final norm (`ln_final`) is kept with the last layer. Layers above the last
            kept layer are run only for `logits`.
        names: the names to keep, as full names ("blocks.0.attn.hook_pattern"), short names
            ("pattern", "ln1.scale"), or tuples (("pattern", 3)). By default, all names except
            `attn.hook_result`.
        top_k: if given, the trace keeps only the activations in `names` and a summary of each
            layer's attention: `top_indices` and `top_weights` (B, Hq, T, top_k), and `received` and
            `lse` (B, Hq, T). Use `top_k` for long texts, for which the (T, T) weights need too much
            memory.
        logits: whether to keep `trace["logits"]` too, the logits (B, T, V) over the vocabulary.
        batch_size: the number of texts in a batch; None for batches of about a thousand tokens.
            Activations that are not kept need memory only for one batch.
        ablate: heads to ablate, as pairs (layer, head), or (layer, None) for all heads of a layer.
            The `hook_z` of an ablated head becomes 0, so the head adds nothing; its `hook_pattern`
            does not change. You can also pass a dict that maps each of these pairs to the new
            `hook_z`. The new `hook_z` is "zero", "mean" or an array (d,). "mean" stands for the
            mean over all tokens of all these texts in an unedited run. If `ablate` contains a head
            twice, the last entry for this head applies.
        hide: the tokens to mask for all queries, including the tokens' own queries. Words, and
            special tokens such as "[SEP]", are masked at every occurrence; positions are masked in
            each text that is long enough, and -1 is the last position. A masked token still sees
            other tokens; the result of a query that sees no token is 0. You can also pass a list of
            edges: (query, key) masks one key for one query in all layers, (query, key, layer) in
            one layer, and (query, key, layer, head) in one head.
        edit: a list of records, such as `{"op": "mask", "query": 4, "key": 1}`, which apply to each
            text; HTTP requests and the page use the same records (`qkv.edits.schema()` describes
            them). You can also pass a mapping from activations to functions or arrays. An
            activation is a full name, or a tuple such as ("resid_post", 3); "resid_post" and
            ("resid_post", None) stand for all layers, and ("resid_post", (1, 2)) for two layers. A
            function f(array) or f(array, at) gets a copy of the array as the trace shows it, (B, T,
            ...), with 0 in padding and -inf in masked scores, and returns an array of the same
            shape. `at` has the fields `name`, `layer`, `texts`, `positions` and `step` of
            `qkv.models.At`. A function gets all texts at once, or `batch_size` texts at a time. An
            array, (B, T, ...) or (1, T, ...), replaces the activation. Scores are edited after
            masking, and weights after the softmax. If a head is ablated, a function that edits
            `hook_z` gets the values after the ablation. Edits in layers that are not run have no
            effect, and their functions are not called.

    Raises:
        TypeError: a text is not a string; `ablate`, `hide` or `edit` holds an unsupported value; or
            a function does not return an array.
        ValueError: a text is empty, or no text is given; a layer, head, word or position does not
            exist; a text would have no visible word; an array has the wrong shape; `top_k` and an
            edit of weights are both given; or `logits` is True and the model has no head that
            predicts words.
        KeyError: a name does not exist; the message suggests similar names.

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
    try:  # without the frame of the decorator `public_call`
        edits = edits_of(edit, ablate, hide)
        return _Tracer(model, edits, layers, names, top_k, logits)(texts, batch_size)
    except Exception as error:
        add_name(error, "trace")
        raise


@public_call("trace_stream")
def trace_stream(
    model: ModelBase,
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
    """Trace any number of texts, a batch at a time, in order.

    Texts are read as the iterator advances. Only one trace is in memory, unless you keep earlier
    traces.

    Args:
        texts: any iterable of texts, or of token ids, (T,) each.
        batch_size: the number of texts in each trace; the last trace may have fewer.
        layers: as in `trace`.
        names: as in `trace`.
        top_k: as in `trace`.
        logits: as in `trace`.
        ablate: heads to ablate, as in `trace`; "mean" is not supported, because the mean needs all
            texts.
        hide: words, positions and edges to mask in the texts that contain them.
        edit: activations to change, in each batch separately. A function gets all texts of a batch,
            and `at.texts` holds the index of each of these texts, counted over all batches. An
            array has shape (1, T, ...) or (B, T, ...), where B is the number of texts in the
            batch, and T is the length of its longest text.

    Returns:
        An iterator over traces; each is the trace of a list of texts.

    Raises:
        TypeError: `texts` is a single text, or an argument has the wrong type.
        ValueError: as in `trace`; in errors, texts are numbered across all batches. An error about
            a text is raised when the text's batch is reached. If `hide` names a word or position
            that no text contains, the error is raised after the last batch.
        KeyError: a name does not exist.

    >>> import qkv
    >>> texts = (f"the cat sat {n} times" for n in range(100))
    >>> [len(trace) for trace in qkv.load("random").trace_stream(texts, batch_size=40)]
    [40, 40, 20]
    """
    edits = edits_of(edit, ablate, hide, knows_means=False)
    tracer = _Tracer(model, edits, layers, names, top_k, logits)
    check(edits, model.network, model.reader)
    tracer.absent = absent = {
        hide_value(record) for record in edits.records if record.is_hide_argument
    }
    in_batches = batches(texts, batch_size)

    def traces() -> Iterator[Trace]:
        cut = Cut(model.max_seq_length)
        for part in in_batches:
            with counting(cut):
                batch_trace = tracer(part)
            tracer.first += len(batch_trace)
            yield batch_trace
            del batch_trace
        cut.warn()
        if absent and tracer.first:
            raise value_error(
                f"`hide` has {quote(min(absent, key=str))}, which is in none of the texts: omit it"
            )

    return public_items("trace_stream", traces())


@dataclass
class _Tracer:
    """Traces texts, with checked options.

    Attributes:
        model: the model.
        edits: the user's edits.
        layers: as in `trace`.
        names: as in `trace`.
        top_k: as in `trace`.
        logits: as in `trace`.
        first: the index of the next batch's first text, counted over all batches.
        absent: as in `fit`.
    """

    model: ModelBase
    edits: Edits
    layers: int | Iterable[int] | None
    names: Names | None
    top_k: int | None
    logits: bool
    first: int = 0
    absent: set[Any] | None = None

    def __post_init__(self) -> None:
        model = self.model
        known = [*model.network.hook_names, *spliced_names(self.edits, model.network)]
        if self.logits:
            model.need("logits")
        self.keep = names_to_keep(known, self.layers, self.names, self.top_k)
        self.stop = None if self.logits else layers_to_run(known, self.keep)

    def __call__(self, texts: Any, batch_size: int | None = None) -> Trace:
        """Return the trace of texts."""
        model, first = self.model, self.first
        if batch_size is not None:
            batch_size = whole_number(batch_size, name="batch_size", least=1)
        batch = model.read(texts, first)
        batch, edited = model.check_edits(self.edits, batch, first=first, absent=self.absent)
        edited = model.with_means(edited, batch, batch_size, self.stop)
        edited.check_summaries(self.top_k)
        if edited.calls and batch_size is None:
            batch_size = len(batch)
        network, whole = model.network, Joined(batch)
        for part in parts(batch, batch_size):
            record = Recorder(self.keep)
            rows, _ = network.run(part, edited, record, top_k=self.top_k, stop=self.stop)
            if self.logits:
                array = network.logits(rows)  # (total, V)
                record.arrays["logits"] = (
                    array[None] if len(part) == 1 else pad_rows(array, part.cu)
                )
            whole.add(part, record.arrays)
        masks = edited.masks(batch.layout, batch.longest)
        about = {"single": batch.single, "changed": edited.user_edits}
        return as_trace(model, whole.arrays, batch, network, masks, **about)


def as_trace(
    model: ModelBase,
    arrays: Arrays,
    batch: Batch,
    network: Transformer,
    masks: Any = None,
    **others: Any,
) -> Trace:
    """Build a `Trace` from the arrays that a network recorded for a batch.

    Args:
        model: the model.
        arrays: the recorded activations, keyed by name.
        batch: the tokens of each text.
        network: the network that ran.
        masks: for some layers, a mask of the visible keys, as `EditedRun.masks` returns it.
        others: the arguments `single` and `changed` of `Trace`.
    """
    return Trace(
        arrays,
        tokens=[text.tokens for text in batch.texts],
        ids=[text.ids.tolist() for text in batch.texts],
        offsets=[text.offsets for text in batch.texts],
        special=[text.special for text in batch.texts],
        texts=[text.text for text in batch.texts],
        settings=_settings(network, arrays, batch.longest, masks),
        model=model.name,
        last_is_normed=model.design.last_is_normed,
        num_layers=len(network.layers),
        untrained=network.untrained,
        query_heads=[layer.attn.num_heads for layer in network.layers],
        **others,
    )


class Options(TypedDict, total=False):
    """The options of `trace`."""

    layers: int | Iterable[int] | None
    names: Names | None
    top_k: int | None
    logits: bool
    batch_size: int | None
    ablate: Ablate
    hide: Hide
    edit: Edit


@overload
def trace_pair(
    model: ModelBase, texts: Texts, *, target: None = None, **options: Unpack[Options]
) -> Trace: ...
@overload
def trace_pair(
    model: ModelBase, texts: Texts, *, target: Texts, **options: Unpack[Options]
) -> Seq2SeqTrace: ...
@public_call("trace")
def trace_pair(
    model: ModelBase,
    texts: Texts,
    *,
    target: Texts | None = None,
    logits: bool = False,
    ablate: Ablate = (),
    hide: Hide = (),
    edit: Edit = None,
    **options: Any,
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
        ablate: the heads of the encoder to ablate, as in `Model.trace`.
        hide: as in `Model.trace`, for the encoder's texts. If `target` is given,
            the masked words and positions are masked for the decoder too.
        edit: as in `Model.trace`. With a target, names begin with "encoder." or "decoder.":
            "decoder.z" stands for all layers of the decoder, and ("decoder.z", 3) for one layer.
        options: `layers`, `names` and `top_k` of `Model.trace`, which apply to both the encoder and
            the decoder; without a target, also `batch_size`. A name that begins with "encoder." or
            "decoder.", such as "decoder.hook_resid_post", is kept for that network only.

    Returns:
        A `Trace` of the encoder or, with a target, a `Seq2SeqTrace` of the encoder and the decoder.
    """
    if target is None:
        return trace(model, texts, logits=logits, ablate=ablate, hide=hide, edit=edit, **options)
    if options.pop("batch_size", None) is not None:
        raise value_error("batch_size is for texts without a target: omit batch_size")
    keep = names_to_keep(pair_network(model).pair_hook_names, **options)
    if logits:
        model.need("unembed")
    batch, written = model.read(texts), model.read(target)
    if len(batch) != len(written):
        raise value_error(
            f"there are {len(batch)} texts and {len(written)} targets; pass one target for "
            "each text"
        )
    if not isinstance(target, np.ndarray | list | tuple) or isinstance(target[0], str):
        begun = list[Tokenized]()
        for text in written.texts:
            has_end = text.special[-1] and int(text.ids[-1]) in model.eos_ids
            begun.append(after_start(model, text, len(text) - has_end))
        written = Batch(begun)
    edits = edits_of(edit, ablate, hide)
    batch, edited = model.check_edits(edits, batch, written=written.longest)
    edited.check_summaries(options.get("top_k"))
    return traced_pair(model, batch, written, edited, keep, options.get("top_k"), logits)


def traced_pair(
    model: ModelBase,
    batch: Batch,
    written: Batch,
    edited: EditedRun,
    keep: Callable[[str], bool] = kept_unasked,
    top_k: int | None = None,
    logits: bool = False,
) -> Seq2SeqTrace:
    """Run an encoder on texts and a decoder on one input per text; return the trace of both."""
    network = pair_network(model)
    ids = pad_rows(written.ids, written.cu)  # (B, L)
    real = np.arange(ids.shape[1]) < written.lengths[:, None]
    names = network.pair_hook_names
    write_to = None if logits else layers_to_run(names, keep, "decoder")
    # every layer of the decoder reads the last vectors of the encoder
    read_to = layers_to_run(names, keep, "encoder") if write_to == 0 else None
    edited = model.with_means(edited, batch, len(batch))
    layout = batch.layout
    masks, visible = edited.masks(layout, batch.longest), edited.visible(layout, batch.longest)
    read, write = Recorder(keep), Recorder(keep)
    edited.recorder(written.layout._replace(other=layout), write)
    rows, _ = network.run(batch, edited, read, top_k=top_k, stop=read_to)
    encoded, record = EncodedTexts(rows, batch.cu, visible), write.under("decoder.")
    last = network.decode(ids, real, encoded, record=record, top_k=top_k, stop=write_to)
    if logits:
        write.arrays["decoder.logits"] = unpack_rows(network.logits(last), real)
    parts: dict[str, dict[str, Array]] = {"encoder": {}, "decoder": {}, "cross": {}}
    for name, array in (read.arrays | write.arrays).items():
        at, row = parse(name), activation(name)
        is_own = "token" in row.axes and not (at.crosses and row.of_keys)
        if at.side == "decoder" and is_own:
            array[~real] = 0  # computed for padding
        parts["cross" if at.crosses else at.side][side_of(name)[1]] = array
    about = {"single": batch.single, "changed": edited.user_edits}
    across = {} if visible is None else {"attn_mask": visible}
    return Seq2SeqTrace(
        as_trace(model, parts["encoder"], batch, network, masks, **about),
        as_trace(model, parts["decoder"], written, network.decoder, **about),
        parts["cross"],
        settings={
            i: {**layer.options, **across} for i, layer in enumerate(network.cross_attention)
        },
    )


def _settings(
    network: Transformer, arrays: Arrays, longest: int, masks: Any
) -> dict[int, dict[str, Any]]:
    """Return each layer's options, with the bias of relative positions if Q and K are recorded."""
    settings = network.settings(longest, masks)
    relative = None if network.relative is None else network.relative(longest)
    for number, layer in enumerate(network.layers):
        names = [f"blocks.{number}.attn.hook_{name}" for name in "qk"]
        if relative is not None and all(name in arrays for name in names):
            heads = {name[-1]: np.swapaxes(arrays[name], 1, 2) for name in names}
            settings[number]["bias"] = relative.bias(layer.attn.parameters, heads)
    return settings


def after_start(model: ModelBase, text: Tokenized, count: int) -> Tokenized:
    """Put the decoder's start token before the first `count` tokens of a text."""
    first = pair_network(model).first
    name = None if model.tokenizer is None else model.tokenizer.token(first)
    return Tokenized(
        ids=np.concatenate([[first], text.ids[:count]]),
        tokens=[name or str(first), *text.tokens[:count]],
        offsets=[(0, 0), *text.offsets[:count]],
        special=[True, *text.special[:count]],
        text=text.text,
    )

"""`POST /v1/trace`: the attention of each token of a text, in each head of each layer."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import orjson
from fastapi import APIRouter, Request
from pydantic import BaseModel, BeforeValidator, Field
from starlette.responses import Response

from qkv._argument_errors import message, public_call
from qkv.arrays import Array
from qkv.edits import edits_of, operations
from qkv.models import Model
from qkv.models.network.batch import Batch
from qkv.models.run.edited_run import EditedRun
from qkv.models.run.truncation import Cut, counting
from qkv.serve._bodies import Body, describe_body, read_json
from qkv.serve._memory import hold, in_thread
from qkv.serve._refusals import Refused, not_finite
from qkv.serve.settings import Settings
from qkv.text import Tokenized
from qkv.trace.activations import activation, parse

router = APIRouter()

JSON = "application/json"
# No media type is registered for safetensors; many servers send application/octet-stream.
SAFETENSORS = ("application/vnd.safetensors", "application/octet-stream")
DIGITS = 12  # The approximate size in bytes of one number in JSON.
WORK = 8  # A computation's memory is limited to `WORK` times the maximum size of an answer.

_Numbers = Annotated[list[int], Field(min_length=1, fail_fast=True)]
_NumberOrNumbers = Annotated[
    _Numbers,
    BeforeValidator(lambda n: [n] if type(n) is int else n, json_schema_input_type=int | _Numbers),
]
_LONG = re.compile(rb'"value"\s*:\s*(-?\d{20,})\s*[,}]')  # a string holds \" in place of "
_FEWER = "ask for fewer layers or heads, or send top_k"
COPIES = 6  # The number of copies of a layer's attention weights that an edit keeps in memory.


class TraceBody(Body):
    """The keys of a request for a trace."""

    call: ClassVar[str] = "trace"
    ways: ClassVar[dict[str, str]] = {
        "input": "a text, or ids of its tokens",
        "layers": "integers, with -1 for the last",
        "heads": "integers, with -1 for the last",
        "edits": "a list of objects with op",
        "include": 'a list of "text" and "resid"',
        "at": "a list of positions of tokens",
        "inside": "integers, with -1 for the last",
    }

    input: str | _Numbers = Field(
        description="A text, or the ids of its tokens.", examples=["The cat sat on the mat."]
    )
    layers: _NumberOrNumbers | None = Field(
        None, description="The layers to return; -1 is the last layer. By default, all layers."
    )
    heads: _NumberOrNumbers | None = Field(
        None,
        description="The heads to return per layer; -1 is the last head. By default, all heads.",
    )
    top_k: int | None = Field(
        None,
        ge=1,
        description="Return only this many of each query's largest weights, with their keys.",
    )
    edits: list[Any] = Field(
        [],
        description="Changes to the forward pass, as objects whose key op is one of "
        f"{', '.join(operations())}. The page at / uses the same objects.",
        examples=[[{"op": "hide", "token": 2}]],
    )
    include: Annotated[list[Literal["text", "resid"]], Field(fail_fast=True)] = Field(
        [],
        description='Extra parts of the answer: "text" adds the keys ids, offsets and special; '
        '"resid" adds the vectors between the layers.',
    )
    at: Annotated[list[int], Field(fail_fast=True)] | None = Field(
        None, description="Positions for which to return the logits, if the model computes logits."
    )
    inside: _NumberOrNumbers | None = Field(
        None, description="Layers for which to return q, k, v, attn_scores and z."
    )


class TraceAnswer(BaseModel):
    """The answer to a request for a trace; if the request has `top_k`, there is no `pattern`."""

    tokens: list[str] = Field(
        description="The tokens as the vocabulary spells them; ids if the input has ids."
    )
    layers: list[int] = Field(description="The layers, in the order of the arrays.")
    heads: list[int] = Field(description="The heads, in the order of the arrays.")
    pattern: list[list[list[list[float]]]] | None = Field(
        None, description="Weights by layer, head, query and key."
    )
    top_indices: list[list[list[list[int]]]] | None = Field(
        None, description="Positions of keys by layer, head and query, largest weight first."
    )
    top_weights: list[list[list[list[float]]]] | None = Field(
        None, description="The weights of the keys in `top_indices`."
    )
    ids: list[int] | None = Field(None, description="The ids of the tokens.")
    offsets: list[list[int]] | None = Field(
        None, description="The span of characters of each token."
    )
    special: list[bool] | None = Field(
        None, description="True for each token that the tokenizer added."
    )
    resid: list[list[list[float]]] | None = Field(
        None, description="Vectors by layer and token: the embeddings, then each layer's output."
    )
    logits: list[list[float]] | None = Field(
        None, description="Logits, an array with the axes position and vocabulary entry."
    )
    inside: dict[str, Any] | None = Field(
        None,
        description="Activations by layer and name. In a safetensors file, the name of each array "
        "is `inside.LAYER.NAME`.",
    )


@dataclass(frozen=True)
class Wanted:
    """What an answer must contain. Layers and heads are numbered from 0.

    Attributes:
        layers: the layers whose weights are in the answer.
        heads: the heads whose weights are in the answer, the same in each layer.
        top_k: the number of weights per query; None for all weights.
        resid: whether the vectors between the layers are in the answer.
        at: the positions whose logits are in the answer; None for no logits.
        inside: the layers whose activations (`q`, `k` and so on) are in the answer.
    """

    layers: list[int]
    heads: list[int]
    top_k: int | None
    resid: bool
    at: list[int] | None
    inside: list[int]


EXAMPLE = {"input": "I sat on the bank of the river.", "layers": [-1], "heads": [0]}
_BINARY = {"schema": {"type": "string", "format": "binary"}}


@router.post(
    "/v1/trace",
    summary="What each token attends to",
    responses={200: {"model": TraceAnswer, "content": dict.fromkeys(SAFETENSORS, _BINARY)}},
    response_class=Response,
    openapi_extra=describe_body(TraceBody, EXAMPLE),
)
async def trace(request: Request) -> Response:
    """Compute the attention weights of a text; a long text is truncated as in `trace`.

    With `Accept: application/vnd.safetensors`, or `application/octet-stream`, the answer is a
    safetensors file with the named arrays; its metadata has the other fields as JSON.
    """
    state = request.app.state
    if long := _LONG.search(await request.body()):  # orjson would round this number
        problem = f"have the value {long[1][:28].decode()}...; pass a number that fits in 64 bits"
        raise TraceBody.refusal("edits", problem)
    body = TraceBody.read(await read_json(request))
    kind = kind_of(request.headers.get("accept", ""))
    try:
        with public_call("trace"):
            state.model.need("view")
    except ValueError as error:
        raise Refused(400, str(error), param="model", code="model_reads_no_text") from error
    changes = await in_thread(read_changes, state.model, body, state.settings)
    text = changes.text
    wanted = wanted_of(state.model, body, changes)
    limit = state.settings.answer
    # the arrays, the parts of the answer and the whole answer are in memory at the same time
    hold(request, 2 * check_size(state.model, wanted, changes, kind, limit))
    arrays = await state.worker.call(
        lambda: arrays_of(state.model, changes, wanted), connection=request.client
    )
    about = {"tokens": text.tokens, "layers": wanted.layers, "heads": wanted.heads}
    if "text" in body.include:
        about |= {"ids": text.ids.tolist(), "offsets": text.offsets, "special": text.special}
    await in_thread(check_finite, state.name, arrays, body.edits)
    answer = await in_thread(write_answer, about, arrays, kind)
    if len(answer) > limit:
        raise _too_large(f"has {len(answer)} bytes", limit)
    return Response(answer, media_type=kind)


def kind_of(accept: str) -> str:
    """Return the first known type in an Accept header, or JSON.

    >>> kind_of("application/octet-stream"), kind_of("text/html, */*;q=0.8"), kind_of("")
    ('application/octet-stream', 'application/json', 'application/json')
    """
    for offer in accept.lower().split(","):
        name, _, weight = (part.strip() for part in offer.partition(";"))
        if name in (JSON, *SAFETENSORS) and weight not in ("q=0", "q=0.0"):
            return name
    return JSON


def _select(name: str, numbers: Sequence[int] | None, count: int) -> list[int]:
    """Return the requested layers or heads, counted from 0, without duplicates."""
    for number in numbers or ():
        if not -count <= number < count:
            problem = f"has {number}: this model has {count}, numbered 0 to {count - 1}"
            raise TraceBody.refusal(name, problem)
    return list(dict.fromkeys(number % count for number in numbers or range(count)))


def tokens_of(model: Model, body: TraceBody) -> Tokenized:
    """Return the tokens of the input, truncated as in `trace`.

    Raises:
        Refused: 400, if this model cannot read the input.
    """
    try:
        if isinstance(body.input, str) and model.tokenizer is None:
            raise ValueError(f"input is text, but {model.name} has no tokenizer; pass ids")
        with counting(Cut(model.max_seq_length)):  # no warning
            return model.read(body.input).texts[0]
    except (TypeError, ValueError) as error:
        raise Refused(400, f"trace: {message(error)}", param="input") from error


def read_changes(model: Model, body: TraceBody, settings: Settings) -> "Changes":
    """Return the tokens of the input, and the edits of the forward pass.

    Raises:
        Refused: 400, if this model cannot read the text, an edit does not fit the model or text,
            the request has too many tokens or edits, or the edits copy activations from too many
            texts.
    """
    if (count := len(body.edits)) > settings.edits:
        problem = f"has {count:,} edits: send at most {settings.edits:,} in one request"
        raise body.refusal("edits", problem)
    records = [edit for edit in body.edits if isinstance(edit, dict)]
    sources = {str(edit["from"]) for edit in records if "from" in edit}
    if (count := len(sources)) > settings.sources:
        problem = f"take activations from {count} texts, and each text needs a forward pass"
        raise body.refusal("edits", f"{problem}: use at most {settings.sources} texts")
    text = tokens_of(model, body)
    if len(text) > settings.tokens:
        problem = f"has {len(text):,} tokens: send at most {settings.tokens:,}"
        raise body.refusal("input", problem)
    try:
        return changes_of(model, text, body.edits)
    except (TypeError, ValueError) as error:
        raise Refused(400, f"trace: {message(error)}", param="edits") from error


def wanted_of(model: Model, body: TraceBody, changes: "Changes") -> Wanted:
    """Return the requested parts of the answer.

    Raises:
        Refused: 400, if the model, the text or the edits make a requested part impossible.
    """
    counts = [layer.attn.num_heads for layer in model.layers]
    layers = _select("layers", body.layers, len(counts))
    heads = _select("heads", body.heads, min(counts[layer] for layer in layers))
    inside = _select("inside", body.inside, len(counts)) if body.inside else []
    wanted = Wanted(layers, heads, body.top_k, "resid" in body.include, body.at, inside)
    tokens = len(changes.text)
    for position in body.at or ():
        if not 0 <= position < tokens:
            problem = f"has {position} and there are {tokens} tokens; pass 0 to {tokens - 1}"
            raise body.refusal("at", problem)
    if body.at is not None and not model.can("logits"):
        raise body.refusal("at", f"selects logits, but {model.name} has none: leave it out")
    if body.top_k is not None:
        if wanted.resid or inside or body.at is not None:
            problem = (
                "is only for weights: leave out top_k, or leave out 'include', 'at' and 'inside'"
            )
            raise body.refusal("top_k", problem)
        if changes.weights:
            problem = "cannot be combined with an edit of scores or weights, such as row or scale"
            raise body.refusal("top_k", f"{problem}: leave one out")
    return wanted


def check_size(model: Model, wanted: Wanted, changes: "Changes", kind: str, limit: int) -> int:
    """Estimate the bytes of an answer; refuse an answer or computation that is too large.

    Raises:
        Refused: 413.
    """
    layers, heads, top_k = wanted.layers, wanted.heads, wanted.top_k
    tokens = len(changes.text)
    numbers = tokens * (tokens if top_k is None else 2 * top_k)
    vectors = tokens * model.dim
    more = (model.num_layers + 1) * vectors * wanted.resid
    if wanted.at:
        more += len(wanted.at) * len(model.embedding.table)
    for layer in wanted.inside:
        attn = model.layers[layer].attn
        more += attn.num_heads * tokens * (tokens + 4 * (attn.d_query + attn.d_value))
        more += 6 * vectors
    size = (numbers * len(layers) * len(heads) + more) * (DIGITS if kind == JSON else 4)
    if size > limit:
        raise _too_large(f"of {tokens} tokens would have about {size} bytes", limit)
    every = sum(model.layers[layer].attn.num_heads for layer in layers)
    if numbers * every * 4 > WORK * limit:
        memory = f"{numbers * every * 4} bytes for all heads of these layers"
        raise _too_large(f"of {tokens} tokens needs {memory}", WORK * limit)
    edited = changes.size(model)
    if edited > WORK * limit:
        problem = f"of {tokens} tokens needs about {edited} bytes for its edits"
        way = "send a shorter text, or fewer mask, scale and row edits"
        raise _too_large(problem, WORK * limit, way)
    return size


def _too_large(problem: str, limit: int, way: str = _FEWER) -> Refused:
    message = f"trace: a trace {problem}, and this server allows {limit}: {way}"
    return Refused(413, message, code="answer_too_large")


def arrays_of(model: Model, changes: "Changes", wanted: Wanted) -> dict[str, Array]:
    """Compute all arrays of an answer. Weights are (layers, heads, T, T) or (..., T, top_k)."""
    layers, heads = wanted.layers, wanted.heads
    if wanted.top_k is None:
        names = [f"blocks.{layer}.attn.hook_pattern" for layer in layers]
        options: dict[str, Any] = {"names": [*names, *_more(model, wanted)]}
    else:
        options = {"layers": layers, "top_k": wanted.top_k}
    if ends := wanted.at and any(parse(name).is_last for name in changes.run.changed):
        options["logits"] = True
    trace = model.trace([changes.text.ids.tolist()], edit=changes.records, **options)
    weights = ["pattern"] if wanted.top_k is None else ["top_indices", "top_weights"]
    arrays = {n: np.stack([trace[n, layer][0, heads] for layer in layers]) for n in weights}
    stream = _stream(model)
    if wanted.resid:
        arrays["resid"] = np.stack([trace[name][0] for name in stream])
    if wanted.at is not None:
        rows = trace["logits" if ends else stream[-1]][0, wanted.at]
        arrays["logits"] = rows if ends else model.unembed(rows)
    for layer in wanted.inside:
        for name, where in _inside(model, layer).items():
            arrays[f"inside.{layer}.{name}"] = trace[where][0]
    return arrays


def check_finite(name: str, arrays: dict[str, Array], edits: Sequence[Any]) -> None:
    """Refuse an answer with NaN or infinite values, which JSON cannot represent.

    Only masked scores may be -inf.

    Raises:
        Refused: the answer has such values. The status is 400 if the request has edits, because
            edits can cause such values; otherwise, it is 500.
    """
    for key, array in arrays.items():
        if array.dtype.kind != "f" or np.isfinite(array).all():
            continue
        if activation(key).fill == -np.inf and (np.isfinite(array) | np.isneginf(array)).all():
            continue
        if edits:
            problem = f"lead to values of {key} that are not finite; pass smaller numbers"
            raise TraceBody.refusal("edits", problem)
        raise not_finite(TraceBody.call, f"{key} of {name} has values that are")


def _more(model: Model, wanted: Wanted) -> list[str]:
    """Return the full names of all requested activations except weights."""
    stream = _stream(model)
    inside = [name for layer in wanted.inside for name in _inside(model, layer).values()]
    return [*(stream if wanted.resid else stream[-1:] if wanted.at is not None else []), *inside]


def _inside(model: Model, layer: int) -> dict[str, str]:
    """Map the short names in an answer to the full names of a layer's activations."""
    known = set(model.network.hook_names)
    heads = ("q", "k", "v", "rot_q", "rot_k", "attn_scores", "z")
    stream = ("attn_out", "resid_mid", "mlp_out", "resid_post")
    names = {name: f"blocks.{layer}.attn.hook_{name}" for name in heads}
    names |= {name: f"blocks.{layer}.hook_{name}" for name in stream}
    norms = ("ln1", "ln2")
    names |= {f"{norm}.normalized": f"blocks.{layer}.{norm}.hook_normalized" for norm in norms}
    return {name: full_name for name, full_name in names.items() if full_name in known}


def _stream(model: Model) -> list[str]:
    """Return the names of the vectors between the layers: embeddings, then each block's output."""
    known = set(model.network.hook_names)

    def first(*names: str) -> str:
        return next(name for name in names if name in known)

    blocks = [f"blocks.{layer}.hook_" for layer in range(model.num_layers)]
    return [
        first("hook_full_embed", "hook_embed"),
        *(first(f"{block}normalized_resid_post", f"{block}resid_post") for block in blocks),
    ]


def write_answer(about: dict[str, Any], arrays: dict[str, Array], kind: str) -> bytes:
    """Write an answer as JSON or safetensors."""
    if kind != JSON:
        from safetensors.numpy import save

        whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        return save(whole, {name: json.dumps(value) for name, value in about.items()})
    answer = dict(about)
    for name, array in arrays.items():
        key, *rest = name.split(".", 2)
        if rest:
            layer, part = rest
            answer.setdefault(key, {}).setdefault(layer, {})[part] = _nest(array)
        else:
            answer[name] = _nest(array)
    return orjson.dumps(answer)


def _nest(array: Array) -> Any:
    """Write each head's matrix separately, so that other threads can run between two matrices."""
    if array.ndim > 2:
        return [_nest(part) for part in array]
    numpy = orjson.OPT_SERIALIZE_NUMPY
    return orjson.Fragment(orjson.dumps(np.ascontiguousarray(array), option=numpy))


@dataclass(frozen=True)
class Changes:
    """A text, and the edits of its forward pass.

    Attributes:
        text: the tokens, after "swap" edits have replaced tokens.
        records: the edits in the form that `trace` accepts.
        run: the edits in the form that the model's forward pass accepts.
    """

    text: Tokenized
    records: Sequence[Any]
    run: EditedRun

    @property
    def weights(self) -> list[str]:
        """The full names of the score arrays and weight arrays that the edits change."""
        return [name for name in self.run.changed if activation(name).is_weights]

    def size(self, model: Model) -> int:
        """Estimate how many bytes the edits need for their masks and for changed weights."""
        tokens, masked = len(self.text), self.run.masked
        heads = [layer.attn.num_heads for layer in model.layers]
        per_head = {mask.layer for mask in masked if mask.head is not None}
        layers = {mask.layer for mask in masked if mask.layer is not None}
        has_edges = any(mask.query is not None or mask.key is None for mask in masked)
        # the mask of all layers that have no mask of their own
        masks = tokens * (tokens if has_edges else 1) * bool(masked)
        masks += sum(tokens**2 * (heads[n] if n in per_head else 1) for n in layers)
        changed = [heads[parse(name).layer or 0] * tokens**2 for name in self.weights]
        return masks + max(changed, default=0) * COPIES * model.network.dtype.itemsize


def changes_of(model: Model, text: Tokenized, records: Sequence[Any]) -> Changes:
    """Convert edits in JSON to `Changes`, if they are valid for a model and a text.

    Raises:
        TypeError: a record is not an object.
        ValueError: a record has an invalid op, position, layer, head, number or word; the message
            names the record and valid values.

    >>> import qkv
    >>> model = qkv.load("random")
    >>> text = model.tokenize("the cat")
    >>> changes_of(model, text, [{"op": "ablate", "layer": 0, "head": 1}]).run.ablated
    {0: {1: 0}}
    """
    edits = edits_of(records, argument="edits")
    [changed], run = model.check_edits(edits, Batch([text]))
    return Changes(changed, [record.fields for record in edits.records if record.op != "swap"], run)

"""`POST /v1/trace`: what each token of a text looks at, in each head of each layer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import orjson
from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from qkv.arrays import Array
from qkv.edits import operations
from qkv.models import Model
from qkv.models.run.inputs import ids_given
from qkv.models.run.truncation import Truncator
from qkv.models.vision import VisionModel
from qkv.serve.bodies import Body, described
from qkv.serve.edits import Changes, changes_of
from qkv.serve.errors import Refused, not_finite
from qkv.serve.keys import read_body
from qkv.serve.settings import Settings
from qkv.text import Tokenized
from qkv.trace.activations import activation

router = APIRouter()

JSON = "application/json"
# safetensors has no registered type; hubs and servers send it as the second of these
SAFETENSORS = ("application/vnd.safetensors", "application/octet-stream")
DIGITS = 12  # bytes of a number as JSON has it, about
WORK = 8  # times the largest answer: what is computed for one

_Numbers = Annotated[list[int], Field(min_length=1, fail_fast=True)]


class TraceBody(Body):
    """What a request for a trace says."""

    call: ClassVar[str] = "trace"
    ways: ClassVar[dict[str, str]] = {
        "input": "a text, or ids of its tokens",
        "layers": "whole numbers, -1 for the last",
        "heads": "whole numbers, -1 for the last",
        "edits": "a list of objects with op",
        "include": 'a list of "text" and "resid"',
        "at": "a list of places of tokens",
        "inside": "whole numbers, -1 for the last",
    }

    input: str | _Numbers = Field(
        description="A text, or the ids of its tokens.", examples=["The cat sat on the mat."]
    )
    layers: int | _Numbers | None = Field(
        None, description="Those that are wanted, -1 for the last; all by default."
    )
    heads: int | _Numbers | None = Field(None, description="The same of the heads of each layer.")
    top_k: int | None = Field(
        None, ge=1, description="The largest weights of each query alone, with their keys."
    )
    edits: list[Any] = Field(
        [],
        description="What the run does otherwise: objects with an op, one of "
        f"{', '.join(operations())}, as the page at / has them.",
        examples=[[{"op": "hide", "token": 2}]],
    )
    include: list[Literal["text", "resid"]] = Field(
        [],
        description='What else is wanted: "text" for ids, offsets and special, "resid" for the '
        "vectors between the layers.",
    )
    at: list[int] | None = Field(
        None, description="Places of tokens whose logits are wanted, where the model gives some."
    )
    inside: int | _Numbers | None = Field(
        None, description="Layers whose q, k, v, attn_scores and z are wanted, by a trace's names."
    )
    model: str = Field("", description="Any: one model is served.")


class TraceAnswer(BaseModel):
    """What a request for a trace is answered with: `pattern`, or with `top_k` the other two."""

    tokens: list[str] = Field(description="As the vocabulary spells them; ids where ids came.")
    layers: list[int] = Field(description="The layers, in the order of the next.")
    heads: list[int] = Field(description="The heads of each.")
    pattern: list[list[list[list[float]]]] | None = Field(
        None, description="Weights by layer, head, query and key."
    )
    top_indices: list[list[list[list[int]]]] | None = Field(
        None, description="Places of keys by layer, head and query, the largest weight first."
    )
    top_weights: list[list[list[list[float]]]] | None = Field(None, description="Their weights.")
    ids: list[int] | None = Field(None, description="Of the tokens.")
    offsets: list[list[int]] | None = Field(
        None, description="The characters of the text that a token stands for."
    )
    special: list[bool] | None = Field(
        None, description="Whether the tokenizer put the token in by itself."
    )
    resid: list[list[list[float]]] | None = Field(
        None, description="Vectors by layer and token: the embeddings, then what each layer gives."
    )
    logits: list[list[float]] | None = Field(
        None, description="By place and entry of the vocabulary."
    )
    inside: dict[str, Any] | None = Field(
        None, description="By layer and name; in a safetensors file inside.LAYER.NAME."
    )


@dataclass(frozen=True)
class Wanted:
    """What an answer holds, counted from 0.

    Attributes:
        layers: those whose weights are wanted.
        heads: of each.
        top_k: how many weights of each query alone; None for all.
        resid: whether vectors are wanted.
        at: places whose logits are wanted; None for no logits.
        inside: layers of which more is wanted.
    """

    layers: list[int]
    heads: list[int]
    top_k: int | None = None
    resid: bool = False
    at: list[int] | None = None
    inside: tuple[int, ...] = ()


EXAMPLE = {"input": "I sat on the bank of the river.", "layers": [-1], "heads": [0]}
_BINARY = {"schema": {"type": "string", "format": "binary"}}


@router.post(
    "/v1/trace",
    summary="What each token looks at",
    responses={200: {"model": TraceAnswer, "content": dict.fromkeys(SAFETENSORS, _BINARY)}},
    response_class=Response,
    openapi_extra=described(TraceBody, EXAMPLE),
)
async def trace(request: Request) -> Response:
    """A text to the weights of its attention; a long one is cut as in `trace`.

    With `Accept: application/vnd.safetensors`, or `application/octet-stream`, it is a safetensors
    file: the arrays by their names, and what else the answer has as JSON in its metadata.
    """
    state = request.app.state
    body = TraceBody.read(await read_body(request))
    kind = kind_of(request.headers.get("accept", ""))
    if isinstance(state.model, VisionModel):
        raise Refused(
            400,
            f"trace: {state.model.name} looks at images and knows no words: call "
            "qkv.load(...).trace(image) in Python",
            param="model",
            code="model_reads_no_text",
        )
    layers, heads = taken(state.model, body)
    changes = await asyncio.to_thread(changed, state.model, body, state.settings)
    text = changes.text
    wanted = wanted_of(state.model, body, layers, heads, changes)
    limit = state.settings.answer
    check_size(state.model, wanted, changes, kind, limit)
    found = await state.worker.call(
        lambda: arrays_of(state.model, changes, wanted), connection=request.client
    )
    about = {"tokens": text.tokens, "layers": layers, "heads": heads}
    if "text" in body.include:
        about |= {"ids": text.ids.tolist(), "offsets": text.offsets, "special": text.special}
    await asyncio.to_thread(check_finite, state.name, found, body.edits)
    answer = await asyncio.to_thread(written, about, found, kind)
    if len(answer) > limit:
        raise _too_large(f"has {len(answer)} bytes", limit)
    return Response(answer, media_type=kind)


def kind_of(accept: str) -> str:
    """The type that an Accept header asks for; JSON unless the first one known is another.

    >>> kind_of("application/octet-stream"), kind_of("text/html, */*;q=0.8"), kind_of("")
    ('application/octet-stream', 'application/json', 'application/json')
    """
    for one in accept.lower().split(","):
        name, _, weight = (part.strip() for part in one.partition(";"))
        if name in (JSON, *SAFETENSORS) and weight not in ("q=0", "q=0.0"):
            return name
    return JSON


def taken(model: Model, body: TraceBody) -> tuple[list[int], list[int]]:
    """The layers and heads that are asked for, counted from 0, each once.

    Raises:
        Refused: 400, if there is no such one.
    """
    counts = [layer.attn.num_heads for layer in model.layers]
    layers = _chosen("layers", body.layers, len(counts))
    return layers, _chosen("heads", body.heads, min(counts[layer] for layer in layers))


def _chosen(name: str, asked: int | Sequence[int] | None, count: int) -> list[int]:
    if asked is None:
        return list(range(count))
    numbers = [asked] if isinstance(asked, int) else asked
    for number in numbers:
        if not -count <= number < count:
            said = f"has {number}: this model has {count}, 0 to {count - 1}"
            raise TraceBody.refused(name, said)
    return list(dict.fromkeys(number % count for number in numbers))


def tokens_of(model: Model, body: TraceBody) -> Tokenized:
    """The tokens of what is given, cut as `trace` cuts them.

    Raises:
        Refused: 400, if this model reads no such text.
    """
    if isinstance(body.input, str) and model.tokenizer is None:
        said = f"is text and {model.name} has no tokenizer: give ids"
        raise TraceBody.refused("input", said)
    try:
        if isinstance(body.input, str):
            assert model.tokenizer is not None
            truncator = Truncator(model.tokenizer, model.max_seq_length, model.mask)
            [found] = truncator([model.prepared(body.input)])
            if all(found.special):
                raise ValueError("the text is empty: there is no word in it")
            return found
        rows = len(model.embedding.table)
        given = ids_given(body.input, rows=rows, limit=model.max_seq_length, call="trace")
    except (TypeError, ValueError) as error:
        said = str(error).removeprefix("trace: ")
        raise Refused(400, f"trace: {said}", param="input") from error
    assert given is not None
    return given[1][0]


def changed(model: Model, body: TraceBody, settings: Settings) -> Changes:
    """The tokens of what is given, and how `trace` runs them as the edits say.

    Raises:
        Refused: 400, if this model reads no such text, an edit does not fit it, or there are more
            tokens, edits or other texts than one request may have.
    """
    if len(body.edits) > settings.edits:
        said = f"has {len(body.edits):,} edits: send at most {settings.edits:,} in one request"
        raise body.refused("edits", said)
    sources = {str(one["from"]) for one in body.edits if isinstance(one, dict) and "from" in one}
    if len(sources) > settings.sources:
        said = f"name {len(sources)} other texts, and each is run: name at most {settings.sources}"
        raise body.refused("edits", said)
    text = tokens_of(model, body)
    if len(text) > settings.tokens:
        said = f"has {len(text):,} tokens: send at most {settings.tokens:,}"
        raise body.refused("input", said)
    try:
        return changes_of(model, text, body.edits)
    except (TypeError, ValueError) as error:
        raise Refused(400, str(error), param="edits") from error


def wanted_of(
    model: Model, body: TraceBody, layers: list[int], heads: list[int], changes: Changes
) -> Wanted:
    """What an answer holds.

    Raises:
        Refused: 400, if this model does not have it, or a text that is changed so.
    """
    tokens = len(changes.text)
    inside = () if body.inside is None else _chosen("inside", body.inside, model.num_layers)
    found = Wanted(layers, heads, body.top_k, "resid" in body.include, body.at, tuple(inside))
    for place in body.at or ():
        if not 0 <= place < tokens:
            said = f"has {place} and there are {tokens} tokens: give 0 to {tokens - 1}"
            raise body.refused("at", said)
    if body.at is not None and (not (model.network.predicts and model.continues)):
        raise body.refused("at", f"is for logits, and {model.name} gives none: leave it out")
    if body.top_k is not None:
        if found.resid or found.inside or found.at is not None:
            said = "is for weights alone: leave it out, or include, at and inside"
            raise body.refused("top_k", said)
        if changes.weights:
            said = "is of what attention computes itself, and an edit sets a row or a scale"
            raise body.refused("top_k", f"{said}: leave one out")
    return found


def check_size(model: Model, wanted: Wanted, changes: Changes, kind: str, limit: int) -> None:
    """Refuse an answer of too many bytes, or one that needs far more memory while it is computed.

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
        said = f"of {tokens} tokens needs {numbers * every * 4} bytes for all heads of these layers"
        raise _too_large(said, WORK * limit)
    edited = changes.size(model)
    if edited > WORK * limit:
        said = f"of {tokens} tokens needs about {edited} bytes for its edits"
        way = "send a shorter text, or fewer mask, scale and row edits"
        raise _too_large(said, WORK * limit, way)


def _too_large(
    said: str, limit: int, way: str = "ask for fewer layers or heads, or give top_k"
) -> Refused:
    return Refused(
        413,
        f"trace: a trace {said}, and this server allows {limit}: {way}",
        code="answer_too_large",
    )


def arrays_of(model: Model, changes: Changes, wanted: Wanted) -> dict[str, Array]:
    """The arrays of an answer: weights (layers, heads, T, T or top_k), and what else is wanted."""
    layers, heads = wanted.layers, wanted.heads
    if wanted.top_k is None:
        names = [f"blocks.{layer}.attn.hook_pattern" for layer in layers]
        kept: dict[str, Any] = {"names": [*names, *_more(model, wanted)]}
    else:
        kept = {"layers": layers, "top_k": wanted.top_k}
    trace = model.trace([changes.text.ids.tolist()], edit=changes.records, **kept)
    weights = ["pattern"] if wanted.top_k is None else ["top_indices", "top_weights"]
    found = {name: np.stack([trace[name, layer][0, heads] for layer in layers]) for name in weights}
    stream = _stream(model)
    if wanted.resid:
        found["resid"] = np.stack([trace[name][0] for name in stream])
    if wanted.at is not None:
        found["logits"] = model.unembed(trace[stream[-1]][0, wanted.at])
    for layer in wanted.inside:
        for name, where in _inside(model, layer).items():
            found[f"inside.{layer}.{name}"] = trace[where][0]
    return found


def check_finite(name: str, arrays: dict[str, Array], edits: Sequence[Any]) -> None:
    """Refuse to answer with values that are not finite, which JSON has no words for.

    Masked scores alone may be -inf.

    Raises:
        Refused: 400 where edits are to blame, else 500.
    """
    for which, array in arrays.items():
        if array.dtype.kind != "f" or np.isfinite(array).all():
            continue
        if activation(which).fill == -np.inf and (np.isfinite(array) | np.isneginf(array)).all():
            continue
        if edits:
            said = f"lead to values of {which} that are not finite: give smaller numbers"
            raise TraceBody.refused("edits", said)
        raise not_finite(TraceBody.call, f"{which} of {name} has values that are")


def _more(model: Model, wanted: Wanted) -> list[str]:
    """The names of what is wanted beside weights, as a trace has them in full."""
    stream = _stream(model)
    inside = [name for layer in wanted.inside for name in _inside(model, layer).values()]
    return [*(stream if wanted.resid else stream[-1:] if wanted.at is not None else []), *inside]


def _inside(model: Model, layer: int) -> dict[str, str]:
    """What an answer has of the inside of a layer, where the layer has it, and its name there."""
    known = set(model.network.hook_names)
    heads = ("q", "k", "v", "rot_q", "rot_k", "attn_scores", "z")
    stream = ("attn_out", "resid_mid", "mlp_out", "resid_post")
    found = {name: f"blocks.{layer}.attn.hook_{name}" for name in heads}
    found |= {name: f"blocks.{layer}.hook_{name}" for name in stream}
    norms = ("ln1", "ln2")
    found |= {f"{norm}.normalized": f"blocks.{layer}.{norm}.hook_normalized" for norm in norms}
    return {name: where for name, where in found.items() if where in known}


def _stream(model: Model) -> list[str]:
    """The vectors between the layers: the embeddings, then what each block hands to the next."""
    known = set(model.network.hook_names)

    def first(*names: str) -> str:
        return next(name for name in names if name in known)

    blocks = [f"blocks.{layer}.hook_" for layer in range(model.num_layers)]
    return [
        first("hook_full_embed", "hook_embed"),
        *(first(f"{block}normalized_resid_post", f"{block}resid_post") for block in blocks),
    ]


def written(about: dict[str, Any], arrays: dict[str, Array], kind: str) -> bytes:
    """An answer's bytes."""
    if kind != JSON:
        from safetensors.numpy import save

        whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        return save(whole, {name: json.dumps(value) for name, value in about.items()})
    answer = dict(about)
    for name, array in arrays.items():
        what, *rest = name.split(".", 2)
        if rest:
            layer, part = rest
            answer.setdefault(what, {}).setdefault(layer, {})[part] = _nested(array)
        else:
            answer[name] = _nested(array)
    return orjson.dumps(answer)


def _nested(array: Array) -> Any:
    """The matrix of each head written apart: others have their turn between two of them."""
    if array.ndim > 2:
        return [_nested(part) for part in array]
    numpy = orjson.OPT_SERIALIZE_NUMPY
    return orjson.Fragment(orjson.dumps(np.ascontiguousarray(array), option=numpy))

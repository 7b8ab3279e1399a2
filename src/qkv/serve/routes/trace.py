"""`POST /v1/trace`: what each token of a text looks at, in each head of each layer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import numpy as np
import orjson
from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from qkv.arrays import Array
from qkv.models import Model
from qkv.models.tasks.inputs import ids_given
from qkv.models.tasks.truncation import Truncator
from qkv.models.vision import VisionModel
from qkv.serve.bodies import Body, described, read_json
from qkv.serve.errors import Refused
from qkv.text import Tokenized

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
        "edits": "a list",
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
    edits: list[Any] = Field([], description="Not here yet: empty.")
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


_BINARY = {"schema": {"type": "string", "format": "binary"}}


@router.post(
    "/v1/trace",
    summary="What each token looks at",
    responses={200: {"model": TraceAnswer, "content": dict.fromkeys(SAFETENSORS, _BINARY)}},
    response_class=Response,
    openapi_extra=described(TraceBody),
)
async def trace(request: Request) -> Response:
    """A text to the weights of its attention; a long one is cut as in `trace`.

    With `Accept: application/vnd.safetensors`, or `application/octet-stream`, it is a safetensors
    file: the arrays by their names, and what else the answer has as JSON in its metadata.
    """
    state = request.app.state
    body = TraceBody.read(await read_json(request))
    if body.edits:
        raise body.refused("edits", "is not here yet: leave it out")
    kind = wanted(request.headers.get("accept", ""))
    if isinstance(state.model, VisionModel):
        raise Refused(
            400,
            f"trace: {state.model.name} looks at images and knows no words: call "
            "qkv.load(...).trace(image) in Python",
            param="model",
            code="model_reads_no_text",
        )
    layers, heads = taken(state.model, body)
    text = await asyncio.to_thread(tokens_of, state.model, body)
    limit = state.settings.answer
    check_size(state.model, body, len(text), layers, heads, kind, limit)
    found = await state.worker.call(
        lambda: arrays_of(state.model, text, layers, heads, body.top_k), connection=request.client
    )
    about = {"tokens": text.tokens, "layers": layers, "heads": heads}
    answer = await asyncio.to_thread(written, about, found, kind)
    if len(answer) > limit:
        raise _too_large(f"has {len(answer)} bytes", limit)
    return Response(answer, media_type=kind)


def wanted(accept: str) -> str:
    """The type that an Accept header asks for; JSON unless the first one known is another.

    >>> wanted("application/octet-stream"), wanted("text/html, */*;q=0.8"), wanted("")
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
            [found] = Truncator(model.tokenizer, model.max_seq_length)([model.prepared(body.input)])
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


def check_size(
    model: Model,
    body: TraceBody,
    tokens: int,
    layers: Sequence[int],
    heads: Sequence[int],
    kind: str,
    limit: int,
) -> None:
    """Refuse what would be answered with too many bytes, or need far more to be computed.

    Raises:
        Refused: 413.
    """
    numbers = tokens * (tokens if body.top_k is None else 2 * body.top_k)
    size = numbers * len(layers) * len(heads) * (DIGITS if kind == JSON else 4)
    if size > limit:
        raise _too_large(f"of {tokens} tokens would have about {size} bytes", limit)
    every = sum(model.layers[layer].attn.num_heads for layer in layers)
    if numbers * every * 4 > WORK * limit:
        said = f"of {tokens} tokens needs {numbers * every * 4} bytes for all heads of these layers"
        raise _too_large(said, WORK * limit)


def _too_large(said: str, limit: int) -> Refused:
    return Refused(
        413,
        f"trace: a trace {said}, and this server allows {limit}: "
        "ask for fewer layers or heads, or give top_k",
        code="answer_too_large",
    )


def arrays_of(
    model: Model, text: Tokenized, layers: Sequence[int], heads: Sequence[int], top_k: int | None
) -> dict[str, Array]:
    """The arrays of an answer, (layers, heads, T, T or top_k)."""
    names = ["pattern"] if top_k is None else ["top_indices", "top_weights"]
    kept = {"names": names} if top_k is None else {"top_k": top_k}
    found = model.trace([text.ids.tolist()], layers=layers, **kept)
    return {
        name: np.stack([found[name, layer][0, list(heads)] for layer in layers]) for name in names
    }


def written(about: dict[str, Any], arrays: dict[str, Array], kind: str) -> bytes:
    """An answer's bytes."""
    if kind == JSON:
        return orjson.dumps(about | {name: _nested(array) for name, array in arrays.items()})
    from safetensors.numpy import save

    return save(arrays, {name: json.dumps(value) for name, value in about.items()})


def _nested(array: Array) -> list[list[orjson.Fragment]]:
    """The matrix of each head written apart: others have their turn between two of them."""
    numpy = orjson.OPT_SERIALIZE_NUMPY
    return [
        [orjson.Fragment(orjson.dumps(np.ascontiguousarray(head), option=numpy)) for head in layer]
        for layer in array
    ]

"""`POST /v1/embeddings`: a vector for each text, asked for and answered as by OpenAI's."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import orjson
from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from qkv.arrays import Array
from qkv.serve.bodies import described, shown
from qkv.serve.errors import Refused, not_finite
from qkv.serve.keys import read_body

if TYPE_CHECKING:
    from qkv.models import Model

router = APIRouter()

FORMATS = ("float", "base64")
# What a text is for, by the names that clients and models have for it.
TYPES = {
    "query": ("query", "search_query"),
    "document": ("document", "passage", "search_document"),
}
EXAMPLE = {"input": ["I sat on the bank of the river.", "The bank charged a fee."]}


class EmbeddingsBody(BaseModel):
    """What a request for vectors says; the server reads it by hand, which is faster."""

    input: str | list[str] | list[int] | list[list[int]] = Field(
        description="One text or several; or the ids of one text's tokens, or of several's.",
        examples=["The cat sat on the mat."],
    )
    model: str | None = Field(None, description="Any: one model is served.")
    encoding_format: Literal["float", "base64"] | None = Field(
        "float", description="Numbers, or base64 of float32, the lowest byte first."
    )
    dimensions: int | None = Field(
        None, ge=1, description="Keep so many numbers of each vector, scaled to length 1."
    )
    prompt_name: str | None = Field(
        None, description="Which of the model's prompts goes before each text."
    )
    input_type: str | None = Field(
        None,
        description="What the texts are for: query or document, with the model's prompt for it, if "
        "it has one.",
    )
    truncate: bool | Literal["END", "NONE"] | None = Field(
        True, description='Whether long texts are cut at their end ("END") or refused ("NONE").'
    )


class Embedding(BaseModel):
    """One vector of an answer."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingsUsage(BaseModel):
    """How many tokens were read."""

    prompt_tokens: int
    total_tokens: int


class Embeddings(BaseModel):
    """What a request for vectors is answered with."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingsUsage


@router.post(
    "/v1/embeddings",
    summary="A vector for each text",
    responses={200: {"model": Embeddings}},
    response_class=Response,
    openapi_extra=described(EmbeddingsBody, EXAMPLE),
)
async def embeddings(request: Request) -> Response:
    """Texts, or ids of this model's tokens, to vectors; long ones are cut as in `encode`."""
    state = request.app.state
    asked = read_asked(await read_body(request), state.model, state.settings.inputs)
    found = await state.worker.embed(
        asked.texts,
        connection=request.client,
        dimensions=asked.dimensions,
        prompt_name=asked.prompt_name,
        task=asked.task,
        whole=asked.whole,
    )
    if not np.isfinite(found.vectors).all():
        which = int(np.isfinite(found.vectors).all(1).argmin())
        raise not_finite("embeddings", f"the vector of input {which} is")
    vectors = found.vectors.astype(np.result_type(found.vectors, np.float32), copy=False)
    answer = written(vectors, sum(found.tokens), name=state.name, as_base64=asked.as_base64)
    return Response(answer, media_type="application/json")


@dataclass(frozen=True)
class Asked:
    """What a body asks for, once it was checked.

    Attributes:
        texts: the texts, or the ids of each.
        dimensions: how many numbers of each vector are kept; None for all.
        as_base64: whether vectors are written so.
        prompt_name: which prompt goes before each text; None for the default one.
        task: what the texts are for, as `encode` takes it.
        whole: whether texts that are too long are refused, in place of being cut.
    """

    texts: Sequence[str] | Sequence[list[int]]
    dimensions: int | None
    as_base64: bool
    prompt_name: str | None = None
    task: str | None = None
    whole: bool = False


def read_asked(body: dict[str, Any], model: Model, most: int) -> Asked:
    """What a request asks a model for, which may have so many texts at most.

    Raises:
        Refused: 400, with what does not fit.

    >>> import qkv
    >>> model = qkv.load("random")
    >>> read_asked({"input": "The cat sat."}, model, 8).texts
    ['The cat sat.']
    >>> read_asked({"input": "The cat sat.", "dimensions": 9}, model, 8)
    Traceback (most recent call last):
    qkv.serve.errors.Refused: dimensions is 9: give a whole number from 1 to 8
    """
    texts = _texts(body.get("input"), most, len(model.embedding.table))
    encoding = body.get("encoding_format")
    if encoding is not None and encoding not in FORMATS:
        raise _refused("encoding_format", f"is {shown(encoding)}: choose {' or '.join(FORMATS)}")
    dimensions = body.get("dimensions")
    if dimensions is not None:
        width = model.get_embedding_dimension()
        if type(dimensions) is not int or not 1 <= dimensions <= width:
            said = f"is {shown(dimensions)}: give a whole number from 1 to {width}"
            raise _refused("dimensions", said)
    name = body.get("model")
    if name is not None and type(name) is not str:
        raise _refused("model", f"is {shown(name)}: give a name, any will do, or leave it out")
    truncate = body.get("truncate")
    if truncate not in ("END", "NONE", None) and type(truncate) is not bool:
        raise _refused("truncate", f'is {shown(truncate)}: give true, false, "END" or "NONE"')
    prompt_name, task = prompt_of(body, model)
    whole = truncate in ("NONE", False)
    return Asked(texts, dimensions, encoding == "base64", prompt_name, task, whole)


def prompt_of(body: dict[str, Any], model: Model) -> tuple[str | None, str | None]:
    """The prompt that a request asks for by its name, and the task.

    An `input_type` stands for a prompt of that name, or for the one that the model has for it under
    another name; where the model has none it is as if it were left out.

    Raises:
        Refused: 400, with the names that are known.

    >>> import qkv
    >>> prompt_of({"input_type": "search_query"}, qkv.load("random"))
    ('query', 'query')
    """
    prompts, task = model.prompts, None
    name, kind = body.get("prompt_name"), body.get("input_type")
    if name is not None and (type(name) is not str or name not in prompts):
        raise _refused("prompt_name", f"is {shown(name)}: {model.name} has {', '.join(prompts)}")
    if kind is not None:
        known = [*dict.fromkeys([*chain.from_iterable(TYPES.values()), *prompts])]
        if type(kind) is not str or kind not in known:
            raise _refused("input_type", f"is {shown(kind)}: {model.name} has {', '.join(known)}")
        task = next((task for task, names in TYPES.items() if kind in names), None)
        own = (kind, *TYPES.get(task or "", ()))
        name = name or next((one for one in own if prompts.get(one)), task or kind)
    return name, task


def _texts(given: Any, most: int, rows: int) -> Any:
    """The texts of an input, or the ids of each."""
    if type(given) is str:
        given = [given]
    if type(given) is not list or not given:
        said = "is missing" if given is None else f"is {shown(given)}"
        raise _refused("input", f"{said}: give a text, a list of texts, or ids of tokens")
    kinds = set(map(type, given))
    if kinds == {int}:  # of one text
        given, kinds = [given], {list}
    if len(given) > most:
        raise _refused("input", f"has {len(given)} texts: send at most {most} in one request")
    if kinds == {str}:
        if "" in given:
            number = given.index("")
            raise _refused("input", f"is empty at text {number}: leave empty texts out")
        return given
    if kinds != {list}:
        first = type(given[0])
        kind = first if first in (str, int, list) else None
        number = next((n for n, one in enumerate(given) if type(one) is not kind), 0)
        raise _refused(
            f"input[{number}]",
            f"is {shown(given[number])}: give texts alone, or ids of tokens alone",
        )
    for number, ids in enumerate(given):
        _check_ids(f"input[{number}]", ids, rows)
    return given


def _check_ids(name: str, ids: list[Any], rows: int) -> None:
    """Refuse what are not ids of a model whose table of tokens has so many rows."""
    if not ids:
        raise _refused(name, "has no ids: leave empty texts out")
    if set(map(type, ids)) != {int}:
        wrong = next(one for one in ids if type(one) is not int)
        raise _refused(name, f"has {shown(wrong)} among its ids: give whole numbers")
    low, high = min(ids), max(ids)
    if low < 0 or high >= rows:
        wrong = low if low < 0 else high
        raise _refused(name, f"has the id {wrong}: this model's ids run from 0 to {rows - 1}")


def _refused(param: str, message: str) -> Refused:
    """A body in which something does not fit."""
    return Refused(400, f"{param} {message}", param=param.partition("[")[0])


def written(vectors: Array, tokens: int, *, name: str, as_base64: bool) -> bytes:
    """An answer's JSON.

    >>> written(np.array([[0.5, 2.0]]), 3, name="m", as_base64=False)[:70]
    b'{"object":"list","data":[{"object":"embedding","index":0,"embedding":['
    """
    found: list[Any]
    if as_base64:
        found = [b64encode(row).decode("ascii") for row in vectors.astype("<f4")]
    else:
        found = list(np.ascontiguousarray(vectors))
    answer = {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": vector}
            for index, vector in enumerate(found)
        ],
        "model": name,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)

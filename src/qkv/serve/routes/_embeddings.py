"""`POST /v1/embeddings`: compute a vector for each text; the JSON keys have OpenAI's names."""

from base64 import b64encode
from itertools import chain
from typing import Any, ClassVar, Literal

import numpy as np
import orjson
from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from qkv.arrays import Array
from qkv.models import Model
from qkv.serve._batches import too_many
from qkv.serve._bodies import INPUTS, Body, Inputs, PromptUsage, describe_body, quote, read_json
from qkv.serve._memory import hold
from qkv.serve._refusals import not_finite
from qkv.serve.settings import Settings

router = APIRouter()

# Maps each purpose of a text (query or document) to the names that clients and models use.
TYPES = {"query": ("query", "search_query"), "document": ("document", "passage", "search_document")}
EXAMPLE = {"input": ["I sat on the bank of the river.", "The bank charged a fee."]}


class EmbeddingsBody(Body):
    """The keys of a request for vectors."""

    call: ClassVar[str] = "embeddings"
    ways: ClassVar[dict[str, str]] = {"input": INPUTS, "truncate": 'true, false, "END" or "NONE"'}

    input: Inputs
    encoding_format: Literal["float", "base64"] | None = Field(
        "float", description="Numbers, or float32 values in base64, lowest byte first."
    )
    dimensions: int | None = Field(
        None,
        ge=1,
        description="Keep this many numbers of each vector, from its start, scaled to length 1.",
    )
    prompt_name: str | None = Field(
        None, description="The name of one of the model's prompts, which is put before each text."
    )
    input_type: str | None = Field(
        None,
        description="The purpose of the texts, query or document. If the model has a prompt for "
        "this purpose, the prompt goes before each text.",
    )
    truncate: bool | Literal["END", "NONE"] | None = Field(
        True,
        description='Cut long texts at the end (true or "END") or refuse them (false or "NONE").',
    )

    def prompt_of(self, model: Model) -> tuple[str | None, str | None]:
        """Return the arguments `prompt_name` and `task` of `encode` for this request.

        `input_type` selects the prompt of the same name. If the model has no prompt of this name, a
        prompt for the same purpose is used: for "search_query", the prompt "query". If the model
        has neither prompt, no prompt is used.

        Raises:
            Refused: 400, with the names of the model's prompts.

        >>> import qkv
        >>> body = EmbeddingsBody(input="the cat", input_type="search_query")
        >>> body.prompt_of(qkv.load("random"))
        ('query', 'query')
        """
        prompts, name, kind, task = model.prompts, self.prompt_name, self.input_type, None
        if name is not None and name not in prompts:
            known = ", ".join(prompts)
            raise self.refusal("prompt_name", f"is {quote(name)}: {model.name} has {known}")
        if kind is not None:
            kinds = dict.fromkeys([*chain.from_iterable(TYPES.values()), *prompts])
            if kind not in kinds:
                known = ", ".join(kinds)
                raise self.refusal("input_type", f"is {quote(kind)}: {model.name} has {known}")
            task = next((task for task, names in TYPES.items() if kind in names), None)
            others = (kind, *TYPES.get(task or "", ()))
            name = name or next((other for other in others if prompts.get(other)), task or kind)
        return name, task


class Embedding(BaseModel):
    """One vector of an answer."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Embeddings(BaseModel):
    """The answer to a request for vectors."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: PromptUsage


@router.post(
    "/v1/embeddings",
    summary="A vector for each text",
    responses={200: {"model": Embeddings}},
    response_class=Response,
    openapi_extra=describe_body(EmbeddingsBody, EXAMPLE),
)
async def embeddings(request: Request) -> Response:
    """Compute a vector for each text. A text is a string or a list of token ids.

    Long texts are truncated as in `encode`, unless `truncate` is false or "NONE".
    """
    state, json = request.app.state, await read_json(request)
    check_count(json.get("input"), state.settings)
    body = EmbeddingsBody.read(json)
    prompt_name, task = body.prompt_of(state.model)
    as_base64 = body.encoding_format == "base64"
    vectors, tokens = await vectors_of(
        request,
        body,
        body.input,
        bytes_of_number=6 if as_base64 else 12,
        prompt_name=prompt_name,
        task=task,
        whole=body.truncate in ("NONE", False),
    )
    answer = write_answer(vectors, tokens, name=state.name, as_base64=as_base64)
    return Response(answer, media_type="application/json")


def check_count(texts: Any, settings: Settings) -> None:
    """Refuse too many texts, before `Body.read` copies them.

    Raises:
        Refused: 400.
    """
    most = settings.inputs
    if isinstance(texts, list) and len(texts) > most and not isinstance(texts[0], int):
        raise too_many(len(texts), most)


async def vectors_of(
    request: Request, body: Any, inputs: Any, *, bytes_of_number: int = 12, **options: Any
) -> tuple[Array, int]:
    """Return the vectors (n, D) of inputs in the form of `Inputs`, and their number of tokens.

    Args:
        request: the request, which holds memory for its answer.
        body: the request's body.
        inputs: the texts, or the token ids of each text.
        bytes_of_number: the approximate number of bytes of a number in the answer.
        **options: further arguments of `Worker.embed`.

    Raises:
        Refused: as `Worker.embed`; 503, if all answers would hold too much memory; 500, if a vector
            is not finite.
    """
    state = request.app.state
    texts = [inputs] if isinstance(inputs, str) or isinstance(inputs[0], int) else inputs
    width = state.model.get_embedding_dimension()
    hold(request, len(texts) * min(body.dimensions or width, width) * bytes_of_number)
    embedded = await state.worker.embed(
        texts, connection=request.client, dimensions=body.dimensions, **options
    )
    vectors = embedded.vectors
    if not (is_finite := np.isfinite(vectors).all(1)).all():
        raise not_finite(body.call, f"the vector of input {is_finite.argmin()} is")
    return vectors.astype(np.result_type(vectors, np.float32), copy=False), sum(embedded.tokens)


def write_answer(vectors: Array, tokens: int, *, name: str, as_base64: bool) -> bytes:
    """Write an answer as JSON.

    >>> write_answer(np.array([[0.5, 2.0]]), 3, name="m", as_base64=False)[:70]
    b'{"object":"list","data":[{"object":"embedding","index":0,"embedding":['
    """
    embeddings: list[Any] = list(np.ascontiguousarray(vectors))
    if as_base64:
        embeddings = [b64encode(row).decode("ascii") for row in vectors.astype("<f4")]
    answer = {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": vector}
            for index, vector in enumerate(embeddings)
        ],
        "model": name,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)

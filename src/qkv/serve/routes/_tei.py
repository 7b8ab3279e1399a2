"""The routes of text-embeddings-inference (TEI): vectors, ranking, tokens, and the model."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from itertools import islice
from typing import Annotated, Any, ClassVar

import numpy as np
import orjson
from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from qkv._argument_errors import message
from qkv.arrays import Array
from qkv.models import Model
from qkv.models.network.pooling import activate
from qkv.models.run.truncation import MAX_CHARS
from qkv.models.sentence.rank import best
from qkv.serve._batches import too_many
from qkv.serve._bodies import INPUTS, Body, Inputs, describe_body, quote, read_json
from qkv.serve._memory import hold, in_thread
from qkv.serve._refusals import Refused
from qkv.serve.routes._embeddings import check_count, vectors_of
from qkv.serve.routes._rerank import Ranking, rank_documents, score

router = APIRouter()

_FEWER = "send several requests"
_BLOCK = 4096  # The number of tokens that are written as JSON at once.


class _Prompted(Body):
    """A body that can name a prompt of the model."""

    prompt_name: str | None = Field(
        None, description="The name of one of the model's prompts, which is put before each text."
    )

    call: ClassVar[str] = "embed"

    def check_prompt(self, model: Model) -> None:
        """Refuse a prompt name that the model does not have."""
        if self.prompt_name is not None and self.prompt_name not in model.prompts:
            known = ", ".join(model.prompts)
            problem = f"is {quote(self.prompt_name)}: {model.name} has {known}"
            raise self.refusal("prompt_name", problem)


class EmbedBody(_Prompted):
    """The keys of a request for vectors, with TEI's names."""

    call: ClassVar[str] = "embed"
    ways: ClassVar[Mapping[str, str]] = {"inputs": INPUTS}

    inputs: Inputs
    normalize: bool = Field(True, description="If true, scale each vector to length 1.")
    truncate: bool = Field(True, description="Cut long texts at their end; if false, refuse them.")
    dimensions: int | None = Field(
        None, ge=1, description="Keep this many numbers of each vector, from its start."
    )


class TextsBody(Body):
    """The keys of a request to rank texts, with TEI's names."""

    call: ClassVar[str] = "/rerank"
    ways: ClassVar[Mapping[str, str]] = {"query": "a text", "texts": "a list of texts"}

    query: str = Field(description="The question or search text.", min_length=1)
    texts: Annotated[list[str], Field(min_length=1, fail_fast=True)] = Field(
        description="The texts to rank. If the request has `documents` instead, its keys and "
        "answer are those of `/v1/rerank`."
    )
    raw_scores: bool = Field(
        False, description="If true, return logits as scores; if false, apply a sigmoid to them."
    )
    return_text: bool = Field(False, description="If true, the answer includes the texts.")
    truncate: bool = Field(True, description="Cut long texts; if false, refuse them.")


class TokenizeBody(_Prompted):
    """The keys of a request for tokens, with TEI's names."""

    call: ClassVar[str] = "tokenize"
    ways: ClassVar[Mapping[str, str]] = {"inputs": "a text, or a list of texts"}

    inputs: str | Annotated[list[str], Field(min_length=1, fail_fast=True)] = Field(
        description="One text or several texts.", examples=["The cat sat on the mat."]
    )
    add_special_tokens: bool = Field(True, description="If true, add special tokens.")


class RankedText(BaseModel):
    """The index of a text, its score for the query, and the text if the request asks for it."""

    index: int
    score: float
    text: str | None = None


class Token(BaseModel):
    """A token; `start` and `stop` are its position in the text, null for a special token."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class Info(BaseModel):
    """The information that TEI gives about a server."""

    model_id: str
    model_sha: None = None
    model_dtype: str
    model_type: dict[str, Any]
    max_concurrent_requests: int
    max_input_length: int | None
    max_batch_tokens: int
    max_batch_requests: None = None
    max_client_batch_size: int
    auto_truncate: bool = True
    tokenization_workers: int = 1
    version: str
    sha: None = None
    docker_label: None = None


_EMBED_EXAMPLE = {"inputs": ["I sat on the bank of the river.", "The bank charged a fee."]}
_RERANK_EXAMPLE = {
    "query": "Where does a river end?",
    "texts": ["The river flows into the sea.", "The bank charged a fee."],
}


@router.post(
    "/embed",
    summary="A vector for each text, in the format of text-embeddings-inference",
    responses={200: {"model": list[list[float]]}},
    response_class=Response,
    openapi_extra=describe_body(EmbedBody, _EMBED_EXAMPLE),
)
async def embed(request: Request) -> Response:
    """Compute a vector for each text, as the function `encode` does; scale it to length 1."""
    return await _vectors(request, await read_json(request))


async def _vectors(request: Request, json: dict[str, Any]) -> Response:
    state = request.app.state
    check_count(json.get("inputs"), state.settings)
    body = EmbedBody.read(json)
    body.check_prompt(state.model)
    vectors, _ = await vectors_of(
        request,
        body,
        body.inputs,
        prompt_name=body.prompt_name,
        normalize=body.normalize,
        whole=not body.truncate,
    )
    rows = [*np.ascontiguousarray(vectors)]
    return Response(
        orjson.dumps(rows, option=orjson.OPT_SERIALIZE_NUMPY), media_type="application/json"
    )


@router.post(
    "/rerank",
    summary="The best of `texts` (text-embeddings-inference) or of `documents` (as `/v1/rerank`)",
    response_model=list[RankedText] | Ranking,
    response_model_exclude_none=True,
    openapi_extra=describe_body(TextsBody, _RERANK_EXAMPLE),
)
async def rerank(request: Request) -> Any:
    """Rank texts or documents with a cross-encoder; answer in the form of the request."""
    return await _ranking(request, await read_json(request))


async def _ranking(request: Request, json: dict[str, Any]) -> Any:
    if json.get("documents") is not None:
        return await rank_documents(request, json)
    body = TextsBody.read(json)

    def activation(logits: Array) -> Array:
        return logits if body.raw_scores else activate(logits, "sigmoid")

    scores, pairs = await score(request, body, "texts", body.texts, activation)
    long = [number for number, pair in enumerate(pairs) if not pair.whole]
    if long and not body.truncate:
        problem = "is longer, with the query, than the model reads: shorten it"
        raise body.refusal(f"texts[{long[0]}]", problem)
    return [
        {"index": ranked["corpus_id"], "score": ranked["score"]}
        | ({"text": ranked["text"]} if body.return_text else {})
        for ranked in best(scores, body.texts, None, True)
    ]


@router.post(
    "/tokenize",
    summary="The tokens of each text, in the format of text-embeddings-inference",
    response_model=list[list[Token]],
    openapi_extra=describe_body(TokenizeBody, {"inputs": "I sat on the bank of the river."}),
)
async def tokenize(request: Request) -> Response:
    """Cut each text into tokens. Long texts are not truncated."""
    state = request.app.state
    body = TokenizeBody.read(await read_json(request))
    body.check_prompt(state.model)
    texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    if len(texts) > state.settings.inputs:
        raise too_many(len(texts), state.settings.inputs)
    if (size := sum(map(len, texts))) > MAX_CHARS:
        problem = f"has {size:,} characters: send at most {MAX_CHARS:,} in one request"
        raise body.refusal("inputs", problem)
    before = state.model.prompts[body.prompt_name] if body.prompt_name else ""
    parts = _tokens(state.model, [before + text for text in texts], body, state.settings.tokens)
    rows: list[bytes] = []
    size = 0
    while True:
        async with state.tokenizing:  # a long text needs up to 100 MB until its JSON is written
            part = await in_thread(next, parts, b"")
        if not part:
            break
        rows.append(part)
        size += len(part)
        if size > state.settings.answer:
            problem = f"tokenize: the answer would have more than {state.settings.answer} bytes"
            raise Refused(413, f"{problem}: {_FEWER}", code="answer_too_large")
        hold(request, 2 * size)  # the parts and the whole answer are in memory at the same time
    return Response(b"[" + b",".join(rows) + b"]", media_type="application/json")


def _tokens(model: Model, texts: list[str], body: TokenizeBody, most: int) -> Iterator[bytes]:
    """Yield the tokens of each text as JSON.

    Raises:
        Refused: 400, if a text cannot be tokenized, or if there are more than `most` tokens.
    """
    try:
        tokenizer = model.reader.need_tokenizer()
        cut = tokenizer.tokenize if body.add_special_tokens else tokenizer.tokenize_prompt
        for text in texts:
            tokens = cut(text)
            if (most := most - len(tokens)) < 0:
                raise body.refusal("inputs", f"has too many tokens: {_FEWER}")
            columns = tokens.ids.tolist(), tokens.tokens, tokens.offsets, tokens.special
            entries = (
                {
                    "id": index,
                    "text": token if special else text[start:stop],
                    "special": special,
                    "start": None if special else start,
                    "stop": None if special else stop,
                }
                for index, token, (start, stop), special in zip(*columns, strict=True)
            )
            # a dict for each token of a long text would need too much memory
            blocks: list[bytes] = []
            while block := list(islice(entries, _BLOCK)):
                blocks.append(orjson.dumps(block)[1:-1])
            yield b"[" + b",".join(blocks) + b"]"
    except (TypeError, ValueError) as error:
        raise Refused(400, f"tokenize: {message(error)}", param="inputs") from error


@router.get("/info", summary="The model and the limits, in the format of text-embeddings-inference")
async def info(request: Request) -> Info:
    """Describe the model and the server."""
    state = request.app.state
    model, settings = state.model, state.settings
    kind: dict[str, Any] = {"embedding": {"pooling": "+".join(model.sentence.modes)}}
    if model.can("rank"):
        kind = {"reranker": {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}}
    return Info(
        model_id=state.name,
        model_dtype=str(model.network.dtype),
        model_type=kind,
        max_concurrent_requests=settings.waiting,
        max_input_length=model.max_seq_length,
        max_batch_tokens=settings.batch_tokens,
        max_client_batch_size=settings.inputs,
        version=import_module("qkv").__version__,
    )


@router.post(
    "/",
    summary="`/rerank` if the model ranks, otherwise `/embed`",
    response_model=None,
    openapi_extra=describe_body(EmbedBody, _EMBED_EXAMPLE),
)
async def ask_model(request: Request) -> Any:
    """Rank texts if the model can rank; otherwise, compute vectors."""
    json = await read_json(request)
    if request.app.state.model.can("rank"):
        return await _ranking(request, json)
    return await _vectors(request, json)

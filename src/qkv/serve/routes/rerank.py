"""`POST /v1/rerank`: which documents answer a query best."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Any, NoReturn

import numpy as np
from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from qkv.models.sentence.encoder import by_length
from qkv.models.sentence.ranker import Pair, Ranker, best
from qkv.serve.bodies import described
from qkv.serve.errors import Refused, not_finite
from qkv.serve.keys import read_body

router = APIRouter()


class RerankBody(BaseModel):
    """What a request to rank documents says."""

    query: str = Field(description="What is looked for.", min_length=1)
    documents: list[str] = Field(description="What may answer it.", min_length=1)
    top_n: int | None = Field(None, ge=1, description="How many of the best are wanted.")
    return_documents: bool | None = Field(False, description="Whether their texts are too.")
    model: str | None = Field(None, description="Any: one model is served.")


class Document(BaseModel):
    """A document that was ranked."""

    text: str


class RankedDocument(BaseModel):
    """What a document's place is, and how well it answers."""

    index: int
    relevance_score: float
    document: Document | None = None


class RerankUsage(BaseModel):
    """How many tokens were read."""

    prompt_tokens: int
    total_tokens: int


class Ranking(BaseModel):
    """What a request to rank documents is answered with, the best first."""

    object: str
    model: str
    results: list[RankedDocument]
    usage: RerankUsage


EXAMPLE = {
    "query": "Where does a river end?",
    "documents": ["The river flows into the sea.", "The bank charged a fee."],
}


@router.post(
    "/v1/rerank",
    summary="Which documents answer a query best",
    response_model=Ranking,
    response_model_exclude_none=True,
    openapi_extra=described(RerankBody, EXAMPLE),
)
async def rerank(request: Request) -> dict[str, Any]:
    """As `model.rank` does, of a cross-encoder; any other model is refused."""
    state = request.app.state
    body = await read_body(request)
    check_body(body, state.settings.inputs)
    query, documents = body["query"], body["documents"]
    try:
        ranker = state.model.ranker()
    except ValueError as error:
        raise Refused(
            400,
            f"{state.name} does not rank documents: compare vectors of /v1/embeddings",
            param="model",
            code="model_does_not_rank",
        ) from error
    pairs: list[Pair] = []
    parts = pairs_of(ranker, query, documents, state.settings.tokens)
    while part := await asyncio.to_thread(next, parts, None):
        pairs += part
    scores = np.empty(len(pairs))
    for numbers in by_length(pairs, state.settings.batch_tokens):  # others have turns between them
        scores[numbers] = await state.worker.call(
            partial(ranker.scores, [pairs[one] for one in numbers]), connection=request.client
        )
    if not np.isfinite(scores).all():
        which = int(np.isfinite(scores).argmin())
        raise not_finite("rerank", f"the score of document {which} is")
    results = [
        {
            "index": one["corpus_id"],
            "relevance_score": one["score"],
            "document": {"text": one["text"]} if body.get("return_documents") else None,
        }
        for one in best(scores, documents, body.get("top_n"), True)
    ]
    tokens = sum(map(len, pairs))
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "model": state.name, "results": results, "usage": usage}


def pairs_of(ranker: Ranker, query: str, documents: list[str], most: int) -> Iterator[list[Pair]]:
    """A query with each document, some at a time; so many tokens together at most.

    Raises:
        Refused: they have more, or a text cannot be cut into tokens.
    """
    try:
        [alone] = ranker.pairs(query, [""])
        tokens = len(alone) * len(documents)  # before anything is laid beside each of them
        for part in ranker.parts_of_pairs(query, documents if tokens <= most else []):
            tokens += sum(len(pair) - len(alone) for pair in part)
            if tokens > most:
                break
            yield part
    except ValueError as error:
        raise Refused(400, str(error).removeprefix("rank: "), param="query") from error
    if tokens > most:
        raise Refused(
            400,
            f"documents and query have more than {most:,} tokens: send them in several requests",
            param="documents",
        )


def check_body(body: dict[str, Any], most: int) -> None:
    """Refuse a body in which something does not fit; so many documents at most.

    >>> check_body({"query": "river", "documents": ["bank", 7]}, 8)
    Traceback (most recent call last):
    qkv.serve.errors.Refused: documents[1] is not a string
    """
    query, documents, top_n = body.get("query"), body.get("documents"), body.get("top_n")
    if type(query) is not str or not query:
        _refuse("query", "is missing, empty or not a string: give a text")
    if type(documents) is not list or not documents:
        _refuse("documents", "is missing, empty or not a list: give a list of texts")
    if len(documents) > most:
        _refuse("documents", f"has {len(documents)} texts: send at most {most} in one request")
    for number, document in enumerate(documents):
        if type(document) is not str:
            _refuse(f"documents[{number}]", "is not a string")
    if top_n is not None and (type(top_n) is not int or top_n < 1):
        _refuse("top_n", "is not a whole number from 1")
    if type(body.get("return_documents", False)) not in (bool, type(None)):
        _refuse("return_documents", "is not true or false")


def _refuse(param: str, message: str) -> NoReturn:
    """Refuse a body in which something does not fit."""
    raise Refused(400, f"{param} {message}", param=param.partition("[")[0])

"""`POST /v1/rerank` and `/v2/rerank`: rank documents by their relevance to a query."""

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any, ClassVar

import numpy as np
from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from qkv._argument_errors import message
from qkv.arrays import Array
from qkv.models.sentence.encode import by_length
from qkv.models.sentence.rank import Pair, Ranker, best
from qkv.serve._bodies import Body, PromptUsage, describe_body, read_json
from qkv.serve._memory import in_thread
from qkv.serve._refusals import Refused, not_finite

router = APIRouter()


class RerankBody(Body):
    """The keys of a request to rank documents."""

    call: ClassVar[str] = "rerank"
    ways: ClassVar[dict[str, str]] = {"query": "a text", "documents": "a list of texts"}

    query: str = Field(description="The question or search text.", min_length=1)
    documents: Annotated[list[str], Field(min_length=1, fail_fast=True)] = Field(
        description="The texts to rank."
    )
    top_n: int | None = Field(
        None, ge=1, description="How many of the best documents to return; all by default."
    )
    return_documents: bool | None = Field(
        False, description="If true, the answer includes the documents' texts."
    )


class Document(BaseModel):
    """A ranked document."""

    text: str


class RankedDocument(BaseModel):
    """The index of a document, and its score for the query."""

    index: int
    relevance_score: float
    document: Document | None = None


class Ranking(BaseModel):
    """The answer to a request to rank documents, best first."""

    object: str
    model: str
    results: list[RankedDocument]
    usage: PromptUsage


EXAMPLE = {
    "query": "Where does a river end?",
    "documents": ["The river flows into the sea.", "The bank charged a fee."],
}


_ROUTE: dict[str, Any] = {
    "response_model": Ranking,
    "response_model_exclude_none": True,
    "openapi_extra": describe_body(RerankBody, EXAMPLE),
}


@router.post("/v2/rerank", summary="Like `/v1/rerank`, at the path of Cohere's client", **_ROUTE)
@router.post("/v1/rerank", summary="Which documents answer a query best", **_ROUTE)
async def rerank(request: Request) -> dict[str, Any]:
    """Rank documents as `model.rank` does, with a cross-encoder; refuse any other model."""
    return await rank_documents(request, await read_json(request))


async def rank_documents(request: Request, json: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a request of `/v1/rerank`."""
    body = RerankBody.read(json)
    scores, pairs = await score(request, body, "documents", body.documents)
    results = [
        {"index": ranked["corpus_id"], "relevance_score": ranked["score"]}
        | ({"document": {"text": ranked["text"]}} if body.return_documents else {})
        for ranked in best(scores, body.documents, body.top_n, True)
    ]
    tokens = sum(map(len, pairs))
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "model": request.app.state.name, "results": results, "usage": usage}


async def score(
    request: Request, body: Any, key: str, documents: list[str], activation: Any = None
) -> tuple[Array, list[Pair]]:
    """Return the documents' scores (n,), and the tokenized pairs of the query and a document.

    The key `key` of the body holds the documents. `activation` is `activation_fn` of `Model.rank`.
    """
    state = request.app.state
    count, most = len(documents), state.settings.inputs
    if count > most:
        raise body.refusal(key, f"has {count} texts: send at most {most} in one request")
    try:
        ranker = state.model.ranker(activation_fn=activation)
    except ValueError as error:
        message = f"{state.name} does not rank documents: compare vectors of /v1/embeddings"
        raise Refused(400, message, param="model", code="model_does_not_rank") from error
    pairs: list[Pair] = []
    parts = pairs_of(ranker, body.query, documents, state.settings.tokens, key)
    while part := await in_thread(next, parts, None):
        pairs += part
    scores = np.empty(len(pairs))
    # Between two batches of pairs, the worker can compute other requests.
    for numbers in by_length(pairs, state.settings.batch_tokens):
        scores[numbers] = await state.worker.call(
            partial(ranker.scores, [pairs[number] for number in numbers]), connection=request.client
        )
    if not (is_finite := np.isfinite(scores)).all():
        raise not_finite("rerank", f"the score of document {is_finite.argmin()} is")
    return scores, pairs


def pairs_of(
    ranker: Ranker, query: str, documents: list[str], most: int, key: str
) -> Iterator[list[Pair]]:
    """Yield lists of tokenized pairs; each pair consists of the query and one document.

    Raises:
        Refused: the pairs have more than `most` tokens, or a text cannot be tokenized.
    """
    try:
        [alone] = ranker.pairs(query, [""])
        tokens = len(alone) * len(documents)  # the number of tokens if all documents were empty
        for part in ranker.parts_of_pairs(query, documents if tokens <= most else []):
            tokens += sum(len(pair) - len(alone) for pair in part)
            if tokens > most:
                break
            yield part
    except ValueError as error:
        raise Refused(400, message(error), param="query") from error
    if tokens > most:
        problem = f"{key} and query have more than {most:,} tokens"
        problem = f"{problem}: send them in several requests"
        raise Refused(400, problem, param=key)

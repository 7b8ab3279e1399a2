"""Routes about the server: its model, its health and its metrics."""

from typing import Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response

from qkv.serve._refusals import Refused

router = APIRouter()


class ServedModel(BaseModel):
    """The model, in OpenAI's format."""

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "qkv"


class ServedModels(BaseModel):
    """The list of models, which always has one entry."""

    object: Literal["list"] = "list"
    data: list[ServedModel]


class Health(BaseModel):
    """The answer to a successful health check."""

    status: Literal["ok"] = "ok"


@router.get("/v1/models", summary="The model that is served")
async def models(request: Request) -> ServedModels:
    """List the model."""
    return ServedModels(data=[ServedModel(id=request.app.state.name)])


@router.get("/v1/models/{name:path}", summary="One model, by its name")
async def model(name: str, request: Request) -> ServedModel:
    """Return the model if the name is correct."""
    served = request.app.state.name
    if name != served:
        message = f"there is no model {name[:80]!r}: this server serves {served}"
        raise Refused(404, message, code="model_not_found")
    return ServedModel(id=served)


@router.get("/healthz", summary="Check that the server is alive")
async def healthz() -> Health:
    """Answer 200: the server is alive."""
    return Health()


@router.get("/health", summary="Like `/readyz`, at the path of text-embeddings-inference")
@router.get("/readyz", summary="Check that the server accepts requests")
async def readyz(request: Request) -> Health:
    """Answer 200 from the end of the first computation to the start of shutdown, otherwise 503."""
    if not request.app.state.worker.ready:
        raise Refused(503, "the server is not ready: try again later", headers={"Retry-After": "1"})
    return Health()


@router.get("/metrics", summary="Numbers for Prometheus", response_class=Response)
async def metrics(request: Request) -> Response:
    """Return the metrics: requests by route and status, durations, and waiting requests."""
    kind = "text/plain; version=0.0.4; charset=utf-8"
    return Response(request.app.state.numbers.text(), media_type=kind)

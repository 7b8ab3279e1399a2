"""The application: the routes of one model behind a guard."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.responses import Response

from qkv.models import Model
from qkv.serve.errors import ERRORS, Refused, failed
from qkv.serve.guard import Guard, Numbers
from qkv.serve.limits import Limits
from qkv.serve.routes import about, completions, embeddings, home, rerank, trace
from qkv.serve.work import Worker

_ROUTES = (
    *(home.router, embeddings.router, completions.router, trace.router, rerank.router),
    about.router,
)

# Attributes of the worker that /metrics shows.
_WATCHED = {
    "waiting": "Requests without an answer so far.",
    "streams": "Completions that have not ended.",
    "batches": "Batches computed since the start.",
    "texts": "Texts computed since the start.",
    "tokens": "Tokens computed since the start.",
    "failures": "Errors while computing.",
}


def create_app(model: Model, limits: Limits | None = None) -> Guard:
    """Return an ASGI application that serves a model, behind a guard.

    Routes read `request.app.state`: `model`, `limits`, `worker`, `numbers`, `routes`, and `name`,
    the name of the model in answers.
    """
    limits = limits or Limits()
    app = _with_routes(f"qkv serves {model.name}", needs_key=limits.key is not None)
    state = app.state
    state.model, state.limits, state.name = model, limits, model.name
    state.worker, state.numbers, state.routes = Worker(model, limits), Numbers(), routes()
    for attribute, words in _WATCHED.items():
        state.numbers.watch(f"qkv_{attribute}", words, state.worker, attribute)
    return Guard(app, limits, state.numbers)


def routes() -> list[APIRoute]:
    """Return all routes in the order of their declaration."""
    return [route for router in _ROUTES for route in router.routes if isinstance(route, APIRoute)]


def _with_routes(title: str, *, needs_key: bool) -> FastAPI:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.worker.start()
        yield
        await app.state.worker.stop()

    version = import_module("qkv").__version__
    app = FastAPIOffline(
        "/docs", None, title=title, version=version, lifespan=lifespan, responses=ERRORS
    )
    for router in _ROUTES:
        app.include_router(router)

    @app.exception_handler(Refused)
    async def refused(request: Request, error: Refused) -> Response:
        return error.answer()

    @app.exception_handler(HTTPException)
    async def not_found(request: Request, error: HTTPException) -> Response:
        path = request.url.path[:80]
        message = {
            404: f"{path!r} does not exist: GET / lists the routes",
            405: f"{path!r} does not accept the method {request.method[:20]!r}",
        }.get(error.status_code, str(error.detail))
        return Refused(error.status_code, message, headers=dict(error.headers or {})).answer()

    @app.exception_handler(Exception)
    async def not_expected(request: Request, error: Exception) -> Response:
        return failed().answer()  # the guard logs the error

    @app.exception_handler(RequestValidationError)
    async def not_valid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))[:80]
        return Refused(400, f"{key}: {first['msg']}", param=key).answer()

    if needs_key:  # /docs prompts for the key, and sends the key with each request
        schema = app.openapi()
        schemes = {"key": {"type": "http", "scheme": "bearer"}}
        schema.setdefault("components", {})["securitySchemes"] = schemes
        schema["security"] = [{"key": []}]
    return app

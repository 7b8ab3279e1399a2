"""`POST /v1/completions`: continue texts with a decoder; the keys have OpenAI's names."""

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Literal

import orjson
from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response, StreamingResponse
from starlette.types import Send

from qkv.serve.bodies import described, read_json
from qkv.serve.completing import Choice, Completion, CompletionsBody, Usage, joined
from qkv.serve.errors import Refused, failed
from qkv.serve.guard import in_one_line

router = APIRouter()

_log = logging.getLogger("qkv.serve")


class Completions(BaseModel):
    """The answer to a request for completions, or one event of a stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[Choice]
    usage: Usage | None


EXAMPLE = {"prompt": "The bank of the river", "max_tokens": 16, "stream": True}
_STREAM = "text/event-stream"
_EVENT = {  # of server-sent events
    "type": "object",
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
    "required": ["data"],
}
_ANSWER = {"model": Completions, "content": {_STREAM: {"schema": _EVENT}}}


class Events(StreamingResponse):
    """A streamed response; its computation is canceled when the client disconnects."""

    body_iterator: AsyncGenerator[bytes]

    async def stream_response(self, send: Send) -> None:
        """Send all events of the stream, then stop the computation."""
        async with aclosing(self.body_iterator):
            await super().stream_response(send)


@router.post(
    "/v1/completions",
    summary="Text that continues each prompt",
    responses={200: _ANSWER},
    response_class=Response,
    openapi_extra=described(CompletionsBody, EXAMPLE),
)
async def completions(request: Request) -> Response:
    """Continue prompts (texts or token ids); send one answer, or a stream of events."""
    state = request.app.state
    body = CompletionsBody.read(await read_json(request))
    body.check(state.model, state.limits)
    completion = await asyncio.to_thread(Completion, state.model, body, state.limits)
    head = {
        "id": f"cmpl-{uuid.uuid4().hex}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": state.name,
    }
    pieces = state.worker.stream(completion.pieces, connection=request.client, size=completion.size)
    if body.stream:
        # if the first piece fails, the answer can still have the error's status code
        first = await anext(pieces)
        events = _events(head, first, pieces, completion, body.include_usage)
        return Events(events, media_type=_STREAM, headers={"Cache-Control": "no-store"})
    rows: list[list[Choice]] = [[] for _ in completion.rows]
    async with aclosing(pieces):
        async for step in pieces:
            for choice in step:
                rows[choice.index].append(choice)
    answer = head | {"choices": [_plain(joined(row)) for row in rows], "usage": completion.usage}
    return Response(_json(answer), media_type="application/json")


async def _events(
    head: dict[str, Any],
    first: list[Choice],
    pieces: AsyncGenerator[list[Choice]],
    completion: Completion,
    include_usage: bool,
) -> AsyncGenerator[bytes]:
    """Yield server-sent events: the pieces, then the token counts if the request wants them."""
    step: list[Choice] | None = first
    try:
        async with aclosing(pieces):
            while step is not None:
                for choice in step:
                    yield _event(head | {"choices": [_plain(choice)], "usage": None})
                step = await anext(pieces, None)
    except Exception as error:
        _log.error("/v1/completions: %s", in_one_line(error))
        refused = error if isinstance(error, Refused) else failed()
        yield b"event: error\n" + _event(refused.body())
        return
    if include_usage:
        yield _event(head | {"choices": [], "usage": completion.usage})
    yield b"data: [DONE]\n\n"


def _event(value: Any) -> bytes:
    return b"data: " + _json(value) + b"\n\n"


def _json(value: Any) -> bytes:
    return orjson.dumps(value, default=_plain)


def _plain(value: BaseModel) -> dict[str, Any]:
    """Convert a part of an answer to a dict; orjson calls this function for each nested part."""
    return dict(value)

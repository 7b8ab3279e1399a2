"""`POST /v1/completions`: continue texts with a decoder; the keys have OpenAI's names."""

import logging
import sys
import time
import uuid
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import numpy as np
import orjson
from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response, StreamingResponse
from starlette.types import Send

from qkv._argument_errors import message, public_call
from qkv.models import Model
from qkv.models.tasks import Measured, Sampling, Spelling, Together, decode_function
from qkv.models.tasks.generate import Row
from qkv.serve._bodies import Body, Ids, describe_body, quote, read_json
from qkv.serve._memory import hold, in_thread
from qkv.serve._refusals import FAILED, Refused
from qkv.serve._streams import AHEAD
from qkv.serve.guard import in_one_line
from qkv.serve.settings import Settings

router = APIRouter()

_log = logging.getLogger("qkv.serve")

TOGETHER = 64  # The maximum number of completions in a batch.
STOP = 1000  # The maximum length of a stop string in characters.
LEAST = -9999.0  # The log probability of an impossible token, as OpenAI reports it.

_REASONS: dict[str, Literal["stop", "length"]] = {"eos": "stop", "stop": "stop", "length": "length"}


class SampledBody(Body):
    """The keys that requests for completions and for chat completions share.

    Attributes:
        source: the name of the key with the text that the model reads.
    """

    call: ClassVar[str] = "completions"
    ways: ClassVar[Mapping[str, str]] = {"stop": "a text, or a list of up to 4"}
    source: ClassVar[str] = "prompt"

    temperature: float = Field(
        1.0,
        ge=0,
        le=2,
        description="With 0, the likeliest token is always chosen.",
        allow_inf_nan=False,
    )
    top_p: float = Field(
        1.0,
        ge=0,
        le=1,
        description="Draw only from the likeliest tokens whose probabilities sum to this number; "
        "with 0, the likeliest token is always chosen.",
    )
    top_k: int = Field(
        0,
        ge=-1,
        description="Draw only from this many of the likeliest tokens; 0 or -1 for all tokens.",
    )
    n: int = Field(1, ge=1, le=128, description="The number of completions for each text.")
    stop: str | Annotated[list[str], Field(max_length=4, fail_fast=True)] = Field(
        [], description="Stop before any of these texts; the completion does not contain it."
    )
    seed: int | None = Field(
        None, ge=-(2**63), lt=2**64, description="The same seed draws the same tokens again."
    )
    stream: bool = Field(False, description="Send the text in pieces, as server-sent events.")
    stream_options: dict[str, Any] = Field(
        {},
        description="Only with `stream`: `include_usage` adds a last piece with the token counts.",
        json_schema_extra={"properties": {"include_usage": {"type": "boolean"}}},
    )

    @property
    def stops(self) -> tuple[str, ...]:
        """The strings that end a completion."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def include_usage(self) -> bool:
        """Whether the server sends the numbers of tokens at the end of a stream."""
        include: bool | None = self.stream_options.get("include_usage")
        return False if include is None else include

    @property
    def new_tokens(self) -> int:
        """The maximum number of new tokens of a completion."""
        raise NotImplementedError

    @property
    def limit_key(self) -> str | None:
        """The name of the key with the number of new tokens; None if it is missing."""
        raise NotImplementedError

    @property
    def top(self) -> int | None:
        """How many likeliest tokens get log probabilities; None for no log probabilities."""
        raise NotImplementedError

    @property
    def echoes(self) -> bool:
        """Whether a completion begins with the prompt."""
        return False

    def prompt_for(self, model: Model) -> Any:
        """Return the text to continue, in a form that `Model.rows` accepts.

        Raises:
            TypeError, ValueError: the model cannot read the request's texts.
        """
        raise NotImplementedError

    def check(self, model: Model, settings: Settings) -> None:
        """Without reading the prompts, refuse a request that this model or server cannot answer.

        Raises:
            Refused: 400, with the name of the wrong key.
        """
        try:
            with public_call(self.call):
                model.need("generate")
        except ValueError as error:
            message = f"{error}, or ask /v1/embeddings"
            raise Refused(400, message, param="model", code="model_does_not_generate") from error
        if "" in self.stops:
            raise self.refusal("stop", "has an empty text: leave it out")
        if (longest := max(map(len, self.stops), default=0)) > STOP:
            raise self.refusal("stop", f"has a text of {longest} characters; pass at most {STOP}")
        if not isinstance(self.include_usage, bool):
            problem = f"has include_usage {quote(self.include_usage)}; pass true or false"
            raise self.refusal("stream_options", problem)
        if self.stream_options and not self.stream:
            raise self.refusal("stream_options", 'is only for streams: also send "stream": true')
        if self.limit_key is not None and self.new_tokens > settings.new_tokens:
            most = settings.new_tokens
            raise self.refusal(self.limit_key, f"is {self.new_tokens}; pass at most {most}")


class CompletionsBody(SampledBody):
    """The keys of a request for completions, with OpenAI's names."""

    ways: ClassVar[Mapping[str, str]] = {
        "prompt": "a text, a list of texts, a list of token ids, or a list of such lists",
        **SampledBody.ways,
    }

    prompt: (
        str
        | Annotated[list[str], Field(min_length=1, fail_fast=True)]
        | Ids
        | Annotated[list[Ids], Field(min_length=1, fail_fast=True)]
    ) = Field(
        description="One text or several texts; or the token ids of one text or of several texts.",
        examples=["The river bank"],
    )
    max_tokens: int = Field(
        16, ge=0, description="The maximum number of new tokens for each prompt."
    )
    best_of: int | None = Field(None, description="Must equal n.")
    logprobs: int | None = Field(
        None,
        ge=0,
        le=5,
        description="How many of the likeliest tokens to list per position, with log "
        "probabilities.",
    )
    echo: bool = Field(False, description="If true, the text begins with the prompt.")

    @property
    def prompts(self) -> int:
        """The number of prompts."""
        several = isinstance(self.prompt, list) and not isinstance(self.prompt[0], int)
        return len(self.prompt) if several else 1

    @property
    def new_tokens(self) -> int:
        """The maximum number of new tokens of a completion."""
        return self.max_tokens

    @property
    def limit_key(self) -> str | None:
        """The name of the key with the number of new tokens; None if it is missing."""
        return "max_tokens" if "max_tokens" in self.model_fields_set else None

    @property
    def top(self) -> int | None:
        """How many likeliest tokens get log probabilities; None for no log probabilities."""
        return self.logprobs

    @property
    def echoes(self) -> bool:
        """Whether a completion begins with the prompt."""
        return self.echo

    def prompt_for(self, model: Model) -> Any:
        """Return the prompts."""
        return self.prompt

    def check(self, model: Model, settings: Settings) -> None:
        """Without reading the prompts, refuse a request that this model or server cannot answer.

        Raises:
            Refused: 400, with the name of the wrong key.
        """
        super().check(model, settings)
        if self.best_of not in (None, self.n):
            raise self.refusal(
                "best_of", f"is {self.best_of} and n is {self.n}; pass equal numbers"
            )
        if self.prompts * self.n > settings.inputs:
            key, times = ("n", f" and n is {self.n}") if self.n > 1 else ("prompt", "")
            way = f"ask for at most {settings.inputs} completions"
            raise self.refusal(key, f"of {self.prompts} prompts{times}: {way}")
        if self.echo and self.logprobs is not None and not model.can("losses"):
            problem = f"cannot be given with logprobs: {model.name} does not predict the prompt"
            raise self.refusal("echo", problem)


class Logprobs(BaseModel):
    """Lists with an entry for each token. The log probabilities are those at temperature 1."""

    tokens: list[str] = Field(
        description="The text that each token adds. For a token that adds no text: its vocabulary "
        "entry or its id."
    )
    token_logprobs: list[float | None] = Field(
        description="Each token's log probability, in nats; null for the first token of a text."
    )
    top_logprobs: list[dict[str, float] | None] = Field(
        description="The log probabilities of the likeliest tokens and of the chosen token."
    )
    text_offset: list[int] = Field(description="The position in `text` where each token begins.")


class Choice(BaseModel):
    """A completion, or a piece of a streamed completion."""

    index: int
    text: str
    logprobs: Logprobs | None
    finish_reason: Literal["stop", "length"] | None


class Usage(BaseModel):
    """The numbers of tokens in the prompts and in the completions."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Completion:
    """The computation of a request for completions; the constructor tokenizes the prompts.

    New tokens are computed together with those of the other requests that have the same `together`.

    Attributes:
        prefix: the start of the answer's id.
        kinds: the name of an answer, and the name of one event of a stream.
        measured_bytes: the estimated size, in bytes, of a log probability with its token's text.

    Raises:
        Refused: 400, if a prompt is invalid, too long for the model or too long for the server.
    """

    prefix: ClassVar[str] = "cmpl"
    kinds: ClassVar[tuple[str, str]] = ("text_completion", "text_completion")
    measured_bytes: ClassVar[int] = 32

    def __init__(
        self, model: Model, body: SampledBody, settings: Settings, together: Together | None = None
    ) -> None:
        self.body, self._model, self._settings = body, model, settings
        self._together = together
        new_tokens, key = min(body.new_tokens, settings.new_tokens), body.limit_key
        try:
            self.rows: list[Row] = model.rows(
                body.prompt_for(model),
                usual=new_tokens,
                copies=body.n,
                stop=body.stops,
                seed=None if body.seed is None else body.seed % 2**64,
            )[1]
        except (TypeError, ValueError) as error:
            raise Refused(400, f"{body.call}: {message(error)}", param=body.source) from error
        total = 0
        for number, row in enumerate(self.rows):
            total += len(row.prompt_tokens)
            if key is not None and row.max_new_tokens < new_tokens:
                raise body.refusal(
                    key,
                    f"is {new_tokens} and prompt {number // body.n} has {len(row.prompt_tokens)} "
                    f"tokens, but {model.name} takes at most {model.design.max_seq_length} tokens "
                    f"in all: set {key} to at most {row.max_new_tokens}",
                )
        if total > settings.tokens:
            problem = f"has {total} tokens, counting each text once per completion: "
            raise body.refusal(body.source, f"{problem}send at most {settings.tokens}")
        self._answer = self._check_size(total)
        self._writers = [self.writer(model, row, body) for row in self.rows]

    def _check_size(self, prompts: int) -> int:
        """Return the estimated bytes of the logprobs and of the echoed prompts in the answer.

        Raises:
            Refused: 400, if there are too many new tokens; 413, if the answer would be too large.
        """
        body, settings = self.body, self._settings
        new = sum(row.max_new_tokens for row in self.rows)
        if new > settings.tokens:
            count = f"is {self.rows[0].max_new_tokens} for {len(self.rows)} completions"
            problem = f"{count}, {new:,} new tokens: ask for at most {settings.tokens:,}"
            raise body.refusal(body.limit_key or "max_tokens", problem)
        size = sum(len(row.prompt) for row in self.rows) * body.echoes
        if body.top is not None:
            size += (new + prompts * body.echoes) * (1 + body.top) * self.measured_bytes
        if size > settings.answer:
            message = (
                f"{body.call}: the answer would have about {size:,} bytes, and this server allows "
                f"{settings.answer:,}: leave out logprobs or echo, or ask for fewer completions"
            )
            raise Refused(413, message, code="answer_too_large")
        return size

    @property
    def unsent(self) -> int:
        """The estimated bytes of the computed pieces waiting to be sent."""
        steps = max(row.max_new_tokens for row in self.rows) + 1
        # pieces in memory are larger than their JSON
        return 2 * self._answer * (min(AHEAD, steps) if self.body.stream else steps) // steps

    def writer(self, model: Model, row: Row, body: SampledBody) -> "Writer":
        """Return the object that splits a completion into pieces."""
        return Writer(model, row, body)

    def size(self, pieces: int) -> int:
        """Estimate the maximum number of tokens in memory while the next pieces are computed."""
        return max(_tokens(rows, pieces) for rows in self._groups())

    @property
    def usage(self) -> Usage:
        """The number of prompt tokens, and the number of completion tokens so far."""
        read = sum(len(row.prompt_tokens) for row in self.rows[:: self.body.n])
        written = sum(len(row.ids) for row in self.rows)
        return Usage(prompt_tokens=read, completion_tokens=written, total_tokens=read + written)

    def answer(self, pieces: Sequence[Choice]) -> dict[str, Any]:
        """Given all pieces of a completion, return the completion in the form used in an answer."""
        return dict(join_pieces(pieces))

    def opening(self) -> list[dict[str, Any]]:
        """Return the choices of the events with which a stream begins, before the first text."""
        return []

    def event(self, piece: Choice) -> dict[str, Any]:
        """Return a piece of a completion in the form used in an event of a stream."""
        return dict(piece)

    def pieces(self) -> Iterator[list[Choice]]:
        """Generate the completions; after each token, yield the new piece of each completion.

        If the returned iterator is closed early, a second call continues at the same token.
        """
        begin = 0
        for rows in self._groups():
            writers = self._writers[begin : begin + len(rows)]
            for new in self._steps(rows, writers):
                choices = (
                    writer.piece(begin + number, new.get(number, ""))
                    for number, writer in enumerate(writers)
                )
                yield [choice for choice in choices if choice is not None]
            begin += len(rows)

    def _steps(self, rows: Sequence[Row], writers: "Sequence[Writer]") -> Iterator[dict[int, str]]:
        """Generate text for several rows; after each token, yield the new text of each row."""
        if all(writer.done for writer in writers):
            return
        body = self.body
        measures = body.echoes and body.top is not None
        left = [
            number
            for number, row in enumerate(rows)
            if row.finish_reason is None or (measures and not row.is_measured)
        ]
        if left:
            steps = self._model.steps(
                [rows[number] for number in left],
                Sampling(
                    body.temperature,
                    body.top_k if body.top_k > 0 else None,
                    max(body.top_p, sys.float_info.min),
                ),
                top=body.top,
                measure_prompts=measures,
                together=self._together,
            )
            try:
                for step in steps:
                    yield {left[number]: text for number, text in step}
            except FloatingPointError as error:
                raise Refused(500, f"{body.call}: {message(error)}") from error
        yield {}

    def _groups(self) -> Iterator[list[Row]]:
        """Yield groups of rows; each group is computed in one batch."""
        group: list[Row] = []
        for row in self.rows:
            full = len(group) == TOGETHER or _tokens([*group, row]) > self._settings.batch_tokens
            if group and full:
                yield group
                group = []
            group.append(row)
        yield group


def _tokens(rows: Sequence[Row], pieces: int = sys.maxsize) -> int:
    """Return the number of tokens of a batch after some more pieces, including padding."""
    return len(rows) * max(
        len(row.prompt_tokens) + min(len(row.ids) + pieces, row.max_new_tokens) for row in rows
    )


@dataclass
class Writer:
    """Splits the text of one completion into pieces, and records how much text was sent."""

    model: Model
    row: Row
    body: SampledBody
    echoed: int = 0  # The number of characters of the echoed prompt.
    tokens: int = 0  # The number of new tokens that were sent.
    done: bool = False
    held: str = ""
    echoing: bool = field(init=False)
    names: Spelling = field(init=False)

    def __post_init__(self) -> None:
        before = self.row.prompt_tokens.ids.tolist() if self.model.continues else []
        self.names = Spelling(decode_function(self.model.tokenizer), before)
        self.echoing = self.body.echoes

    def piece(self, index: int, text: str) -> Choice | None:
        """Return the next piece for the client, or None if there is no new text."""
        row, with_logs = self.row, self.body.top is not None
        text, logs, measured = self.held + text, self.logs(), False
        if self.echoing:
            if (with_logs and not row.is_measured) or row.may_complete_prompt:
                self.held = text
                return None
            self.echoing = False
            if with_logs:
                self._write_prompt(logs)
                measured = True
            text, self.echoed = row.prompt + text, len(row.prompt)
        self.held = ""
        ends = row.finish_reason is not None and not self.done
        if not text and not ends and not measured:
            return None
        if with_logs:
            self._write_new(logs, whole=ends)
        reason = _REASONS[row.finish_reason] if ends and row.finish_reason else None
        self.done = self.done or ends
        return Choice.model_construct(
            index=index, text=text, logprobs=logs if with_logs else None, finish_reason=reason
        )

    def logs(self) -> Logprobs:
        """Return empty lists, to which `add_token` adds entries."""
        return empty_logs(Logprobs)

    def add_token(self, logs: Any, names: Spelling, token: int, measured: Measured | None) -> None:
        """Add one token and its log probabilities to `logs`."""
        logs.tokens.append(self.name(names, token))
        top: dict[str, float] | None = None
        if measured is not None:
            top = {}
            for other, log in [*measured.top, (token, measured.log_probability)]:
                top.setdefault(self.name(names, other), max(log, LEAST))
        value = None if measured is None else max(measured.log_probability, LEAST)
        logs.token_logprobs.append(value)
        logs.top_logprobs.append(top)

    def name(self, names: Spelling, token: int) -> str:
        """Return the text that a token adds, or else the token's vocabulary entry or its id."""
        tokenizer = self.model.tokenizer
        known = None if tokenizer is None else tokenizer.token(token)
        return names.text_of(token) or known or f"token_id:{token}"

    def _write_prompt(self, logs: Logprobs) -> None:
        """Add the prompt's tokens and log probabilities; the first token has no probability."""
        row = self.row
        names, text = Spelling(decode_function(self.model.tokenizer)), ""
        measured = [None, *row.measured_prompt]
        for token, probabilities in zip(row.prompt_tokens.ids.tolist(), measured, strict=True):
            self.add_token(logs, names, token, probabilities)
            text += names.add(token)
        text += names.finish()
        starts = [start for start, _ in names.spans]
        if text != row.given:  # for example, if the tokenizer converts the prompt to lower case
            starts = np.maximum.accumulate(
                [start for start, _ in row.prompt_tokens.offsets]
            ).tolist()
        logs.text_offset += [min(start, len(row.prompt)) for start in starts]

    def _write_new(self, logs: Logprobs, *, whole: bool) -> None:
        """Add the next new tokens and their log probabilities.

        If `whole` is false, tokens whose text is not sent yet are not added. They are added with a
        later piece.
        """
        row = self.row
        size = len(row.stream.text)
        starts = [start for start, _ in row.stream.spelling.spans]
        starts += [size] * (len(row.ids) - len(starts))
        for number in range(self.tokens, len(row.ids)):
            if starts[number] >= size and not whole:
                return
            token = row.ids[number]
            self.add_token(logs, self.names, token, row.measured[number])
            self.names.add(token)
            logs.text_offset.append(self.echoed + min(starts[number], size))
            self.tokens += 1


Logs = TypeVar("Logs", bound=Logprobs)


def empty_logs(kind: type[Logs]) -> Logs:
    """Return lists without tokens."""
    lists: dict[str, Any] = {name: [] for name in kind.model_fields}
    return kind.model_construct(**lists)


def join_pieces(pieces: Sequence[Choice]) -> Choice:
    """Join all pieces of a completion into one."""
    logs = [piece.logprobs for piece in pieces if piece.logprobs is not None]
    whole = empty_logs(type(logs[0]) if logs else Logprobs)
    for part in logs:
        for name in type(part).model_fields:
            getattr(whole, name).extend(getattr(part, name))
    return Choice.model_construct(
        index=pieces[0].index,
        text="".join(piece.text for piece in pieces),
        logprobs=whole if logs else None,
        finish_reason=pieces[-1].finish_reason,
    )


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
_EVENT = {  # the schema of a server-sent event
    "type": "object",
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
    "required": ["data"],
}
AS_EVENTS = {_STREAM: {"schema": _EVENT}}


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
    responses={200: {"model": Completions, "content": AS_EVENTS}},
    response_class=Response,
    openapi_extra=describe_body(CompletionsBody, EXAMPLE),
)
async def completions(request: Request) -> Response:
    """Continue prompts (texts or token ids); send one answer, or a stream of events."""
    return await complete(request, CompletionsBody.read(await read_json(request)), Completion)


async def complete(request: Request, body: SampledBody, kind: type[Completion]) -> Response:
    """Compute completions; send one answer, or a stream of events."""
    state = request.app.state
    body.check(state.model, state.settings)
    completion = await in_thread(kind, state.model, body, state.settings, state.worker.together)
    hold(request, completion.unsent)
    head = {
        "id": f"{kind.prefix}-{uuid.uuid4().hex}",
        "object": kind.kinds[body.stream],
        "created": int(time.time()),
        "model": state.name,
    }
    pieces = state.worker.stream(completion.pieces, connection=request.client, size=completion.size)
    if body.stream:
        # if the first piece fails, the answer can still have the error's status code
        first = await anext(pieces)
        events = _events(head, first, pieces, completion)
        return Events(events, media_type=_STREAM, headers={"Cache-Control": "no-store"})
    rows: list[list[Choice]] = [[] for _ in completion.rows]
    async with aclosing(pieces):
        async for step in pieces:
            for choice in step:
                rows[choice.index].append(choice)
    choices = [completion.answer(row) for row in rows]
    answer = head | {"choices": choices, "usage": completion.usage}
    return Response(_json(answer), media_type="application/json")


_Steps = AsyncGenerator[list[Choice]]  # yields, after each step, the new pieces of all completions


async def _events(
    head: dict[str, Any], first: list[Choice], later: _Steps, completion: Completion
) -> AsyncGenerator[bytes]:
    """Yield server-sent events: the pieces, and the token counts if the request includes them."""
    step: list[Choice] | None = first
    try:
        async with aclosing(later):
            for opening in completion.opening():
                yield _event(head | {"choices": [opening], "usage": None})
            while step is not None:
                for choice in step:
                    yield _event(head | {"choices": [completion.event(choice)], "usage": None})
                step = await anext(later, None)
    except Exception as error:
        _log.error("/v1/%s: %s", completion.body.call, in_one_line(error))
        refused = error if isinstance(error, Refused) else FAILED
        yield b"event: error\n" + _event(refused.body())
        return
    if completion.body.include_usage:
        yield _event(head | {"choices": [], "usage": completion.usage})
    yield b"data: [DONE]\n\n"


def _event(value: Any) -> bytes:
    return b"data: " + _json(value) + b"\n\n"


def _json(value: Any) -> bytes:
    """Write a value as JSON. orjson calls `dict` to convert each pydantic object in the value."""
    return orjson.dumps(value, default=dict)

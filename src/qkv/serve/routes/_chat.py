"""`POST /v1/chat/completions`: answer conversations; the keys have OpenAI's names."""

import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from qkv.models import Model
from qkv.models.tasks import Measured, Spelling
from qkv.models.tasks.generate import Prompt, Row
from qkv.serve._bodies import describe_body, read_json
from qkv.serve._refusals import Refused
from qkv.serve.routes._completions import (
    AS_EVENTS,
    LEAST,
    Choice,
    Completion,
    Logprobs,
    SampledBody,
    Usage,
    Writer,
    complete,
    empty_logs,
    join_pieces,
)
from qkv.serve.settings import Settings

router = APIRouter()

_None = Annotated[list[Any], Field(max_length=0)] | None


class TextPart(BaseModel):
    """A part of a message."""

    type: Literal["text"]
    text: str


class Message(BaseModel):
    """A message of a conversation. Further keys are passed to the model's chat template."""

    model_config = ConfigDict(strict=True, extra="allow")

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(min_length=1)]
    tool_calls: _None = None
    function_call: None = None
    audio: None = None

    def plain(self) -> dict[str, Any]:
        """Return the message in the form that chat templates read: the content is one text."""
        role = "system" if self.role == "developer" else self.role
        parts = self.content
        text = parts if isinstance(parts, str) else "\n".join(part.text for part in parts)
        return {**(self.model_extra or {}), "role": role, "content": text}


class ChatBody(SampledBody):
    """The keys of a request for a chat completion, with OpenAI's names."""

    call: ClassVar[str] = "chat/completions"
    ways: ClassVar[Mapping[str, str]] = {
        "messages": 'a list of messages, each with a role ("system", "developer", "user" or '
        '"assistant") and a text as content; tools, images and audio are not supported',
        **SampledBody.ways,
    }
    source: ClassVar[str] = "messages"

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)] = Field(
        description="The conversation. The model answers its last message.",
        examples=[[{"role": "user", "content": "Where does a river end?"}]],
    )
    max_completion_tokens: int | None = Field(
        None, ge=1, description="The maximum number of new tokens; by default as many as possible."
    )
    max_tokens: int | None = Field(
        None, ge=1, description="An older name for `max_completion_tokens`."
    )
    logprobs: bool = Field(False, description="If true, send each token's log probability.")
    top_logprobs: int | None = Field(
        None,
        ge=0,
        le=20,
        description="Only with `logprobs`: how many of the likeliest tokens to list per position.",
    )

    @property
    def new_tokens(self) -> int:
        """The maximum number of new tokens of an answer."""
        return self.max_completion_tokens or self.max_tokens or sys.maxsize

    @property
    def limit_key(self) -> str | None:
        """The name of the key that limits the number of new tokens, or None."""
        if self.max_completion_tokens is not None:
            return "max_completion_tokens"
        return None if self.max_tokens is None else "max_tokens"

    @property
    def top(self) -> int | None:
        """How many likeliest tokens get log probabilities; None for no log probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None

    def prompt_for(self, model: Model) -> Prompt:
        """Return the conversation, formatted by the model's chat template."""
        messages = [message.plain() for message in self.messages]
        tokenizer = model.reader.need_tokenizer()
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return Prompt(tokenizer.tokenize_prompt(text))

    def check(self, model: Model, settings: Settings) -> None:
        """Without reading the messages, refuse a request that this model or server cannot answer.

        Raises:
            Refused: 400, with the name of the wrong key.
        """
        super().check(model, settings)
        if not chats(model):
            problem = f"{self.call}: {model.name} has no chat template"
            problem = f"{problem}: serve a model with one, or ask /v1/completions"
            raise Refused(400, problem, param="model", code="model_does_not_chat")
        if None is not self.max_tokens != self.max_completion_tokens is not None:
            problem = f"is {self.max_tokens} and max_completion_tokens is "
            raise self.refusal("max_tokens", f"{problem}{self.max_completion_tokens}; pass one")
        if self.top_logprobs is not None and not self.logprobs:
            raise self.refusal(
                "top_logprobs", 'works only with logprobs: also send "logprobs": true'
            )
        if self.n > settings.inputs:
            raise self.refusal("n", f"is {self.n}: ask for at most {settings.inputs} answers")


def chats(model: Model) -> bool:
    """Return whether a model can reply in conversations."""
    has_template = model.tokenizer is not None and model.tokenizer.chat_template is not None
    return model.can("generate") and has_template


class TopToken(BaseModel):
    """A token and its log probability at temperature 1.

    `bytes` is null if the token does not stand for a whole text, for example if it is an end token
    or a part of a character; `token` is then its vocabulary entry or its id.
    """

    token: str
    logprob: float
    bytes: list[int] | None


class AnswerToken(TopToken):
    """A token of an answer."""

    top_logprobs: list[TopToken]


class AnswerLogs(BaseModel):
    """The tokens of an answer, or of a piece of an answer."""

    content: list[AnswerToken]


class Answer(BaseModel):
    """The model's message."""

    role: Literal["assistant"]
    content: str


class AnswerChoice(BaseModel):
    """One of `n` answers."""

    index: int
    message: Answer
    logprobs: AnswerLogs | None
    finish_reason: Literal["stop", "length"]


class ChatAnswer(BaseModel):
    """The answer to a request for a chat completion.

    In an event of a stream, `object` is "chat.completion.chunk", and `delta` replaces `message`.
    """

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[AnswerChoice]
    usage: Usage


class _Logs(Logprobs):
    """The tokens of a piece of an answer, in the form of chat completions."""

    content: list[dict[str, Any]]


class _ChatWriter(Writer):
    """Splits the text of one answer into pieces."""

    def logs(self) -> _Logs:
        """Return lists without tokens."""
        return empty_logs(_Logs)

    def add_token(self, logs: Any, names: Spelling, token: int, measured: Measured | None) -> None:
        """Add one token and its log probabilities to `logs`."""
        assert measured is not None  # only a prompt has a token without a probability
        top = [self._entry(names, other, log) for other, log in measured.top]
        chosen = self._entry(names, token, measured.log_probability)
        logs.content.append({**chosen, "top_logprobs": top})

    def _entry(self, names: Spelling, token: int, log: float) -> dict[str, Any]:
        text = names.text_of(token)
        return {
            "token": self.name(names, token),
            "logprob": max(log, LEAST),
            "bytes": list(text.encode()) if text else None,
        }


class ChatCompletion(Completion):
    """The computation of a request for a chat completion."""

    prefix = "chatcmpl"
    kinds = ("chat.completion", "chat.completion.chunk")
    measured_bytes = 96

    def writer(self, model: Model, row: Row, body: SampledBody) -> Writer:
        """Return the object that splits an answer into pieces."""
        return _ChatWriter(model, row, body)

    def answer(self, pieces: Sequence[Choice]) -> dict[str, Any]:
        """Return the choice of an answer, given all its pieces."""
        whole = join_pieces(pieces)
        return _choice_of(whole, message={"role": "assistant", "content": whole.text})

    def opening(self) -> list[dict[str, Any]]:
        """Return one event per answer; the event names the role of the answer's message."""
        delta = {"role": "assistant", "content": ""}
        piece = {"delta": delta, "logprobs": None, "finish_reason": None}
        return [{"index": number, **piece} for number in range(len(self.rows))]

    def event(self, piece: Choice) -> dict[str, Any]:
        """Return the choice in an event of a stream."""
        return _choice_of(piece, delta={"content": piece.text})


def _choice_of(piece: Choice, **text: Any) -> dict[str, Any]:
    logs = piece.logprobs
    return {
        "index": piece.index,
        **text,
        "logprobs": {"content": logs.content} if isinstance(logs, _Logs) else None,
        "finish_reason": piece.finish_reason,
    }


EXAMPLE = {
    "messages": [{"role": "user", "content": "Where does a river end?"}],
    "max_completion_tokens": 64,
    "stream": True,
}


@router.post(
    "/v1/chat/completions",
    summary="The answer to a conversation",
    responses={200: {"model": ChatAnswer, "content": AS_EVENTS}},
    response_class=Response,
    openapi_extra=describe_body(ChatBody, EXAMPLE),
)
async def chat_completions(request: Request) -> Response:
    """Answer the last message as `model.chat` does; send one answer, or a stream of events."""
    return await complete(request, ChatBody.read(await read_json(request)), ChatCompletion)

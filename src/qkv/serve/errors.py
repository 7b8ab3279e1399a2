"""A request that is refused, and its body in the words that OpenAI's clients read."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

# What a status is called in a body's "type"; any other is a request that does not fit.
_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}


class ErrorText(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """The body of every answer that is an error."""

    error: ErrorText


_WORDS = {
    400: "The body, or the request, does not fit",
    401: "The key is missing or wrong",
    403: "A Host or an Origin that the server does not know",
    404: "No such route or model",
    405: "Not with this method",
    408: "The request took too long to arrive",
    413: "The body, or what would be answered, is too large",
    429: "Too much waits: try again after `Retry-After` seconds",
    431: "The request's line and headers are too large",
    500: "The server failed",
    503: "The server ends, or has too many connections",
}
# What any route may answer, as OpenAPI has it.
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": words} for status, words in _WORDS.items()
}


class Refused(Exception):
    """A request that is not answered as it was asked.

    Attributes:
        status: the HTTP status.
        message: what does not fit, and the way out.
        param: the part of the body that it is about.
        code: a short name for programs.
        headers: what the answer carries beside it.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = headers or {}

    def body(self) -> dict[str, Any]:
        """What the client reads.

        >>> Refused(400, "input is empty", param="input").body()["error"]["type"]
        'invalid_request_error'
        """
        kind = _KINDS.get(self.status, "invalid_request_error")
        told = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": told}


def not_finite(call: str, what: str) -> Refused:
    """That a model computed a value that is NaN or infinite, and nothing in the body is to blame.

    >>> not_finite("rerank", "the score of document 0 is").message
    'rerank: the score of document 0 is not finite: the weights or their type cannot compute this'
    """
    return Refused(500, f"{call}: {what} not finite: the weights or their type cannot compute this")

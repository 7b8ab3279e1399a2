"""Errors for refused requests, and their answers in OpenAI's format."""

from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from pydantic import BaseModel
from starlette.responses import JSONResponse

_INVALID = "invalid_request_error"
# For each status: the "type" in the answer's body, and the description in the OpenAPI schema.
_STATUSES = {
    400: (_INVALID, "The body or the request is not valid"),
    401: ("authentication_error", "The key is missing or wrong"),
    403: ("permission_error", "The server does not allow the request's Host or Origin"),
    404: ("not_found_error", "The route or model does not exist"),
    405: (_INVALID, "The route does not accept this method"),
    408: (_INVALID, "The request took too long to arrive"),
    413: (_INVALID, "The body, or the answer to it, is too large"),
    415: (_INVALID, "The body is compressed"),
    429: ("rate_limit_error", "Too many requests wait: try again after `Retry-After` seconds"),
    431: (_INVALID, "The request's line and headers are too large"),
    500: ("server_error", "The server failed"),
    503: ("server_error", "The server is shutting down, or has too many connections"),
}


class ErrorText(BaseModel):
    """The fields of an error in OpenAI's format."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """The body of every error response."""

    error: ErrorText


# The error responses of every route, for the OpenAPI schema.
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": words} for status, (_, words) in _STATUSES.items()
}


@dataclass(eq=False)
class Refused(Exception):
    """A request that the server refuses.

    Attributes:
        status: the HTTP status.
        message: the problem and its remedy.
        param: the name of the wrong key in the body.
        code: the error's short name, for programs.
        headers: headers of the answer.
    """

    status: int
    message: str
    _: KW_ONLY
    param: str | None = None
    code: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__(self.message)

    def body(self) -> dict[str, Any]:
        """Return the body of the answer.

        >>> Refused(400, "input is empty", param="input").body()["error"]["type"]
        'invalid_request_error'
        """
        kind, _ = _STATUSES.get(self.status, _STATUSES[400])
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}

    def answer(self) -> JSONResponse:
        """Return this error as an HTTP response."""
        return JSONResponse(self.body(), self.status, self.headers)


# The answer to a request during which the server failed.
FAILED = Refused(500, "the server failed: its log shows the reason")


def not_finite(route: str, value: str) -> Refused:
    """Return the error for a valid request with a NaN or infinite result.

    >>> not_finite("rerank", "the score of document 0 is").message
    'rerank: the score of document 0 is not finite: check the values and the type of the weights'
    """
    message = f"{route}: {value} not finite: check the values and the type of the weights"
    return Refused(500, message)

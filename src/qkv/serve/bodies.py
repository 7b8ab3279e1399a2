"""Bodies of requests: read as JSON, held to what they are made of, and refused in one line."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import orjson
from fastapi import Request
from pydantic import BaseModel, ConfigDict, ValidationError

from qkv.serve.errors import Refused


def described(body: type[BaseModel], example: dict[str, Any]) -> dict[str, Any]:
    """What the page of routes says of a body that is read by hand, and a good one."""
    content = {"application/json": {"schema": body.model_json_schema(), "example": example}}
    return {"requestBody": {"required": True, "content": content}}


async def read_json(request: Request) -> dict[str, Any]:
    """The object that a request's body is.

    Raises:
        Refused: 400, if it is none.
    """
    try:
        body = orjson.loads(await request.body())
    except orjson.JSONDecodeError as error:
        raise Refused(400, f"the body is not JSON: {error}") from error
    if type(body) is not dict:
        raise Refused(400, "the body is not a JSON object")
    return body


class Body(BaseModel):
    """What a request says; null is as if a key were left out, and unknown keys are ignored.

    Attributes:
        call: what is asked for, as errors name it.
        ways: what to give, for keys that take values of several kinds.
    """

    model_config = ConfigDict(strict=True)
    call: ClassVar[str]
    ways: ClassVar[dict[str, str]] = {}

    @classmethod
    def read(cls, given: dict[str, Any]) -> Self:
        """The same, checked.

        Raises:
            Refused: 400, with the key that does not fit.
        """
        try:
            return cls.model_validate({k: v for k, v in given.items() if v is not None})
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
        name = str(first["loc"][0])
        if name in cls.ways:
            way = f"give {cls.ways[name]}"
        else:
            name = ".".join(map(str, first["loc"]))
            way = str(first["msg"]).replace("Input", "it", 1)
        if first["type"] == "missing":
            found = f"is missing: give {cls.ways.get(name, 'it')}"
        else:
            found = f"is {shown(given.get(name, first['input']))}: {way}"
        raise cls.refused(name, found)

    @classmethod
    def refused(cls, name: str, said: str) -> Refused:
        """That this key of a body does not fit."""
        return Refused(400, f"{cls.call}: {name} {said}", param=name)


def shown(value: Any) -> str:
    """A value of a body as an error shows it.

    >>> shown(True), shown("a" * 50), shown({"a": []}), shown([])
    ('true', '"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa..."', 'an object', 'an empty list')
    """
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    if isinstance(value, str) and len(value) > 40:
        value = f"{value[:40]}..."
    return orjson.dumps(value).decode()

"""Read the JSON bodies of requests, and check each body against a schema."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Self

import orjson
from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from qkv.serve._refusals import Refused

_TABLE = tomllib.loads(files("qkv.serve").joinpath("keys.toml").read_text(encoding="utf-8"))
IGNORED: tuple[str, ...] = tuple(_TABLE["ignored"])  # Keys that never change an answer.
# The token ids of a text. Validation stops at the first invalid id.
Ids = Annotated[list[int], Field(min_length=1, fail_fast=True)]
_Text = Annotated[str, Field(min_length=1)]
# The valid inputs of a request for vectors, and the same in words for errors.
Inputs = Annotated[
    _Text
    | Annotated[list[_Text], Field(min_length=1, fail_fast=True)]
    | Ids
    | Annotated[list[Ids], Field(min_length=1, fail_fast=True)],
    Field(
        description="One text or several texts; or the token ids of one text or of several texts.",
        examples=["The cat sat on the mat."],
    ),
]
INPUTS = "a text, a list of texts, a list of token ids, or a list of such lists, none of them empty"


@dataclass(frozen=True)
class Refusal:
    """The rule for a request key that a route does not support.

    Attributes:
        neutral: the accepted values, which have no effect on the answer.
        way: the advice in the error message, such as "send top_n".
    """

    neutral: list[Any]
    way: str

    def accepts(self, value: Any) -> bool:
        """Return whether a value is null or in `neutral`; 1 equals 1.0, but not `true`.

        >>> refusal = Refusal([1, True], "leave it out")
        >>> [refusal.accepts(value) for value in (1, 1.0, True, None, 2, "1", False)]
        [True, True, True, True, False, False, False]
        """
        return value is None or any(
            neutral == value and isinstance(neutral, bool) is isinstance(value, bool)
            for neutral in self.neutral
        )


def refusals_of(route: str) -> dict[str, Refusal]:
    """Return the keys that a route refuses, from the route's table in keys.toml.

    >>> refusals_of("rerank")["top_k"].way
    'send top_n'
    """
    table = _TABLE[route]
    rows = [*table["refused"], *(row for shared in table["shared"] for row in _TABLE[shared])]
    return {key: Refusal(neutral, way) for keys, neutral, way in rows for key in keys.split()}


def describe_body(body: type[BaseModel], example: dict[str, Any]) -> dict[str, Any]:
    """Describe a request body for OpenAPI, with a schema and an example."""
    schema = body.model_json_schema()
    whole = _inline(schema, schema.pop("$defs", {}))
    content = {"application/json": {"schema": whole, "example": example}}
    return {"requestBody": {"required": True, "content": content}}


def _inline(schema: Any, definitions: dict[str, Any]) -> Any:
    """Replace each reference to a definition with the definition."""
    if isinstance(schema, list):
        return [_inline(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inline(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    return {key: _inline(value, definitions) for key, value in schema.items()}


async def read_json(request: Request) -> dict[str, Any]:
    """Read the body of a request, which must be a JSON object.

    Raises:
        Refused: 400, if the body is not a JSON object.
    """
    try:
        body = orjson.loads(await request.body())
    except orjson.JSONDecodeError as error:
        raise Refused(400, f"the body is not JSON: {error}") from error
    if type(body) is not dict:
        raise Refused(400, "the body is not a JSON object")
    return body


class Body(BaseModel):
    """The base class of request bodies. Unknown keys and keys with a null value are ignored.

    Attributes:
        call: the name of the route in errors and in keys.toml.
        ways: a phrase that names the valid values, for each key that accepts several types.
        refusals: the keys that the route refuses, because they would change the answer.
    """

    model_config = ConfigDict(strict=True)
    call: ClassVar[str]
    ways: ClassVar[Mapping[str, str]] = MappingProxyType({})
    refusals: ClassVar[Mapping[str, Refusal]]

    model: str = Field("", description="Any name; the server always uses its one model.")

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        cls.refusals = refusals_of(cls.call)

    @classmethod
    def read(cls, json: dict[str, Any]) -> Self:
        """Check the JSON object of a request.

        Raises:
            Refused: 400, with the name of the wrong or unsupported key.
        """
        for key in cls.refusals.keys() & json.keys():
            if not cls.refusals[key].accepts(json[key]):
                value, way = quote(json[key]), cls.refusals[key].way
                raise Refused(
                    400,
                    f"{cls.call}: {key} is {value}, which this server does not support: {way}",
                    param=key,
                    code="unsupported_parameter",
                )
        try:
            return cls.model_validate({key: v for key, v in json.items() if v is not None})
        except ValidationError as invalid:
            errors = invalid.errors(include_url=False, include_context=False)
        name = str(errors[0]["loc"][0])
        if errors[0]["type"] == "missing" and len(errors[0]["loc"]) == 1:
            raise cls.refusal(name, f"is missing; pass {cls.ways.get(name, 'it')}")
        # A key may accept several list types: report the error of the type that fits most items.
        paths = [[n for n in e["loc"] if isinstance(n, int)] for e in errors if e["loc"][0] == name]
        error = errors[paths.index(max(paths))]
        way = f": {error['msg'].replace('Input', 'it')}"
        if name in cls.ways:
            way = f"; pass {cls.ways[name]}"
        item = name + "".join(f"[{number}]" for number in max(paths))
        raise cls.refusal(item, f"is {quote(error['input'])}{way}")

    @classmethod
    def refusal(cls, path: str, problem: str) -> Refused:
        """Return the error for a key such as `input`, or for a list item such as `input[1]`."""
        return Refused(400, f"{cls.call}: {path} {problem}", param=path.partition("[")[0])


class PromptUsage(BaseModel):
    """The number of tokens in the request's texts."""

    prompt_tokens: int
    total_tokens: int


def quote(value: Any) -> str:
    """Return a short text for a value of a body, to quote in errors.

    >>> quote(True), quote("a" * 50), quote({"a": []}), quote([])
    ('true', '"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa..."', 'an object', 'an empty list')
    """
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    if isinstance(value, str) and len(value) > 40:
        value = f"{value[:40]}..."
    return orjson.dumps(value).decode()

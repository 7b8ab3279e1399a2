"""Tests of ten thousand broken request bodies: each is answered, and none harms the server."""

import http.client
import json
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qkv
from models.small_models import CONFIGS, write_small
from models.tasks.test_chat import TEMPLATE

from .conftest import Served, serve

SEED = 13
CONNECTIONS = 4

# Texts to put in place of the values in a body's JSON; some of these texts are not valid JSON.
ODD = [
    *("null", "true", "false", "0", "-1", "1", "-0", "-0.0", "0.5", "1e2", "1E400", "-1e999"),
    "1e-999",
    *("2147483648", "9223372036854775807", "9223372036854775808", "18446744073709551616"),
    *("1" * 400, "9" * 5000, "0." + "3" * 3000, "NaN", "Infinity", "-Infinity", "nan", "0x10"),
    *("01", "1.", ".5", "+1", "1_000", "1e", "--1", "undefined", "None", "True", "''", "'a'"),
    *('""', '" "', '"a"', '"\\u0000"', '"\\ud800"', '"\\udc00\\ud800"', '"\\ud83d\\ude00"'),
    *('"\\x41"', '"\\u12"', '"\t"', '"\n"', '"unclosed', '"%s%n"', '"../../etc/passwd"'),
    *('"float "', '"BASE64"', json.dumps("a" * 20_000), json.dumps("字" * 3000)),
    *("[]", "[[]]", "[[[]]]", "[null]", "[true]", "[0.5]", "[1, 2.5]", '["a", 1]', "[[1], 1]"),
    *("{}", '{"a": 1}', '{"": null}', "[1, [2]]", "[-1]", "[99999999]", '[["a"]]', "[1e2]"),
    "[" * 100 + "]" * 100,
    "[" * 5000 + "]" * 5000,
    '{"a":' * 300 + "1" + "}" * 300,
]
ENCODINGS = ["utf-16", "utf-16-le", "utf-32", "utf-8-sig", "latin-1", "utf-7", "cp037"]

GOOD: dict[str, list[dict[str, Any]]] = {
    "/v1/embeddings": [
        {"input": "the cat sat", "model": "m", "encoding_format": "float", "dimensions": 3},
        {"input": ["the cat", "sat é"], "encoding_format": "base64", "user": "u"},
        {"input": [1, 2, 3]},
        {"input": [[1, 2], [3]], "dimensions": None},
    ],
    "/v1/rerank": [{"query": "the cat", "documents": ["sat", "mat"], "top_n": 1}],
    "/embed": [
        {"inputs": ["the cat", "sat é"], "normalize": False, "truncate": True, "dimensions": 3},
        {"inputs": [[1, 2], [3]]},
    ],
    "/rerank": [{"query": "the cat", "texts": ["sat", "mat"], "raw_scores": True}],
    "/tokenize": [{"inputs": ["the cat", "sat é"], "add_special_tokens": False}],
    "/v1/trace": [
        {"input": "the cat sat", "layers": [0], "heads": [0, 1]},
        {"input": "the cat sat", "top_k": 2},
        {
            "input": "the cat sat",
            "edits": [{"op": "mask", "query": 1, "key": 0, "layer": 0}, {"op": "causal"}],
            "include": ["text", "resid"],
            "at": [1],
            "inside": [0],
        },
    ],
    "/v1/completions": [
        {"prompt": "t3 t4", "max_tokens": 2, "temperature": 0.5, "seed": 1, "top_p": 0.9},
        {"prompt": ["t3", "t4 t5"], "max_tokens": 1, "stop": ["t6"], "logprobs": 2, "n": 1},
        {"prompt": [3, 4], "max_tokens": 2, "stream": True, "echo": False},
    ],
    "/v1/chat/completions": [
        {"messages": [{"role": "user", "content": "t3 t4"}], "max_tokens": 2, "seed": 1},
        {
            "messages": [{"role": "user", "content": [{"type": "text", "text": "t3"}]}],
            "max_completion_tokens": 2,
            "logprobs": True,
            "top_logprobs": 2,
            "stream": True,
        },
    ],
}


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value in a body, starting with the body itself."""
    yield place
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*place, key))


def with_odd(value: Any, place: tuple[Any, ...], odd: str) -> str:
    """Return a body as JSON, with `odd` in place of one value."""
    if not place:
        return odd
    changed = deepcopy(value)
    reduce(getitem, place[:-1], changed)[place[-1]] = mark = "in place of this"
    return json.dumps(changed).replace(json.dumps(mark), odd)


def of_odd_values(rng: random.Random, good: dict[str, Any]) -> bytes:
    text = with_odd(good, rng.choice(list(places(good))), rng.choice(ODD))
    return text.encode("utf-8", "surrogatepass")


def of_odd_keys(rng: random.Random, good: dict[str, Any]) -> bytes:
    """Repeat, omit or rename a key, or add very many keys."""
    items = [(json.dumps(key), json.dumps(value)) for key, value in good.items()]
    kind = rng.randrange(4)
    if kind == 0:
        items.insert(rng.randrange(len(items) + 1), (rng.choice(items)[0], rng.choice(ODD)))
    elif kind == 1:
        del items[rng.randrange(len(items))]
    elif kind == 2:
        number = rng.randrange(len(items))
        key = rng.choice(
            ["Input", "input\\u0000", "", "__proto__", "__class__", "\\ud800", "in\\put"]
        )
        items[number] = (f'"{key}"', items[number][1])
    else:
        items += [(f'"k{number}"', rng.choice(ODD[:5])) for number in range(rng.choice([10, 2000]))]
    return ("{" + ",".join(f"{key}:{value}" for key, value in items) + "}").encode()


def of_odd_bytes(rng: random.Random, good: dict[str, Any]) -> bytes:
    """Cut the body short, double it, or change, insert or remove bytes."""
    body = bytearray(json.dumps(good, ensure_ascii=rng.random() < 0.5).encode())
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        at, kind = rng.randrange(len(body) + 1), rng.randrange(6)
        if kind == 0:
            body = body[:at]
        elif kind == 1:
            body[at:at] = rng.randbytes(rng.choice([1, 1, 3]))
        elif kind == 2:
            body[at : at + 1] = bytes([rng.choice(b'{}[]:,"\\ \x00\x1f\x7f\xff\xc0\xed')])
        elif kind == 3:
            del body[at : at + rng.choice([1, 2, 8])]
        elif kind == 4:
            body += rng.choice([b"x", b"{}", b",", b"\x00", b"//", b"\n\n", bytes(body)])
        else:
            body[0:0] = rng.choice([b"\xef\xbb\xbf", b"\x00", b" \n", b")]}'", b"x=", b"--b\r\n"])
    return bytes(body)


def of_odd_encodings(rng: random.Random, good: dict[str, Any]) -> bytes:
    return json.dumps(good, ensure_ascii=False).encode(rng.choice(ENCODINGS), "replace")


def of_nothing_known(rng: random.Random, good: dict[str, Any]) -> bytes:
    kind = rng.randrange(4)
    if kind == 0:
        return rng.randbytes(rng.choice([0, 1, 10, 1000]))
    if kind == 1:
        return rng.choice(ODD).encode("utf-8", "surrogatepass")
    if kind == 2:
        open_, close = rng.choice([("[", "]"), ('{"input":', "}"), ('[{"a":', "}]")])
        deep = rng.choice([10, 255, 1023, 1025, 20_000])
        return (open_ * deep + "1" + close * rng.choice([deep, deep - 1, 0])).encode()
    return "".join(rng.choice('{}[]:,"0123456789.eE+-tfn\\u ') for _ in range(60)).encode()


MAKERS: list[Callable[[random.Random, dict[str, Any]], bytes]] = [
    *([of_odd_values] * 5),
    *([of_odd_keys] * 2),
    *([of_odd_bytes] * 3),
    of_odd_encodings,
    of_nothing_known,
]


def case(path: str, number: int) -> tuple[bytes, dict[str, str]]:
    """Return the body with this number, and the headers to send with the body."""
    rng = random.Random(f"{SEED} {path} {number}")
    body = rng.choice(MAKERS)(rng, rng.choice(GOOD[path]))
    kind = rng.choice(["application/json"] * 9 + ["application/json; charset=utf-16"])
    return body, {"content-type": kind}


def is_json(body: bytes) -> bool:
    """Return whether the standard library, which is less strict than JSON, can read a body."""
    try:
        json.loads(body.decode("utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError):
        return False
    except (RecursionError, ValueError):  # nested too deeply, or a number with too many digits
        return True
    return True


def wrong_with(body: bytes, status: int, answer: bytes) -> str | None:
    """Return a description of what is wrong with an answer to a body, or None."""
    if status not in (200, 400, 413):
        return f"the status is {status}"
    if status == 200:
        if not is_json(body):
            return "what is no JSON was answered"
        if answer.startswith(b"data: "):
            return None if answer.endswith(b"data: [DONE]\n\n") else "the stream does not end"
        return None if _finite(answer) else "a number is not finite"
    error = json.loads(answer)["error"]
    if set(error) != {"message", "type", "param", "code"}:
        return "the error has other keys"
    if not isinstance(error["message"], str) or not 5 < len(error["message"]) < 500:
        return "the error's message is none"
    if error["type"] != "invalid_request_error":
        return "the error's type is another"
    return None


def _finite(answer: bytes) -> bool:
    """Return whether all numbers of an answer are finite."""
    numbers: list[float] = []
    json.loads(
        answer,
        parse_float=lambda text: numbers.append(float(text)),
        parse_constant=lambda text: numbers.append(math.nan),
    )
    return all(map(math.isfinite, numbers))


def send_all(server: Served, path: str, count: int, model: qkv.models.Model) -> None:
    """Send the bodies over a few connections in turn, and a good body after every hundred."""
    connections = [
        http.client.HTTPConnection("127.0.0.1", server.port, timeout=60) for _ in range(CONNECTIONS)
    ]
    expected = model.encode("the cat sat")
    answered = Counter[int]()
    try:
        for number in range(count):
            connection = connections[number % CONNECTIONS]
            body, headers = case(path, number)
            status, answer = post(connection, path, body, headers)
            wrong = wrong_with(body, status, answer)
            said = f"{path}, seed {SEED}, number {number}: {wrong}"
            assert wrong is None, f"{said}\nsent: {body[:2000]!r}\nanswer: {answer[:500]!r}"
            answered[status] += 1
            if number % 100 == 99:
                status, answer = post(connection, "/v1/embeddings", b'{"input": "the cat sat"}', {})
                assert status == 200, (
                    f"{said}: then a good one is answered {status}: {answer!r:.500}"
                )
                [found] = json.loads(answer)["data"]
                assert np.abs(found["embedding"] - expected).max() < 1e-6, said
    finally:
        for connection in connections:
            connection.close()
    print(path, dict(answered))
    assert answered[400] > count / 3


def post(
    connection: http.client.HTTPConnection, path: str, body: bytes, headers: dict[str, str]
) -> tuple[int, bytes]:
    """Send a body, and return the status and the content of the answer."""
    connection.request("POST", path, body, {"content-type": "application/json"} | headers)
    response = connection.getresponse()
    return response.status, response.read()


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Path]]:
    """A server whose model, a small decoder, supports all routes but rerank; the model's folder."""
    folder = write_small(tmp_path_factory.mktemp("decoder"), CONFIGS["gpt2"])
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    with serve("--model", str(folder)) as server:
        yield server, folder


@pytest.mark.parametrize(
    ("path", "count"),
    [
        ("/v1/embeddings", 4000),
        ("/v1/completions", 3000),
        ("/v1/chat/completions", 1000),
        ("/v1/trace", 2000),
        ("/v1/rerank", 1000),
        ("/embed", 1000),
        ("/rerank", 500),
        ("/tokenize", 1000),
    ],
)
def test_each_body_is_answered(decoder: tuple[Served, Path], path: str, count: int) -> None:
    server, folder = decoder
    send_all(server, path, count, qkv.load(folder))


def test_a_body_is_the_same_each_time() -> None:
    for path in GOOD:
        assert [case(path, number) for number in range(50)] == [
            case(path, number) for number in range(50)
        ]

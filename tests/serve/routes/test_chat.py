"""Tests of `POST /v1/chat/completions`: answers to OpenAI's client, against `model.chat`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from starlette.testclient import TestClient

import qkv
from models.decoders import EOS, POSITIONS, gpt2, writer
from models.tasks.test_chat import ASKED, PROMPT, with_template

from ..conftest import Inside, app_client, inside, refused
from .test_completions import OPTIONS, ask_together

TALK = [
    {"role": "system", "content": "briefly"},
    {"role": "user", "content": "the cat"},
    {"role": "assistant", "content": "sat"},
    {"role": "user", "content": "so"},
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> qkv.Model:
    """A small decoder with a chat template that never ends a text by itself."""
    folder = tmp_path_factory.mktemp("decoder")
    return with_template(gpt2(folder, seed=1, eos_token_id=None))


@pytest.fixture(scope="module")
def server(model: qkv.Model) -> Iterator[Inside]:
    with inside(model) as found:
        yield found


@pytest.fixture(scope="module")
def client(server: Inside) -> Iterator[openai.OpenAI]:
    url = f"http://127.0.0.1:{server.port}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as found:
        yield found


def post(client: TestClient, **body: Any) -> httpx.Response:
    return client.post("/v1/chat/completions", json={"messages": ASKED, **body})


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("limit", ["max_tokens", "max_completion_tokens"])
def test_answers_equal_those_of_chat(
    client: openai.OpenAI, model: qkv.Model, limit: str, options: dict[str, Any]
) -> None:
    for messages in (ASKED, TALK):
        expected = model.chat(messages, max_new_tokens=20, **options)
        asked = {"model": "any", "messages": messages, limit: 20, **options}
        answer = client.chat.completions.create(**asked)
        [choice] = answer.choices
        assert choice.message.content == expected
        assert choice.message.role == "assistant"
        assert choice.finish_reason == expected.finish_reason
        assert (answer.object, answer.model) == ("chat.completion", model.name)
        assert answer.usage.completion_tokens == len(expected.ids)
        read = model.tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        assert answer.usage.prompt_tokens == len(read)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_stream_has_the_same_text_in_pieces(
    client: openai.OpenAI, model: qkv.Model, options: dict[str, Any]
) -> None:
    expected = model.chat(TALK, max_new_tokens=20, **options)
    asked = {"model": "any", "messages": TALK, "max_tokens": 20, "stream": True, **options}
    counts = {"stream_options": {"include_usage": True}}
    *pieces, last = client.chat.completions.create(**asked, **counts)
    assert {piece.object for piece in pieces} == {"chat.completion.chunk"}
    deltas = [piece.choices[0].delta for piece in pieces]
    assert [delta.role for delta in deltas] == ["assistant"] + [None] * (len(deltas) - 1)
    assert "".join(delta.content for delta in deltas) == expected
    reasons = [piece.choices[0].finish_reason for piece in pieces]
    assert reasons == [None] * (len(pieces) - 1) + [expected.finish_reason]
    assert not last.choices
    assert last.usage.completion_tokens == len(expected.ids)
    assert not any(piece.usage for piece in client.chat.completions.create(**asked))


def test_several_answers_to_one_conversation(client: openai.OpenAI, model: qkv.Model) -> None:
    asked = {"model": "", "messages": ASKED, "max_tokens": 12, "n": 3, "seed": 5}
    answer = client.chat.completions.create(**asked)
    found = [choice.message.content for choice in answer.choices]
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len(set(found)) == 3
    assert found[0] == model.chat(ASKED, max_new_tokens=12, temperature=1.0, seed=5)
    streamed = {0: "", 1: "", 2: ""}
    for piece in client.chat.completions.create(**asked, stream=True):
        streamed[piece.choices[0].index] += piece.choices[0].delta.content or ""
    assert [*streamed.values()] == found


def test_log_probabilities_are_those_of_a_trace(client: openai.OpenAI, model: qkv.Model) -> None:
    expected = model.chat(ASKED, max_new_tokens=12, trace=True)
    asked = {"model": "", "messages": ASKED, "max_tokens": 12, "temperature": 0, "logprobs": True}
    for top in (None, 0, 3, 20):
        more = {} if top is None else {"top_logprobs": top}
        [choice] = client.chat.completions.create(**asked, **more).choices
        tokens = choice.logprobs.content
        found = [token.logprob for token in tokens]
        np.testing.assert_allclose(found, np.log(expected.probabilities), atol=1e-5)
        for token in tokens:
            assert len(token.top_logprobs) == (top or 0)
            logs = [other.logprob for other in token.top_logprobs]
            assert logs == sorted(logs, reverse=True)
            assert not top or token.top_logprobs[0].token == token.token
        pieces = client.chat.completions.create(**asked, **more, stream=True)
        parts = [piece.choices[0].logprobs for piece in pieces]
        assert [token for part in parts if part for token in part.content] == tokens


def test_words_arrive_one_by_one_with_their_tokens(tmp_path: Path) -> None:
    text = "sat on the mät"
    model = with_template(writer(tmp_path, PROMPT, text))
    asked = {"model": "", "messages": ASKED, "temperature": 0, "logprobs": True}
    with inside(model) as server:
        url = f"http://127.0.0.1:{server.port}/v1"
        with openai.OpenAI(base_url=url, api_key="none") as client:
            [choice] = client.chat.completions.create(**asked).choices
            pieces = [
                piece.choices[0] for piece in client.chat.completions.create(**asked, stream=True)
            ]
    assert (choice.message.content, choice.finish_reason) == (text, "stop")
    words = [piece.delta.content for piece in pieces]
    assert words == ["", "sat", " on", " the", " mät"]
    for piece in pieces[1:-1]:
        assert "".join(token.token for token in piece.logprobs.content) == piece.delta.content
    *tokens, last = choice.logprobs.content
    assert (last.token, last.bytes) == (model.tokenizer.token(EOS), None)
    half, other = (token for token in tokens if token.bytes is None)  # the two bytes of "ä"
    assert tokens.index(other) == tokens.index(half) + 1
    assert b"".join(bytes(token.bytes or []) for token in tokens).decode() == "sat on the mt"


def test_without_a_limit_an_answer_may_fill_the_model(model: qkv.Model) -> None:
    read = len(model.tokenizer.apply_chat_template(ASKED, add_generation_prompt=True))
    with app_client(model) as client:
        assert post(client).json()["usage"]["total_tokens"] == POSITIONS
    with app_client(model, new_tokens=7) as client:
        assert post(client).json()["usage"]["total_tokens"] == read + 7
        for key in ("max_tokens", "max_completion_tokens"):
            refused(post(client, **{key: 8}), key)
            assert post(client, **{key: 7}).json()["usage"]["completion_tokens"] == 7


def test_parts_and_developers_are_read(client: openai.OpenAI, model: qkv.Model) -> None:
    parts = [{"type": "text", "text": "the"}, {"type": "text", "text": "cat"}]
    asked = [{"role": "developer", "content": "briefly"}, {"role": "user", "content": parts}]
    same = [{"role": "system", "content": "briefly"}, {"role": "user", "content": "the\ncat"}]
    answer = client.chat.completions.create(
        model="", messages=asked, max_tokens=9, temperature=0, tools=[], tool_choice="none"
    )
    assert answer.choices[0].message.content == model.chat(same, max_new_tokens=9)


IMAGE = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"messages": []}, "messages", "is an empty list"),
    ({"messages": "hi"}, "messages", "pass a list of messages"),
    ({"messages": [{"role": "user"}]}, "messages", "messages[0] is an object; pass a list"),
    ({"messages": [*ASKED, {"role": "tool", "content": "a"}]}, "messages", 'messages[1] is "tool"'),
    ({"messages": [{"role": "user", "content": IMAGE}]}, "messages", "images and audio are not"),
    ({"messages": [{**ASKED[0], "tool_calls": [TOOL]}]}, "messages", "tools, images"),
    ({"tools": [TOOL]}, "tools", "describe the functions in a message"),
    ({"response_format": {"type": "json_object"}}, "response_format", "check the text yourself"),
    ({"reasoning_effort": "high"}, "reasoning_effort", "leave it out"),
    ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens", "pass one"),
    ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
    ({"max_tokens": 4000}, "max_tokens", "set max_tokens to at most"),
    ({"max_completion_tokens": 4000}, "max_completion_tokens", "set max_completion_tokens to"),
    ({"top_logprobs": 2}, "top_logprobs", 'also send "logprobs": true'),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "less than or equal to 20"),
    ({"n": 0}, "n", "greater than or equal to 1"),
    ({"stop": [""]}, "stop", "has an empty text"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "only for streams"),
    ({"messages": [{"role": "user", "content": "a " * 900}]}, "messages", "no room is left"),
]


@pytest.mark.parametrize(("body", "key", "words"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_request_is_refused(
    model: qkv.Model, body: dict[str, Any], key: str, words: str
) -> None:
    with app_client(model) as client:
        assert refused(post(client, **body), key, words).startswith("chat/completions: ")


def test_models_that_cannot_chat_are_refused(tmp_path: Path) -> None:
    bare = gpt2(tmp_path / "bare", seed=1)
    refusing = gpt2(tmp_path / "refusing", seed=1)
    with_template(refusing, "{{ raise_exception('no such role') }}")
    for model, code, words in (
        (qkv.load("random"), "model_does_not_generate", "ask /v1/embeddings"),
        (bare, "model_does_not_chat", "bare has no chat template"),
        (refusing, None, "the chat template refuses the messages: no such role"),
    ):
        with app_client(model) as client:
            error = post(client).json()["error"]
            assert error["code"] == code
            assert words in error["message"]


def test_conversations_share_forward_passes_with_completions(
    model: qkv.Model, passes: list[list[int]]
) -> None:
    asked: list[Any] = [ASKED, TALK, "the dog", TALK[1:], "a"]
    expected = [
        model.generate(one, max_new_tokens=9)
        if isinstance(one, str)
        else model.chat(one, max_new_tokens=9)
        for one in asked
    ]
    plain: dict[str, Any] = {"model": "", "temperature": 0, "max_tokens": 9}
    with inside(model) as server:

        async def ask(client: openai.AsyncOpenAI, one: Any) -> str | None:
            if isinstance(one, str):
                answer = await client.completions.create(prompt=one, **plain)
                return answer.choices[0].text
            answer = await client.chat.completions.create(messages=one, **plain)
            return answer.choices[0].message.content

        passes.clear()
        assert ask_together(server, ask, asked) == expected
    # every new token but the first of each request
    assert sum(map(sum, passes)) == 5 * 8
    assert max(map(len, passes)) >= 4
    assert len(passes) < 20

"""Tests of `POST /v1/completions`: answers to OpenAI's client, against `model.generate`."""

import asyncio
import json
import socket
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from starlette.testclient import TestClient

import qkv
from models.decoders import EOS, POSITIONS, TOKENIZER, gpt2, ids_of, writer
from models.small_models import CONFIGS, write_small
from qkv.models.network.transformer import Transformer
from qkv.serve.routes._completions import (
    TOGETHER,
    Choice,
    Completion,
    CompletionsBody,
    Logprobs,
    join_pieces,
)
from qkv.serve.settings import Settings

from ..conftest import Inside, Served, app_client, inside, raw_request, refused, serve, wait_until

PROMPTS = ["the cat", "a", "the  dog sat"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small decoder that never ends a text by itself."""
    found = tmp_path_factory.mktemp("decoder")
    gpt2(found, seed=1, eos_token_id=None)
    return found


@pytest.fixture(scope="module")
def model(folder: Path) -> qkv.Model:
    return qkv.load(folder)


@pytest.fixture(scope="module")
def decoder(folder: Path) -> Iterator[Served]:
    with serve("--model", folder) as server:
        yield server


@pytest.fixture(scope="module")
def client(decoder: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{decoder.url}/v1", api_key="none", max_retries=0) as found:
        yield found


@pytest.fixture(scope="module")
def here(model: qkv.Model) -> Iterator[TestClient]:
    """A client of an app that runs in the test process.

    The app serves the same model as the fixture `decoder`, but with small limits.
    """
    with app_client(model, new_tokens=60, inputs=8, tokens=200, batch_tokens=64) as found:
        yield found


def post(client: TestClient | httpx.Client, **body: Any) -> httpx.Response:
    return client.post("/v1/completions", json=body)


def texts(answer: Any) -> list[str]:
    """Return the texts of an answer, and check that they are in order."""
    assert [choice.index for choice in answer.choices] == list(range(len(answer.choices)))
    return [choice.text for choice in answer.choices]


def streamed(pieces: Any) -> tuple[dict[int, str], dict[int, str], Any]:
    """Return the texts of a stream by index, their finish reasons, and the usage of tokens."""
    found: dict[int, str] = {}
    reasons: dict[int, str] = {}
    usage = None
    for piece in pieces:
        assert piece.object == "text_completion"
        usage = piece.usage or usage
        for choice in piece.choices:
            assert choice.index not in reasons
            found[choice.index] = found.get(choice.index, "") + choice.text
            if choice.finish_reason:
                reasons[choice.index] = choice.finish_reason
    return found, reasons, usage


OPTIONS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0.8, "seed": 5},
    {"temperature": 1.5, "seed": 0, "top_p": 0.7},
    {"temperature": 0, "stop": ["\u00a2"]},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("prompt", [PROMPTS[0], PROMPTS, [ids_of(p) for p in PROMPTS]], ids=type)
def test_completions_equal_those_of_generate(
    client: openai.OpenAI, model: qkv.Model, prompt: Any, options: dict[str, Any]
) -> None:
    expected = model.generate(prompt, max_new_tokens=20, **options)
    expected = [expected] if isinstance(prompt, str) else expected
    asked = {"model": "any", "prompt": prompt, "max_tokens": 20, **options}
    answer = client.completions.create(**asked)
    assert texts(answer) == expected
    assert [choice.finish_reason for choice in answer.choices] == ["length"] * len(expected)
    read = sum(len(ids_of(p)) for p in ([prompt] if isinstance(prompt, str) else PROMPTS))
    assert answer.usage.prompt_tokens == read
    assert answer.usage.completion_tokens == sum(len(one.ids) for one in expected)
    assert answer.usage.total_tokens == read + answer.usage.completion_tokens
    assert answer.model == model.name
    pieces = client.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    found, reasons, usage = streamed(pieces)
    assert [found.get(number, "") for number in range(len(expected))] == expected
    assert reasons == dict.fromkeys(range(len(expected)), "length")
    assert usage == answer.usage


def test_ids_alone_are_one_prompt_and_temperature_0_takes_a_seed(
    client: openai.OpenAI, model: qkv.Model
) -> None:
    ids, drawing = ids_of(PROMPTS[2]), {"seed": 3, "top_p": 0.5}  # as many clients always send
    answer = client.completions.create(model="", prompt=ids, temperature=0, max_tokens=7, **drawing)
    assert texts(answer) == [model.generate(ids, max_new_tokens=7)]


def test_a_top_p_of_0_takes_the_likeliest_token(client: openai.OpenAI) -> None:
    def text(**options: Any) -> str:
        made = client.completions.create(model="", prompt=PROMPTS[0], max_tokens=9, **options)
        return made.choices[0].text

    assert text(top_p=0, temperature=2) == text(temperature=0)


@pytest.mark.parametrize("seed", [-1, -(2**63), 2**63 - 1, 2**64 - 1])
def test_every_seed_of_64_bits_is_valid(client: openai.OpenAI, seed: int) -> None:
    asked = {"model": "", "prompt": PROMPTS[0], "max_tokens": 9, "temperature": 2}
    first, again, other = (
        client.completions.create(**asked, seed=number).choices[0].text
        for number in (seed, seed, seed ^ 1)
    )
    assert first == again != other


def test_each_prompt_is_continued_n_times(client: openai.OpenAI, model: qkv.Model) -> None:
    prompts = [PROMPTS[0], PROMPTS[0], PROMPTS[1], PROMPTS[1]]
    expected = model.generate(prompts, max_new_tokens=9, temperature=1, seed=3)
    asked = {"model": "", "prompt": PROMPTS[:2], "n": 2, "max_tokens": 9, "seed": 3}
    answer = client.completions.create(**asked, best_of=2)
    assert texts(answer) == expected
    assert len(set(expected)) == 4
    assert answer.usage.prompt_tokens == sum(len(ids_of(p)) for p in PROMPTS[:2])
    found, _, _ = streamed(client.completions.create(**asked, stream=True))
    assert [found[number] for number in range(4)] == expected


def test_defaults_are_those_of_openai(here: TestClient, model: qkv.Model) -> None:
    first, second = (post(here, prompt="the cat").json() for _ in range(2))
    assert first["usage"] == {"prompt_tokens": 5, "completion_tokens": 16, "total_tokens": 21}
    assert first["choices"][0]["text"] != second["choices"][0]["text"]  # without a fixed seed
    assert first["id"] != second["id"]
    assert first["choices"][0]["logprobs"] is None
    null = dict.fromkeys(["max_tokens", "temperature", "stop", "n", "echo", "logit_bias", "user"])
    assert post(here, prompt="the cat", **null, unknown=[{}]).json()["usage"] == first["usage"]
    full = post(here, prompt=[1] * (POSITIONS - 3)).json()
    assert full["usage"]["completion_tokens"] == 3  # as many tokens as fit


def test_rows_that_do_not_fit_together_come_one_after_the_other(
    here: TestClient, model: qkv.Model
) -> None:
    prompts = ["the cat", "a", "the dog", "b", "cat"]  # at most 64 tokens at once
    answer = post(here, prompt=prompts, max_tokens=15, temperature=0.9, seed=1).json()
    expected = model.generate(prompts, max_new_tokens=15, temperature=0.9, seed=1)
    assert [choice["text"] for choice in answer["choices"]] == expected
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("stream", [False, True])
def test_a_completion_ends_at_a_stop_string_or_end_token(tmp_path: Path, stream: bool) -> None:
    model = writer(tmp_path, "Say: ", "the cat, the dog")
    with app_client(model) as client:
        for stop, text, reason, count in (
            (None, "the cat, the dog", "stop", len(ids_of("the cat, the dog")) + 1),
            (" dog", "the cat, the", "stop", len(ids_of("the cat, the dog"))),
            (["zebra", ","], "the cat", "stop", len(ids_of("the cat,"))),
        ):
            asked = {"prompt": "Say: ", "temperature": 0, "max_tokens": 40, "stop": stop}
            asked |= {"stream_options": {"include_usage": True}} if stream else {}
            answers, choices = parts_of(post(client, **asked, stream=stream))
            assert "".join(choice["text"] for choice in choices) == text
            assert [c["finish_reason"] for c in choices][-1] == reason
            assert answers[-1]["usage"]["completion_tokens"] == count


@pytest.mark.parametrize("stream", [False, True])
def test_rules_of_generation_config_apply(tmp_path: Path, stream: bool) -> None:
    rules = {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "suppress_tokens": [5, 6]}
    model = gpt2(tmp_path / "ruled", seed=2, generation=rules)
    expected = str(model.generate("the the the", max_new_tokens=15))
    plain = gpt2(tmp_path / "plain", seed=2)
    assert expected != plain.generate("the the the", max_new_tokens=15)
    asked = {"prompt": "the the the", "temperature": 0, "max_tokens": 15, "stream": stream}
    with app_client(model) as client:
        _, choices = parts_of(post(client, **asked))
    assert "".join(choice["text"] for choice in choices) == expected


def events(response: httpx.Response) -> list[Any]:
    """Return the data of a stream's events, without the last event."""
    assert response.headers["content-type"].startswith("text/event-stream")
    parts = response.text.split("\n\n")
    assert parts[-2:] == ["data: [DONE]", ""]
    assert all(part.startswith("data: {") for part in parts[:-2])
    return [json.loads(part.removeprefix("data: ")) for part in parts[:-2]]


def parts_of(response: httpx.Response) -> tuple[list[Any], list[Any]]:
    """Return the events of a stream, or the one answer, and the choices in them."""
    stream = json.loads(response.request.content)["stream"]
    answers = events(response) if stream else [response.json()]
    return answers, [choice for answer in answers for choice in answer["choices"]]


# logprobs and echo


def logs_of(model: qkv.Model, ids: list[int]) -> np.ndarray:
    """Return the log probabilities after each token, from a forward pass of the whole text."""
    logits = model([ids]).logits[0].astype(np.float64)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("top", [0, 1, 5])
def test_log_probabilities_are_the_models_own(
    here: TestClient, model: qkv.Model, top: int, echo: bool, stream: bool
) -> None:
    prompts = ["the cat", "a the"]
    asked = {"prompt": prompts, "max_tokens": 12, "seed": 2, "temperature": 1.3}
    _, every = parts_of(post(here, **asked, logprobs=top, echo=echo, stream=stream))
    generated = model.generate(prompts, max_new_tokens=12, seed=2, temperature=1.3)
    for number, (prompt, new) in enumerate(zip(prompts, generated, strict=True)):
        choices = [choice for choice in every if choice["index"] == number]
        text = "".join(choice["text"] for choice in choices)
        assert text == (prompt if echo else "") + new
        found = {
            name: [one for choice in choices for one in choice["logprobs"][name]]
            for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")
        }
        ids = ids_of(prompt) + new.ids
        logs, skipped = logs_of(model, ids), 0 if echo else len(ids_of(prompt))
        assert {len(values) for values in found.values()} == {len(ids) - skipped}
        offsets = found["text_offset"]
        assert offsets == sorted(offsets)
        for position, name, log, tops in zip(
            range(skipped, len(ids)),
            *(found[name] for name in ("tokens", "token_logprobs", "top_logprobs")),
            strict=True,
        ):
            if not position:
                assert log is tops is None
                continue
            assert log == pytest.approx(logs[position - 1, ids[position]], abs=1e-5)
            assert tops[name] == log
            likeliest = np.sort(logs[position - 1])[::-1][:top]
            np.testing.assert_allclose([*tops.values()][:top], likeliest, atol=1e-5)
            assert len(tops) - top in (0, 1)
        for name, at in zip(found["tokens"], offsets, strict=True):  # the token's start, or earlier
            spelled = TOKENIZER.token_to_id(name) is None or name.isascii()
            if spelled:  # other tokens are bytes that are not a whole character
                assert name in text[at:]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("logprobs", [None, 1])
def test_a_character_that_the_prompt_begins_is_in_the_completion(
    tmp_path: Path, logprobs: int | None, stream: bool
) -> None:
    text = "a\u4e16\U0001f389b"  # the bytes of the characters are at 0, 1 to 3, 4 to 7 and 8
    model, whole = writer(tmp_path, "Say: ", text), ids_of("Say: " + text)
    with app_client(model) as client:
        for count, begin in ((1, 1), (2, 1), (3, 1), (4, 2), (5, 2), (6, 2), (7, 2), (8, 3)):
            for echo in (False, True):
                asked = {"prompt": whole[: 5 + count], "temperature": 0, "logprobs": logprobs}
                _, choices = parts_of(post(client, **asked, stream=stream, echo=echo))
                found = "".join(choice["text"] for choice in choices)
                assert found == "Say: " * echo + text[0 if echo else begin :]
                if logprobs:
                    offsets = [at for choice in choices for at in choice["logprobs"]["text_offset"]]
                    new = [number for number, mark in enumerate(text) for _ in mark.encode()][
                        count:
                    ]
                    begins = 5 if echo else -begin
                    assert offsets[-1 - len(new) : -1] == [begins + number for number in new]


def test_names_of_tokens_add_up_to_the_text(tmp_path: Path) -> None:
    text = "the cat, na\u00efve the"
    model = writer(tmp_path, "Say: ", text)
    with app_client(model) as client:
        answer = post(client, prompt="Say: ", temperature=0, max_tokens=40, logprobs=0).json()
    found = answer["choices"][0]["logprobs"]
    names = ["the", " ", "c", "a", "t", ",", " ", "n", "a", "\u00c3", "\u00af", "v", "e", " the"]
    assert found["tokens"] == [*names, TOKENIZER.id_to_token(EOS)]
    assert found["text_offset"] == [0, 3, 4, 5, 6, 7, 8, 9, 10, 11, 11, 12, 13, 14, 18]


def test_a_prompt_alone_is_measured(here: TestClient, model: qkv.Model) -> None:
    answer = post(here, prompt="the cat", max_tokens=0, echo=True, logprobs=1).json()
    [choice] = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("the cat", "length")
    ids = ids_of("the cat")
    expected = logs_of(model, ids)[range(len(ids) - 1), ids[1:]]
    np.testing.assert_allclose(choice["logprobs"]["token_logprobs"][1:], expected, atol=1e-5)
    assert answer["usage"] == {"prompt_tokens": 5, "completion_tokens": 0, "total_tokens": 5}
    plain = post(here, prompt="the cat", max_tokens=0, echo=True).json()["choices"][0]
    assert (plain["text"], plain["logprobs"]) == ("the cat", None)
    whole = post(here, prompt=[1] * POSITIONS, max_tokens=0, echo=True, logprobs=0)
    assert len(whole.json()["choices"][0]["logprobs"]["tokens"]) == POSITIONS


# refused requests

BAD: list[tuple[str, Any]] = [
    *(("prompt", bad) for bad in ("", [], [[]], [""], {}, 5, True, [1, "a"], ["a", 1], [1.5])),
    *(("prompt", bad) for bad in ([-1], [10**6], [2**63], [[1], [10**6]], [1] * 97, "the " * 99)),
    *(("prompt", ["a"] * 9),),
    *(("max_tokens", bad) for bad in (-1, 1.5, "5", True, 61, 96, 2**70)),
    *(("temperature", bad) for bad in (-0.1, 2.1, "1", True)),
    *(("top_p", bad) for bad in (-0.1, 1.1, -1, "1")),
    *(("n", bad) for bad in (0, -1, 129, 9, 1.0, "1")),
    *(("best_of", bad) for bad in (2, 0, "1")),
    *(("stop", bad) for bad in ("", ["a", ""], ["a"] * 5, 5, {}, [1], "a" * 1001)),
    *(("seed", bad) for bad in (-(2**63) - 1, 2**64, 1.5, "1")),
    *(("logprobs", bad) for bad in (-1, 6, True, "1")),
    *(("echo", bad) for bad in (1, "true")),
    *(("stream", bad) for bad in (1, "true")),
    *(("stream_options", bad) for bad in ({"include_usage": True}, 5, [])),
    *(("suffix", bad) for bad in ("the end", 5)),
    *(("presence_penalty", bad) for bad in (0.5, "0")),
    *(("frequency_penalty", bad) for bad in (-0.5, True)),
    *(("logit_bias", bad) for bad in ({"5": 1}, [1])),
    *(("model", bad) for bad in (5, [])),
]


@pytest.mark.parametrize(("name", "bad"), BAD, ids=lambda value: str(value)[:40])
@pytest.mark.parametrize("stream", [False, True])
def test_an_invalid_value_gives_an_error_that_names_its_key(
    here: TestClient, name: str, bad: Any, stream: bool
) -> None:
    if stream and name in ("stream", "stream_options"):
        bad, name = ({"include_usage": 5}, "stream_options")
    body = {"prompt": "the cat", "stream": stream, name: bad}
    message = refused(post(here, **body), name)
    assert message.startswith("completions: ")
    assert len(message) < 250
    assert post(here, prompt="the cat", max_tokens=1).status_code == 200


def test_too_many_tokens_of_one_request(here: TestClient) -> None:
    assert refused(post(here, prompt=[1] * 60, n=4, max_tokens=1), "prompt") == (
        "completions: prompt has 240 tokens, counting each text once per completion: "
        "send at most 200"
    )


def test_no_body_and_no_prompt(here: TestClient) -> None:
    for content in (b"", b"[]", b"{", b"null", b'{"prompt": NaN}', b"\xff"):
        refused(here.post("/v1/completions", content=content), None)
    refused(post(here), "prompt")


def test_a_model_that_generates_nothing_says_what_to_serve() -> None:
    with app_client(qkv.load("random")) as client:
        response = post(client, prompt="the cat")
    said = "random has no head and does not predict the next token: use"
    refused(response, "model", said, "use a decoder")
    assert response.json()["error"]["code"] == "model_does_not_generate"


@pytest.mark.parametrize("kind", ["llama", "gemma2", "t5"])
def test_other_families_are_served_too(tmp_path: Path, kind: str) -> None:
    model = qkv.load(write_small(tmp_path / kind, CONFIGS[kind]))
    with app_client(model) as client:
        prompts = ["the cat sat", "a dog"]
        asked = {"prompt": prompts, "temperature": 0, "max_tokens": 6}
        answer = post(client, **asked, logprobs=2).json()
        expected = model.generate(prompts, max_new_tokens=6)
        assert [choice["text"] for choice in answer["choices"]] == expected
        for choice, text in zip(answer["choices"], expected, strict=True):
            assert len(choice["logprobs"]["tokens"]) == len(text.ids)
        echo = post(client, **asked, logprobs=2, echo=True)
        if kind == "t5":
            assert echo.json()["error"]["param"] == "echo"
        else:
            for choice, prompt, text in zip(echo.json()["choices"], prompts, expected, strict=True):
                assert choice["text"] == prompt + text
                offsets = choice["logprobs"]["text_offset"]
                assert offsets == sorted(offsets)
                assert len(offsets) == len(model.tokenize(prompt)) + len(text.ids)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "gemma2", "t5"])
def test_a_closed_completion_continues_identically(tmp_path: Path, kind: str) -> None:
    """A completion's text does not depend on how many generators produce it.

    The test closes the generator after every piece, every 2 pieces, or every 3 pieces. A new
    generator then continues the completion.
    """
    model = qkv.load(write_small(tmp_path / kind, CONFIGS[kind]), dtype=np.float64)
    asked: dict[str, Any] = {"prompt": ["the cat sat on", "a dog"], "n": 2, "seed": 4}
    several = [{"max_tokens": 9}, {"max_tokens": 0}, {"max_tokens": 8, "logprobs": 2}]
    if model.continues:
        several += [{"echo": True, "logprobs": 1, "max_tokens": size} for size in (0, 7)]
    for more in several:
        body = CompletionsBody.read({**asked, **more})
        settings = Settings(batch_tokens=50)  # two groups or more
        whole = Completion(model, body, settings)
        expected = of_pieces(whole.pieces())
        assert [choice.index for choice in expected] == [0, 1, 2, 3]
        for most in (1, 2, 3):
            completion = Completion(model, body, settings)
            found: list[list[Choice]] = []
            while some := list(islice(pieces := completion.pieces(), most)):
                pieces.close()
                found += some
            again = of_pieces(found)
            assert [one.text for one in again] == [one.text for one in expected]
            assert [one.finish_reason for one in again] == [one.finish_reason for one in expected]
            assert completion.usage == whole.usage
            for one, other in zip(again, expected, strict=True):
                same_logprobs(one.logprobs, other.logprobs)


def of_pieces(pieces: Iterable[list[Choice]]) -> list[Choice]:
    """Join the pieces of each completion, and return the completions in order."""
    found: dict[int, list[Choice]] = {}
    for step in pieces:
        for choice in step:
            found.setdefault(choice.index, []).append(choice)
    return [join_pieces(found[index]) for index in sorted(found)]


def same_logprobs(one: Logprobs | None, other: Logprobs | None) -> None:
    if one is None or other is None:
        assert one is other
        return
    assert (one.tokens, one.text_offset) == (other.tokens, other.text_offset)
    for mine, theirs in zip(one.token_logprobs, other.token_logprobs, strict=True):
        assert mine == pytest.approx(theirs, abs=1e-9)


def test_long_prompts_are_measured_in_parts_that_are_kept(tmp_path: Path) -> None:
    """Compute the log probabilities of a prompt of 90 tokens in parts of 32 tokens.

    The test closes the generator after each part; the parts that were computed are kept.
    """
    model = gpt2(tmp_path, seed=1)
    body = CompletionsBody.read({"prompt": [1] * 90, "max_tokens": 0, "echo": True, "logprobs": 0})
    completion = Completion(model, body, Settings())
    measured = []
    while list(islice(pieces := completion.pieces(), 1)):
        pieces.close()
        measured.append(len(completion.rows[0].measured_prompt))
    assert measured == [32, 64, 89]


def test_a_group_has_a_limited_number_of_completions(model: qkv.Model) -> None:
    body = CompletionsBody.read({"prompt": ["a"] * 300, "max_tokens": 3})
    completion = Completion(model, body, Settings())
    sizes = [len(rows) for rows in completion._groups()]
    assert (sum(sizes), max(sizes)) == (300, TOGETHER)
    prompt = len(ids_of("a"))
    assert [completion.size(n) for n in (1, 64)] == [TOGETHER * (prompt + n) for n in (1, 3)]
    next(completion.pieces())
    assert completion.size(1) == TOGETHER * (prompt + 2)


LARGE: list[tuple[dict[str, Any], int, str]] = [
    ({"prompt": ["a"] * 8, "max_tokens": 60}, 400, "480 new tokens: ask for at most 200"),
    ({"logprobs": 5, "max_tokens": 60}, 413, "about 11,520 bytes"),
    ({"echo": True, "logprobs": 5, "max_tokens": 0, "n": 8}, 413, "about 7,736 bytes"),
    ({"echo": True, "prompt": "a" * 60, "n": 8, "max_tokens": 1}, 400, "prompt has"),
]


@pytest.mark.parametrize(("asked", "status", "said"), LARGE, ids=lambda value: str(value)[:50])
def test_a_large_answer_is_refused_before_it_is_computed(
    model: qkv.Model, monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any], status: int, said: str
) -> None:
    monkeypatch.setattr(model, "steps", None)
    with app_client(model, new_tokens=60, tokens=200, answer=5000) as client:
        response = post(client, **{"prompt": "the cat", **asked})
        assert response.status_code == status, response.text
        assert said in response.json()["error"]["message"]


def test_an_error_during_generation_is_sent_in_the_stream(tmp_path: Path) -> None:
    model = gpt2(tmp_path, script=[ids_of("a")[0]] * POSITIONS)
    steps = model.steps

    def failing(*arguments: Any, **options: Any) -> Iterator[Any]:
        for number, step in enumerate(steps(*arguments, **options)):
            if number == 3:
                raise FloatingPointError("not finite")
            yield step

    model.steps = failing
    with app_client(model) as client:
        response = post(client, prompt="the", temperature=0, max_tokens=9, stream=True)
        assert response.status_code == 200
        last = response.text.split("\n\n")[-2]
        assert last.startswith("event: error\ndata: {")
        assert json.loads(last.partition("data: ")[2])["error"]["type"] == "server_error"
        assert "[DONE]" not in response.text
        assert post(client, prompt="the", temperature=0, max_tokens=9).status_code == 500
        model.steps = steps
        assert post(client, prompt="the", temperature=0, max_tokens=9).status_code == 200


def test_logits_that_are_not_finite_are_named(tmp_path: Path) -> None:
    model = gpt2(tmp_path, seed=1)
    model.network.logits = lambda rows: np.full((len(rows), len(model.embedding.table)), np.nan)
    said = (
        "completions: the model's logits after 5 tokens are not finite: "
        "the model's weights may be broken, or its float type may be too narrow"
    )
    with app_client(model) as client:
        for stream in (False, True):
            response = post(client, prompt="the cat", max_tokens=2, stream=stream)
            assert refused(response, None, status=500) == said


def test_a_token_that_cannot_come_has_a_log_probability_of_minus_9999(tmp_path: Path) -> None:
    """As in OpenAI's API, -9999 replaces minus infinity, which JSON does not have.

    null cannot replace it, because null already marks the first token of a text.
    """
    model = gpt2(tmp_path, seed=1)
    logits, width = model.network.logits, len(model.embedding.table)
    impossible = ids_of("the cat")[-1]
    model.network.logits = lambda rows: np.where(
        np.arange(width) == impossible, -np.inf, logits(rows)
    )
    with app_client(model) as client:
        answer = post(client, prompt="the cat", max_tokens=0, echo=True, logprobs=2).json()
    logs = answer["choices"][0]["logprobs"]
    assert logs["token_logprobs"][0] is None
    assert logs["token_logprobs"][-1] == min(logs["top_logprobs"][-1].values()) == -9999.0


@pytest.mark.parametrize(
    ("path", "kinds"),
    [
        ("/v1/completions", {"application/json", "text/event-stream"}),
        (
            "/v1/trace",
            {"application/json", "application/vnd.safetensors", "application/octet-stream"},
        ),
    ],
)
def test_the_schema_can_be_resolved(here: TestClient, path: str, kinds: set[str]) -> None:
    route = here.get("/openapi.json").json()["paths"][path]["post"]
    assert "$defs" not in json.dumps(route)
    assert {"200", "400", "401", "403", "413", "429", "500", "503"} <= set(route["responses"])
    assert kinds == set(route["responses"]["200"]["content"])


# concurrent clients, and clients that hang up


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_requests_that_arrive_together_share_forward_passes(
    folder: Path, passes: list[list[int]], dtype: str
) -> None:
    model = qkv.load(folder, dtype=dtype)
    plain = {"temperature": 0, "max_tokens": 12}
    asked: list[dict[str, Any]] = [
        plain | {"prompt": "the cat"},
        plain | {"prompt": "a", "stream": True, "max_tokens": 20},
        plain | {"prompt": PROMPTS, "max_tokens": 5},
        plain | {"prompt": "the dog", "stop": "\u00a2"},
        plain | {"prompt": "the sun", "temperature": 0.8, "seed": 5, "stream": True},
        plain | {"prompt": "the moon", "max_tokens": 1},
        plain | {"prompt": "so", "logprobs": 2, "echo": True},
    ]
    renamed = {"max_tokens": "max_new_tokens"}
    expected = []
    for body in asked:
        kept = {n: v for n, v in body.items() if n not in ("stream", "logprobs", "echo", "prompt")}
        options = {renamed.get(name, name): value for name, value in kept.items()}
        prompts = body["prompt"] if isinstance(body["prompt"], list) else [body["prompt"]]
        start = body["prompt"] if "echo" in body else ""
        expected.append([start + str(new) for new in model.generate(prompts, **options)])
    with inside(model) as server:
        passes.clear()

        async def ask(client: openai.AsyncOpenAI, body: dict[str, Any]) -> list[str]:
            answer = await client.completions.create(model="", **body)
            if not body.get("stream"):
                return texts(answer)
            pieces = [piece async for piece in answer]
            return ["".join(piece.choices[0].text for piece in pieces)]

        assert ask_together(server, ask, asked) == expected
    # every new token but the first of each request
    assert sum(map(sum, passes)) == 11 + 19 + 3 * 4 + 11 + 11 + 11
    assert max(map(len, passes)) >= 5
    assert len(passes) < 30


def test_a_request_that_leaves_frees_its_part_of_the_passes(
    folder: Path, passes: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = qkv.load(folder)
    step_together, reached, left = Transformer.step_together, threading.Event(), threading.Event()

    def wait(network: Transformer, batches: Any) -> np.ndarray:
        if len(passes) == 5:
            reached.set()
            assert left.wait(60)
        return step_together(network, batches)

    monkeypatch.setattr(Transformer, "step_together", wait)
    asked = {"prompt": ["the cat"] * 2, "max_tokens": 80, "temperature": 0, "stream": True}
    with inside(model) as server:
        passes.clear()
        with server.held():
            gone = server.ask("/v1/completions", asked)
            kept = server.ask("/v1/completions", asked | {"prompt": "a"})
            wait_until(lambda: server.worker.waiting == 3)
        assert reached.wait(60)
        gone.close()
        wait_until(lambda: server.worker.waiting == 1)
        left.set()
        answer = b""
        with kept:
            while b"[DONE]" not in answer:
                answer += kept.recv(65536)
    assert len(passes) == 79
    assert set(map(sum, passes[:6])) == {3}
    assert passes[6:] == [[1]] * 73
    events = [line[6:] for line in answer.decode().splitlines() if line.startswith("data: {")]
    text = "".join(json.loads(event)["choices"][0]["text"] for event in events)
    assert text == model.generate("a", max_new_tokens=80)


def ask_together(server: Inside, ask: Any, asked: list[Any]) -> list[Any]:
    """Call `ask(client, one)` for all at once, and let the server compute when all of them wait."""

    async def ask_all() -> list[Any]:
        url = f"http://127.0.0.1:{server.port}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none") as client:
            return await asyncio.gather(*(ask(client, one) for one in asked))

    with ThreadPoolExecutor(1) as pool:
        with server.held():
            answers = pool.submit(asyncio.run, ask_all())
            wait_until(lambda: server.worker.waiting == 1 + len(asked))
        return answers.result(60)


def streams(client: httpx.Client) -> float:
    """Return the number of generations that have begun and not ended."""
    for line in client.get("/metrics").text.splitlines():
        if line.startswith("qkv_streams"):
            return float(line.split()[-1])
    raise AssertionError("it is not counted")


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server of a decoder that needs minutes for the long requests of these tests."""
    config = {**CONFIGS["llama"], "max_position_embeddings": 10**6, "hidden_size": 96}
    folder = write_small(tmp_path_factory.mktemp("slow") / "slow", config)
    with serve("--model", folder) as server:
        yield server


@pytest.mark.parametrize("stream", [False, True])
def test_who_hangs_up_ends_the_generation(slow: Served, stream: bool) -> None:
    body = {"prompt": [[5, 6]] * 64, "max_tokens": 4096, "stream": stream}
    with slow.client() as client:
        with socket.create_connection(("127.0.0.1", slow.port), timeout=60) as connection:
            connection.sendall(raw_request("/v1/completions", body))
            if stream:
                assert connection.recv(100).startswith(b"HTTP/1.1 200 ")
            wait_until(lambda: streams(client) == 1)
        wait_until(lambda: streams(client) == 0)
        assert post(client, prompt=[5, 6], max_tokens=2).status_code == 200


def read_on(lines: Iterator[str]) -> None:
    """Read until the connection is closed."""
    with suppress(httpx.HTTPError, httpx.StreamError, ValueError):
        for _ in lines:
            pass


def test_four_long_ones_keep_no_other_waiting(slow: Served) -> None:
    """Each long stream would take minutes: two are read as they arrive, two only at their start."""
    long = {"prompt": [[5, 6]] * 64, "max_tokens": 4096, "stream": True}
    kept: list[Iterator[str]] = []
    with ExitStack() as stack:
        clients = [stack.enter_context(slow.client()) for _ in range(5)]
        for number, client in enumerate(clients[:4]):
            response = stack.enter_context(client.stream("POST", "/v1/completions", json=long))
            kept.append(response.iter_lines())  # a stream ends when nothing refers to it
            assert next(kept[-1]).startswith("data: ")
            if number < 2:
                threading.Thread(target=read_on, args=kept[-1:], daemon=True).start()
        asked = {"prompt": [5], "max_tokens": 20, "temperature": 0}
        for _ in range(3):
            assert post(clients[4], **asked).status_code == 200
            assert clients[4].post("/v1/embeddings", json={"input": [5]}).status_code == 200
        assert streams(clients[4]) == 4

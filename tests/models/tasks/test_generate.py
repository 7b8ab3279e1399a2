"""Tests of `generate` with a model that writes a known text, and with random models.

Plain loops compute the tokens that the random models should generate.
"""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import qkv
from qkv.models.tasks._sampling import Sampling
from qkv.models.tasks._spelling import TextStream

from ..decoders import EOS, POSITIONS, TOKENIZER, VOCABULARY, gpt2, ids_of, writer
from ..formulas import softmax
from ..small_models import CONFIGS, write_small


@pytest.fixture(scope="module")
def random(tmp_path_factory: pytest.TempPathFactory) -> qkv.Model:
    return gpt2(tmp_path_factory.mktemp("random"), seed=1, eos_token_id=None)


def next_logits(model: qkv.Model, ids: list[int]) -> np.ndarray:
    """Return the logits of the token after `ids`, from a run without a cache."""
    logits = model([ids]).logits
    assert logits is not None
    return logits[0, -1]


# Text

HELLO = "Say: "
TEXTS = [
    "the cat, the  dog\nand the rest.",
    "caf\u00e9 na\u00efve \u2014 ok",
    "\u4e16\u754c\u4f60\u597d and \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
    "\U0001f389\U0001f469\u200d\U0001f680 \u00e9",
    " \n\n ",
]


@pytest.mark.parametrize("text", TEXTS)
def test_generate_returns_the_new_text_whole_or_streamed(tmp_path: Path, text: str) -> None:
    model = writer(tmp_path, HELLO, text)
    result = model.generate(HELLO)
    assert result == text
    assert isinstance(result, str)
    assert (result.prompt, result.finish_reason) == (HELLO, "eos")
    assert result.ids == [*ids_of(text), EOS]
    pieces = list(model.generate(HELLO, stream=True))
    assert "".join(pieces) == text
    assert all(pieces)
    assert not any("\ufffd" in piece for piece in pieces)


def test_a_stream_yields_whole_words_or_single_chinese_characters(tmp_path: Path) -> None:
    model = writer(tmp_path, HELLO, "the other day\n\u4e16\u754c!")
    pieces = list(model.generate(HELLO, stream=True))
    assert pieces == ["the", " other", " day", "\n\u4e16", "\u754c", "!"]


def test_a_stream_is_as_lazy_as_it_should_be(tmp_path: Path) -> None:
    model = writer(tmp_path, HELLO, "one two three")
    stream = model.generate(HELLO, stream=True)
    assert next(stream) == "one"
    with pytest.raises(ValueError, match="temperature"):  # refused when called, not when read
        model.generate(HELLO, stream=True, temperature=-1)


def test_an_incomplete_final_character_becomes_the_replacement_character(tmp_path: Path) -> None:
    model = writer(tmp_path, HELLO, "ab\u4e16")
    result = model.generate(HELLO, max_new_tokens=4)
    assert result == "ab\ufffd" == model.decode(result.ids)
    assert list(model.generate(HELLO, max_new_tokens=4, stream=True)) == ["ab\ufffd"]


CUT = "a\u4e16\u00e9\U0001f389b"  # characters of 1, 3, 2, 4 and 1 bytes


@pytest.mark.parametrize("count", [1, 2, 4, 5, 8])
def test_a_character_that_the_prompt_begins_is_in_the_new_text(tmp_path: Path, count: int) -> None:
    whole = CUT.encode()  # one byte is one token
    model, ids = writer(tmp_path, HELLO, CUT), ids_of(HELLO + CUT)[: len(HELLO) + count]
    prompt = HELLO + whole[:count].decode(errors="ignore")
    result = model.generate([ids])[0]
    assert (result.prompt, result) == (prompt, (HELLO + CUT).removeprefix(prompt))
    assert "".join(piece for _, piece in model.generate([ids], stream=True)) == result
    traced = model.generate([ids], trace=True)[0].trace
    assert traced.text == HELLO + CUT


def test_an_incomplete_character_that_nothing_completes_stays_in_the_prompt(tmp_path: Path) -> None:
    ids = [*ids_of(HELLO), *ids_of("\u4e16")[:2]]
    model = gpt2(tmp_path, script=[ids_of("b")[0]] * len(ids) + [EOS] * (POSITIONS - len(ids)))
    result = model.generate(ids, max_new_tokens=1)
    assert (result.prompt, result) == (f"{HELLO}\ufffd", "b")
    assert list(model.generate(ids, max_new_tokens=1, stream=True)) == ["b"]


def test_ids_without_a_token_add_no_text(tmp_path: Path) -> None:
    script = [ids_of("a")[0], VOCABULARY - 1, ids_of("b")[0]] + [EOS] * (POSITIONS - 3)
    result = gpt2(tmp_path, script=script).generate("x")
    assert result == "ab"
    assert result.ids[1] == VOCABULARY - 1


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        ("dog", "the cat, the  "),
        ([" dog", "cat"], "the "),
        ((), TEXTS[0]),
        (["zebra"], TEXTS[0]),
        ("t", ""),
        ("t,", "the ca"),
        ("rest..", TEXTS[0]),
        (".", TEXTS[0][:-1]),
        ("he  do", "the cat, t"),
    ],
    ids=str,
)
def test_stop_strings_cut(tmp_path: Path, stop: Any, expected: str) -> None:
    model = writer(tmp_path, HELLO, TEXTS[0])
    result = model.generate(HELLO, stop=stop)
    assert result == expected
    assert result.finish_reason == ("eos" if expected == TEXTS[0] else "stop")
    assert len(result.ids) <= len(ids_of(TEXTS[0])) + 1
    assert "".join(model.generate(HELLO, stop=stop, stream=True)) == expected


def test_nothing_is_generated_behind_a_stop_string(tmp_path: Path) -> None:
    result = writer(tmp_path, HELLO, "ab cd ef").generate(HELLO, stop="c")
    assert result.ids == ids_of("ab c")


def test_a_stream_holds_back_a_possible_start_of_a_stop_string() -> None:
    stream = TextStream(lambda ids: "".join(map(chr, ids)), [], ["b c"])
    found = [stream.add(ord(letter)) for letter in "a b x b"]
    assert found == ["", "a", "", "", " b", " x", ""]
    assert stream.finish() == " b"


# The end of a text


def test_the_end_token_is_read_from_the_files(tmp_path: Path) -> None:
    a, b, c = (ids_of(letter)[0] for letter in "abc")
    script = [a, b, c] * (POSITIONS // 3)

    def text(name: str, **options: Any) -> str:
        return gpt2(tmp_path / name, script=script, **options).generate("x", max_new_tokens=7)

    assert text("none", eos_token_id=None) == "abcabca"
    assert text("config", eos_token_id=c) == "ab"
    assert text("several", eos_token_id=[c, b]) == "a"
    assert text("both", eos_token_id=b, generation={"eos_token_id": [c]}) == "ab"
    assert text("silent", eos_token_id=b, generation={"do_sample": True}) == "a"
    with pytest.raises(qkv.ModelError, match="eos_token_id"):
        text("wrong", eos_token_id="c")
    with pytest.raises(qkv.ModelError, match="eos_token_id"):
        text("bools", eos_token_id=[True])


def test_end_tokens_are_saved(tmp_path: Path) -> None:
    script = ids_of("abcabcabc")
    model = gpt2(tmp_path, script=script, eos_token_id=None, generation={"eos_token_id": script[2]})
    model.save(tmp_path / "copy")
    assert qkv.load(tmp_path / "copy").generate("x") == "ab"


# Several prompts, and ids


def test_prompts_of_different_lengths_match_single_prompts(random: qkv.Model) -> None:
    prompts = ["the cat sat on the mat", "t", "A longer prompt: " * 2, "\u4e16"]
    found = random.generate(prompts, max_new_tokens=30)
    alone = [random.generate(prompt, max_new_tokens=30) for prompt in prompts]
    assert [one.ids for one in found] == [one.ids for one in alone]
    assert random.generate([]) == []
    pieces: dict[int, str] = dict.fromkeys(range(4), "")
    for number, piece in random.generate(iter(prompts), max_new_tokens=30, stream=True):
        pieces[number] += piece
    assert list(pieces.values()) == found


def test_ids_are_a_prompt_too(random: qkv.Model, tmp_path: Path) -> None:
    prompt = "the cat"
    result = random.generate(prompt, max_new_tokens=5)
    for ids in (ids_of(prompt), tuple(ids_of(prompt)), np.array(ids_of(prompt), np.int32)):
        found = random.generate(ids, max_new_tokens=5)
        assert (found, found.prompt, found.ids) == (result, prompt, result.ids)
    assert random.generate([ids_of(prompt), [5]], max_new_tokens=5)[0] == result
    bare = gpt2(tmp_path, seed=1, eos_token_id=None, tokenizer=False)
    found = bare.generate(ids_of(prompt), max_new_tokens=5)
    assert found.ids == result.ids
    assert (found.prompt + found).split() == [str(i) for i in ids_of(prompt) + result.ids]
    with pytest.raises(ValueError, match=r"generate: .* no tokenizer\.json"):
        bare.generate("text")


# Choosing the next token


def test_greedy_choice_matches_the_argmax_without_a_cache(random: qkv.Model) -> None:
    ids = ids_of("the cat sat")
    for token in random.generate("the cat sat", max_new_tokens=40).ids:
        assert token == next_logits(random, ids).argmax()
        ids.append(token)


def plainly_allowed(logits: np.ndarray, options: dict[str, Any]) -> dict[int, float]:
    """Return the probability of each token that may be drawn, in plain loops."""
    scaled = [value / options["temperature"] for value in logits.astype(np.float64)]
    order = sorted(range(len(scaled)), key=lambda i: -scaled[i])
    if options.get("top_k"):
        last = scaled[order[min(options["top_k"], len(order)) - 1]]
        order = [i for i in order if scaled[i] >= last]
    total = sum(np.exp(scaled[i] - scaled[order[0]]) for i in order)
    probabilities = {i: float(np.exp(scaled[i] - scaled[order[0]]) / total) for i in order}
    if options.get("top_p"):
        before, kept = 0.0, {}
        for i, probability in probabilities.items():
            if before >= options["top_p"]:
                break
            kept[i] = probability
            before += probability
        probabilities = {i: probability / before for i, probability in kept.items()}
    return probabilities


OPTIONS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.3},
    {"temperature": 2.0, "top_k": 3},
    {"temperature": 1.0, "top_p": 0.6},
    {"temperature": 0.7, "top_k": 5, "top_p": 0.8},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 1.0, "top_k": 10**6, "top_p": 1.0},
    {"temperature": 3.0, "top_p": 1e-9},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_sampling_draws_allowed_tokens_with_their_probabilities(options: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    choice = Sampling(**options)
    for _ in range(20):
        logits = rng.standard_normal(30).astype(np.float32) * 2
        expected = plainly_allowed(logits, options)
        ids, probabilities = choice.allowed_tokens(logits)
        assert set(ids) == set(expected)
        np.testing.assert_allclose(probabilities, [expected[i] for i in ids], rtol=1e-6)
    drawn = np.bincount([choice(logits, rng) for _ in range(4000)], minlength=30) / 4000
    shares = np.array([expected.get(token, 0.0) for token in range(30)])
    assert (np.abs(drawn - shares) <= 5 * np.sqrt(shares * (1 - shares) / 4000)).all()


def test_ties() -> None:
    logits = np.array([1.0, 3.0, 3.0, 2.0, 3.0])
    assert Sampling()(logits, np.random.default_rng(0)) == 1
    assert Sampling(1.0, top_k=2).allowed_tokens(logits)[0].tolist() == [1, 2, 4]
    assert Sampling(1.0, top_p=0.2).allowed_tokens(logits)[0].tolist() == [1]
    assert Sampling(1.0, top_p=0.4).allowed_tokens(logits)[0].tolist() == [1, 2]


def test_tokens_of_probability_0_are_never_drawn() -> None:
    logits = np.array([-np.inf, 0.0, -np.inf, 0.5, -np.inf])
    rng = np.random.default_rng(0)
    for options in OPTIONS:
        assert {Sampling(**options)(logits, rng) for _ in range(200)} <= {1, 3}
    for number in (0.0, np.nextafter(1.0, 0.0)):  # the smallest and largest possible draw
        assert Sampling(1.0)(logits, SimpleNamespace(random=lambda number=number: number)) in (1, 3)
    tiny = Sampling(5e-324)
    assert {tiny(logits, rng) for _ in range(20)} == {3}


@pytest.mark.parametrize("options", [OPTIONS[2], OPTIONS[4]], ids=str)
def test_generate_draws_only_allowed_tokens(random: qkv.Model, options: dict[str, Any]) -> None:
    ids = ids_of("the cat")
    for token in random.generate("the cat", max_new_tokens=40, seed=3, **options).ids:
        assert token in plainly_allowed(next_logits(random, ids), options)
        ids.append(token)


def test_a_seed_gives_the_same_again(random: qkv.Model) -> None:
    def drawn(prompt: Any, seed: int | None) -> Any:
        return random.generate(prompt, max_new_tokens=20, temperature=1.5, seed=seed)

    assert drawn("the", 1) == drawn("the", 1)
    assert drawn("the", 1) != drawn("the", 2)
    assert drawn("the", None) != drawn("the", None)
    several = drawn(["the"] * 3, 1)
    assert several[0] == drawn("the", 1), "alone or with others"
    assert len(set(several)) == 3, "each text draws for itself"


@pytest.mark.parametrize("name", ["seed", "top_k", "top_p"])
@pytest.mark.parametrize("stream", [False, True])
def test_options_of_drawing_need_a_temperature(name: str, stream: bool, random: qkv.Model) -> None:
    said = rf"generate: {name} is 1 and temperature is 0, .*pass a temperature above 0, .* {name}$"
    with pytest.raises(ValueError, match=said):
        random.generate("the", stream=stream, **{name: 1})
    random.generate("the", max_new_tokens=1, temperature=0.5, **{name: 1})


# The trace


def test_each_token_can_be_traced(random: qkv.Model) -> None:
    prompt = "the cat sat"
    result = random.generate(prompt, max_new_tokens=6, trace=True)
    plain = random.generate(prompt, max_new_tokens=6)
    assert (result, result.ids) == (plain, plain.ids)
    assert plain.trace is plain.probabilities is None
    trace = result.trace
    given = ids_of(prompt)
    assert trace.ids == given + result.ids
    assert trace.tokens == [TOKENIZER.id_to_token(i) for i in given + result.ids]
    assert trace.special == [False] * len(trace.ids)
    for number in range(6):
        before = given + result.ids[:number]
        logits = next_logits(random, before).astype(np.float64)
        probabilities, token = softmax(logits), result.ids[number]
        np.testing.assert_allclose(result.logits[number], logits[token], rtol=1e-5)
        np.testing.assert_allclose(result.probabilities[number], probabilities[token], rtol=1e-5)
        again = [weights[0, :, -1] for weights in random.trace([before]).attentions]
        np.testing.assert_allclose(result.looked_at(number), again, atol=1e-6)
    np.testing.assert_array_equal(result.looked_at(-1)[1], result.looked_at(5)[1])
    with pytest.raises(IndexError, match="only 6 tokens were generated"):
        result.looked_at(6)
    with pytest.raises(TypeError, match=r"^looked_at: `token` is 'x'; pass the number of a token$"):
        result.looked_at("x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="trace=True"):
        plain.looked_at(0)
    assert len(qkv.show(trace).to_dict()["tokens"]) == len(trace.tokens)


def test_offsets_locate_new_tokens_in_the_text(tmp_path: Path) -> None:
    text = "the caf\u00e9 \u4e16"
    model = writer(tmp_path, HELLO, text)
    result = model.generate(HELLO, trace=True)
    whole = result.prompt + result
    spans = result.trace.offsets[len(ids_of(HELLO)) :]
    tokens = ["the", " ", "c", "a", "f", "\u00e9", "\u00e9", " ", *["\u4e16"] * 3, ""]
    assert [whole[a:b] for a, b in spans] == tokens
    assert result.trace.special[-1] is True
    cut = model.generate(HELLO, trace=True, stop="caf")
    assert [(cut.prompt + cut)[a:b] for a, b in cut.trace.offsets[-4:]] == [" ", "", "", ""]


# Refused arguments

LONG = {"max_new_tokens": 64}  # the model has 96 positions


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"max_new_tokens": 0}, ValueError, "max_new_tokens"),
        ({"temperature": -0.1}, ValueError, "temperature"),
        ({"temperature": float("inf")}, ValueError, "temperature is inf: it must be finite"),
        ({"temperature": "hot"}, TypeError, "temperature"),
        ({"top_k": 0}, ValueError, "top_k"),
        ({"top_p": 0}, ValueError, "top_p"),
        ({"top_p": 1.1}, ValueError, "top_p"),
        ({"seed": -1}, ValueError, "seed"),
        ({"stop": ""}, ValueError, "stop"),
        ({"stop": ["a", 3]}, TypeError, "stop"),
        ({"stream": True, "trace": True}, ValueError, "stream and trace"),
        ({"prompt": ""}, ValueError, "is empty"),
        ({"prompt": ["a", ""]}, ValueError, "prompt 1 is empty"),
        ({"prompt": 3}, TypeError, "the prompt is int; pass a text, or a list"),
        ({"prompt": ["a", 3]}, TypeError, "text 1 is int"),
        ({"prompt": [VOCABULARY]}, ValueError, f"no token {VOCABULARY}"),
        ({"prompt": [[1, 2], []]}, ValueError, "text 1 has 0 ids"),
        ({"prompt": np.ones((1, 3))}, TypeError, "float64"),
        (
            LONG | {"prompt": "a" * 33},
            ValueError,
            "33 tokens .* is 64, .* at most 96 .* at most 63$",
        ),
        (LONG | {"prompt": ["a", "a" * 33]}, ValueError, "prompt 1 has 33 tokens"),
        (
            {"prompt": "a" * POSITIONS},
            ValueError,
            "has 96 tokens.* no room is left for a new token",
        ),
    ],
    ids=str,
)
def test_refused(random: qkv.Model, arguments: dict[str, Any], kind: type, words: str) -> None:
    given = {"prompt": "the", **arguments}
    with pytest.raises(kind, match=words) as caught:
        random.generate(**given)
    assert str(caught.value).startswith("generate: ")
    assert "\n" not in str(caught.value)


def test_the_default_of_max_new_tokens_shrinks_to_what_fits(random: qkv.Model) -> None:
    prompts = ["a" * n for n in (POSITIONS - 1, 5, POSITIONS - 64, POSITIONS - 63, 60)]
    fits = [1, 64, 64, 63, POSITIONS - 60]
    found = random.generate(prompts)
    assert [len(one.ids) for one in found] == fits
    assert {one.finish_reason for one in found} == {"length"}
    for prompt, one, most in zip(prompts, found, fits, strict=True):
        alone = random.generate(prompt, max_new_tokens=most)
        assert (alone.ids, str(alone)) == (one.ids, str(one))
    assert "".join(random.generate(prompts[4], stream=True)) == found[4]


def test_logits_that_are_not_finite(tmp_path: Path) -> None:
    model = gpt2(tmp_path, seed=0)
    weight = model.parameters["blocks.1.mlp.up_proj.bias"].copy()
    weight[0] = np.nan
    model.parameters["blocks.1.mlp.up_proj.bias"] = weight
    for options in ({}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 2, "top_p": 0.5}):
        with pytest.raises(FloatingPointError, match="not finite"):
            model.generate("the", **options)


def test_a_model_that_has_written_can_be_pickled_and_copied(tmp_path: Path) -> None:
    model = qkv.load(write_small(tmp_path / "llama", CONFIGS["llama"]))
    written = model.generate("the cat", max_new_tokens=5)
    for twin in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert twin.generate("the cat", max_new_tokens=5).ids == written.ids


# Step by step, and the measured probability of each token


@pytest.mark.parametrize("top", [0, 3])
def test_steps_measure_tokens_by_the_logits_that_predict_them(random: qkv.Model, top: int) -> None:
    prompts = ["the cat", "a"]
    _, rows = random.rows(prompts, max_new_tokens=5)
    for _ in random.steps(rows, Sampling(), top=top, measure_prompts=True):
        pass
    for row, prompt in zip(rows, prompts, strict=True):
        ids = [*ids_of(prompt), *row.ids]
        logits = random([ids]).logits[0].astype(np.float64)
        logs = np.log(softmax(logits))
        found = [*row.measured_prompt, *row.measured]
        assert len(found) == len(ids) - 1
        for position, one in enumerate(found):
            token = ids[position + 1]
            assert one.logit == pytest.approx(logits[position, token], abs=1e-4)
            assert one.log_probability == pytest.approx(logs[position, token], abs=1e-4)
            likeliest = np.argsort(-logs[position], kind="stable")[:top]
            assert [token for token, _ in one.top] == likeliest.tolist()
            found_logs = [log for _, log in one.top]
            np.testing.assert_allclose(found_logs, logs[position, likeliest], atol=1e-4)


def test_steps_give_the_texts_of_generate_and_draw_independently(random: qkv.Model) -> None:
    _, rows = random.rows(["the", "cat"], copies=2, max_new_tokens=9, seed=4)
    steps = list(random.steps(rows, Sampling(1.0)))
    prompts = ["the", "the", "cat", "cat"]
    expected = random.generate(prompts, max_new_tokens=9, seed=4, temperature=1)
    assert [row.stream.text for row in rows] == expected
    assert len(set(expected)) == 4
    assert len(steps) == 9
    for number, text in enumerate(expected):
        assert "".join(piece for step in steps for row, piece in step if row == number) == text


def test_steps_add_no_tokens_if_none_are_requested(random: qkv.Model) -> None:
    [row] = random.rows("the cat", usual=0)[1]
    assert list(random.steps([row], Sampling())) == []
    assert (row.ids, row.finish_reason, row.measured_prompt) == ([], "length", [])
    full = [1] * POSITIONS
    [row] = random.rows(full, usual=0)[1]
    assert len([*random.steps([row], Sampling(), measure_prompts=True)]) > 1
    assert (row.ids, len(row.measured_prompt)) == ([], POSITIONS - 1)

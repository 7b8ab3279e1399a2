"""Tests of `chat`: prompts, answers, and the key/value cache that is kept between calls."""

from __future__ import annotations

import contextlib
import json
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import qkv
from qkv.models.network.transformer import Transformer
from qkv.models.tasks import _chat
from qkv.models.tasks.generate import TextCaches
from qkv.text import SubwordTokenizer

from ..decoders import END, EOS, POSITIONS, TOKENIZER, gpt2, writer
from ..small_models import CONFIGS, write_small

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }}" + END + "{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
ASKED = [{"role": "user", "content": "the cat"}]
PROMPT = f"user:the cat{END}assistant:"


def with_template(model: qkv.Model, template: str = TEMPLATE) -> qkv.Model:
    assert model.tokenizer is not None
    model.tokenizer.chat_template = template
    return model


@pytest.fixture
def random(tmp_path: Path) -> qkv.Model:
    return with_template(gpt2(tmp_path / "random", seed=1, eos_token_id=None))


def then(messages: list[dict[str, str]], answer: str, content: str) -> list[dict[str, str]]:
    """Return the conversation with an answer and the next message."""
    said = {"role": "assistant", "content": answer}
    return [*messages, said, {"role": "user", "content": content}]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which each step adds the number of tokens that it computes."""
    counts: list[int] = []
    step = Transformer.step

    def counted(network: Transformer, ids: np.ndarray, *args: Any, **options: Any) -> Any:
        counts.append(ids.shape[1])
        return step(network, ids, *args, **options)

    monkeypatch.setattr(Transformer, "step", counted)
    return counts


def test_two_threads_do_not_get_the_same_caches(
    random: qkv.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both threads look at the caches before one of them takes the caches."""
    both, taken = threading.Barrier(2), []

    class Watched(TextCaches):
        def __bool__(self) -> bool:
            with contextlib.suppress(threading.BrokenBarrierError):  # only one thread has looked
                both.wait(0.5)
            return True

    random.chat(ASKED, max_new_tokens=3)
    random.conversation.__class__ = Watched
    monkeypatch.setattr(_chat, "generate", lambda model, prompt, **_: taken.append(prompt.past))
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: random.chat(ASKED), range(2)))
    assert len({id(past) for past in taken}) == 2


def test_the_template_makes_the_prompt_and_the_model_answers(tmp_path: Path) -> None:
    # `writer` cuts the prompt without an end token: the script starts after the whole prompt
    prompt = TOKENIZER.encode(PROMPT, add_special_tokens=False).ids
    model = with_template(writer(tmp_path / "writer", "x" * len(prompt), "Miau, \u4e16!"))
    answer = model.chat(ASKED)
    assert (answer, answer.prompt, answer.finish_reason) == ("Miau, \u4e16!", PROMPT, "eos")
    assert "".join(model.chat(ASKED, stream=True)) == answer
    assert next(model.chat(iter(ASKED), stream=True)) == "Miau,"
    assert model.chat(ASKED, stop=",") == "Miau"
    traced = model.chat(ASKED, trace=True)
    assert traced.trace.tokens[: len(prompt)] == [TOKENIZER.id_to_token(i) for i in prompt]
    assert traced.trace.special[len(prompt) - 11] is True  # the end token of the question


def test_an_answer_begins_without_the_space_of_its_first_token(tmp_path: Path) -> None:
    library = Tokenizer(models.WordLevel({"▁Hi": 0, "▁you": 1}))
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.decoder = decoders.Metaspace()
    model = gpt2(tmp_path / "spaces", script=[1, 0, 1] + [EOS] * 93, tokenizer=False)
    model.tokenizer = SubwordTokenizer(library)
    answer = with_template(model, "{{ messages[0].content }}").chat([{**ASKED[0], "content": "Hi"}])
    assert (answer, answer.ids) == ("you Hi you", [1, 0, 1, EOS])


def test_the_arguments_of_generate(random: qkv.Model) -> None:
    ids = random.tokenizer.apply_chat_template(ASKED, add_generation_prompt=True)
    assert ids == TOKENIZER.encode(PROMPT, add_special_tokens=False).ids
    for options in (
        {"max_new_tokens": 5},
        {"max_new_tokens": 9, "temperature": 1.4, "top_k": 7, "top_p": 0.8, "seed": 5},
        {"max_new_tokens": 9, "ablate": [(0, 1), (1, None)]},
        {"max_new_tokens": 9, "hide": [3]},
        {"max_new_tokens": 9, "edit": [{"op": "scale", "value": 0.1}]},
    ):
        assert random.chat(ASKED, **options).ids == random.generate(ids, **options).ids
    plain, by_word, by_position = (
        random.chat(ASKED, max_new_tokens=1, trace=True, hide=hide).logits
        for hide in ((), ["the"], [5])
    )
    assert by_word == by_position != plain


@pytest.mark.parametrize("stream", [False, True])
def test_the_second_call_computes_only_new_tokens(
    stream: bool, random: qkv.Model, tmp_path: Path, steps: list[int]
) -> None:
    first = "".join(random.chat(ASKED, max_new_tokens=3, stream=stream))
    size = len(TOKENIZER.encode(PROMPT, add_special_tokens=False).ids)
    assert steps == [size, 1, 1]  # the last new token is not computed
    assert len(random.conversation.ids) == size + 2
    messages = then(ASKED, first, "a")
    whole = random.tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    same = next(
        n for n, (a, b) in enumerate(zip(random.conversation.ids, whole, strict=False)) if a != b
    )
    steps.clear()
    second = random.chat(messages, max_new_tokens=4)
    assert steps == [len(whole) - same, 1, 1, 1]
    assert same >= size
    fresh = with_template(qkv.load(tmp_path / "random"))
    assert second.ids == fresh.chat(messages, max_new_tokens=4).ids
    assert second.ids == fresh.generate(whole, max_new_tokens=4).ids


def test_other_conversations_use_what_they_share(random: qkv.Model, steps: list[int]) -> None:
    for content in ("the cat", "the dog", "the cat", "x", ""):
        messages = [{"role": "user", "content": content}]
        before = list(random.conversation.ids) if random.conversation else []
        found = random.chat(messages, max_new_tokens=5).ids
        whole = random.tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        same = next((n for n, (a, b) in enumerate(zip(before, whole, strict=False)) if a != b), 0)
        same = min(same or len(before), len(whole) - 1)
        assert steps[0] == len(whole) - same
        assert found == random.generate(whole, max_new_tokens=5).ids
        steps.clear()


@pytest.mark.parametrize("name", ["gemma2", "mistral", "bloom", "gptj"])
def test_families_with_windows_and_other_positions(name: str, tmp_path: Path) -> None:
    config = dict(CONFIGS[name])
    sizes = {"max_position_embeddings": 700, "n_positions": 700, "sliding_window": 4}
    config |= {key: size for key, size in sizes.items() if key in config}
    template = "{% for m in messages %}{{ m.content }} {% endfor %}"
    model = with_template(qkv.load(write_small(tmp_path / "model", config)), template)
    words = ("the cat sat on the mat " * 60).split()
    messages = [{"role": "user", "content": " ".join(words[:300])}]
    for count in (1, 280, 3, 1):
        ids = model.tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        found = model.chat(messages, max_new_tokens=count).ids
        assert found == model.generate(ids, max_new_tokens=count).ids
        messages = then(messages, "cat", "the mat")


def test_changed_parameters_and_copies_get_new_caches(random: qkv.Model) -> None:
    random.chat(ASKED, max_new_tokens=3)
    twin = random.with_parameters(random.parameters)
    name = "blocks.0.attn.out_proj.weight"
    random.parameters[name] = np.array(random.parameters[name]) * -3
    for model in (random, twin):
        ids = model.tokenizer.apply_chat_template(ASKED, add_generation_prompt=True)
        expected = model.generate(ids, max_new_tokens=5, trace=True)
        answer = model.chat(ASKED, max_new_tokens=5, trace=True)
        np.testing.assert_allclose(answer.logits, expected.logits, rtol=1e-4)
    shared = pickle.loads(pickle.dumps(random))
    assert shared.chat(ASKED, max_new_tokens=5).ids == random.chat(ASKED, max_new_tokens=5).ids


def test_calls_at_the_same_time_do_not_share_caches(random: qkv.Model) -> None:
    expected = random.chat(ASKED, max_new_tokens=9)
    one = random.chat(ASKED, max_new_tokens=9, stream=True)
    other = random.chat(ASKED, max_new_tokens=9, stream=True)
    pieces = [(a, b) for a, b in zip(one, other, strict=True)]
    assert ["".join(texts) for texts in zip(*pieces, strict=True)] == [expected, expected]


def test_a_stopped_answer_keeps_the_cache_and_a_failed_one_does_not(
    random: qkv.Model, steps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = random.chat(ASKED, max_new_tokens=20, stream=True)
    next(pieces)
    pieces.close()
    assert random.conversation.ids
    steps.clear()
    random.chat(ASKED, max_new_tokens=1)
    assert steps == [1]

    def interrupted(*args: Any, **options: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Transformer, "logits", interrupted)
        with pytest.raises(KeyboardInterrupt):
            random.chat(ASKED)
    assert random.conversation is None


def test_a_call_with_edits_leaves_the_cache(random: qkv.Model, steps: list[int]) -> None:
    random.chat(ASKED, max_new_tokens=3)
    before = random.conversation
    steps.clear()
    random.chat(ASKED, max_new_tokens=2, hide=["the"])
    assert steps[0] > 1
    assert random.conversation is before
    random.conversation = None  # free the memory
    steps.clear()
    random.chat(ASKED, max_new_tokens=1)
    assert steps[0] > 1


def test_refused(random: qkv.Model, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^chat: the model's files have no chat template; pass"):
        qkv.load(tmp_path / "random").chat(ASKED)
    with pytest.raises(ValueError, match=r"^chat: random has no head and does not predict the n"):
        qkv.load("random").chat(ASKED)
    with pytest.raises(ValueError, match=r"^chat: .* has no tokenizer.json"):
        gpt2(tmp_path / "bare", seed=1, tokenizer=False).chat(ASKED)
    with pytest.raises(TypeError, match=r"^chat: messages is str; pass a list of dicts"):
        random.chat("Hi")
    with pytest.raises(TypeError, match=r"^chat: unknown argument num_beams"):
        random.chat(ASKED, num_beams=3)
    with pytest.raises(ValueError, match=r"^chat: temperature is -1\.0: it must be finite"):
        random.chat(ASKED, temperature=-1.0)
    with pytest.raises(ValueError, match=r"^chat: the prompt is empty; pass at least one token"):
        with_template(random, "").chat(ASKED)
    with pytest.raises(ValueError, match=f"^chat: .*takes at most {POSITIONS} tokens.* no room"):
        with_template(random, TEMPLATE).chat([{"role": "user", "content": "x" * 100}])
    with pytest.raises(ValueError, match=r"^chat: the chat template refuses the messages: no"):
        with_template(random, "{{ raise_exception('no') }}").chat(ASKED)


def test_sampling_of_generation_config(tmp_path: Path) -> None:
    def sampling(**values: Any) -> dict[str, Any]:
        return gpt2(tmp_path / "model", seed=1, generation=values).sampling

    assert sampling() == sampling(temperature=0.6, top_k=3) == {}
    assert sampling(do_sample=True) == {"temperature": 1.0, "top_k": 50, "top_p": 1.0}
    given = {"temperature": 0.6, "top_k": 3, "top_p": 0.9}
    assert sampling(do_sample=True, **given) == given
    assert sampling(do_sample=True, top_k=0)["top_k"] is None
    with pytest.raises(qkv.ModelError, match=r"generation_config.json of model: temperature is"):
        sampling(do_sample=True, temperature="x")
    assert json.loads((tmp_path / "model" / "config.json").read_text())["eos_token_id"] == EOS

"""Tests of generation_config.json: rules that change logits, and keys that qkv does not apply."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qkv
from qkv.models.files._generation_config import Penalties

from ..decoders import EOS, gpt2

INF = np.inf
LOGITS = [2.0, -1.0, 4.0, 0.5]
RULES = {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "suppress_tokens": [5, 6]}


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({"repetition_penalty": 2.0}, [2.0, -2.0, 2.0, 0.5]),
        ({"repetition_penalty": 0.5}, [2.0, -0.5, 8.0, 0.5]),
        ({"no_repeat_ngram_size": 1}, [2.0, -INF, -INF, 0.5]),
        ({"no_repeat_ngram_size": 2}, [2.0, -INF, 4.0, 0.5]),
        ({"no_repeat_ngram_size": 5}, LOGITS),
        ({"suppress_tokens": [0, 9, -1]}, [-INF, -1.0, 4.0, 0.5]),
        ({"begin_suppress_tokens": [0]}, LOGITS),
        ({"bad_words_ids": [[0], [2, 1], [1, 3], [2]]}, [-INF, -INF, 4.0, 0.5]),
        ({"min_length": 4}, LOGITS),
        ({"min_length": 5}, [2.0, -1.0, -INF, 0.5]),
        ({"min_new_tokens": 2}, [2.0, -1.0, -INF, 0.5]),
        ({"min_length": 5, "min_new_tokens": 1}, LOGITS),
        ({"forced_bos_token_id": 1}, LOGITS),
        ({"forced_eos_token_id": 3}, [-INF, -INF, -INF, 0.0]),
        ({"forced_eos_token_id": [3, 0], "suppress_tokens": [0]}, [-INF, -INF, -INF, 0.0]),
    ],
)
def test_a_rule_changes_logits(rules: dict[str, Any], expected: list[float]) -> None:
    """The text is 1 2 1 2, of which the last token is new; one more token may follow; 2 ends."""
    found = Penalties.read(rules, "the file", frozenset([2]))(np.array(LOGITS), [1, 2, 1, 2], 3, 2)
    np.testing.assert_array_equal(found, expected)


def test_rules_hold_in_streams_batches_and_edited_runs(tmp_path: Path) -> None:
    model = gpt2(tmp_path / "ruled", seed=2, generation=RULES)
    prompts = ["the the the", "bank"]
    found = model.generate(prompts, max_new_tokens=20)
    assert [*found] != gpt2(tmp_path / "plain", seed=2).generate(prompts, max_new_tokens=20)
    streamed = ["", ""]
    for number, piece in model.generate(prompts, max_new_tokens=20, stream=True):
        streamed[number] += piece
    assert streamed == found
    unchanged = {"blocks.0.mlp_out": lambda x, at: x}
    assert model.generate(prompts, max_new_tokens=20, edit=unchanged) == found
    assert [model.generate(one, max_new_tokens=20) for one in prompts] == found
    for text in found:
        assert not {5, 6} & {*text.ids}
        pairs = [*pairwise(text.ids)]
        assert len({*pairs}) == len(pairs)


def test_measured_probabilities_are_those_of_the_model(tmp_path: Path) -> None:
    model = gpt2(tmp_path, seed=2, generation=RULES)
    text = model.generate("the bank", max_new_tokens=5, trace=True)
    found = model([model.tokenize("the bank").ids.tolist() + text.ids]).logits
    assert found is not None
    logits = found[0, -len(text.ids) - 1 : -1]
    np.testing.assert_allclose(text.logits, logits[range(len(text.ids)), text.ids], rtol=1e-5)


def test_keys_without_an_effect_give_no_warning(tmp_path: Path) -> None:
    fine = {"num_beams": 1, "do_sample": True, "temperature": 0.6, "top_k": 20, "max_length": 99}
    fine |= {"typical_p": 1.0, "guidance_scale": None, "transformers_version": "5.23.0"}
    gpt2(tmp_path, seed=2, generation=fine)  # a warning is an error


def test_keys_that_qkv_does_not_apply_are_named(tmp_path: Path) -> None:
    found = {"num_beams": 4, "min_p": 0.1, "repetition_penalty": 1.1, "top_k": 5}
    message = "generation_config.json of .*: qkv does not apply num_beams, min_p: "
    with pytest.warns(UserWarning, match=message):
        gpt2(tmp_path, seed=2, generation=found)


def test_rules_of_a_model_that_generates_nothing_are_ignored(tmp_path: Path) -> None:
    gpt2(tmp_path, seed=2, generation={"num_beams": 4}, architectures=["GPT2Model"])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("repetition_penalty", value) for value in (0, -1.0, "x")),
        *(("no_repeat_ngram_size", value) for value in (-1, 1.5, [2])),
        *(("suppress_tokens", value) for value in (3, ["x"], {})),
        *(("bad_words_ids", value) for value in (3, [3], [["x"]])),
        *(("forced_eos_token_id", value) for value in ("x", 1.5)),
        *(("min_length", value) for value in (-1, "x", True)),
    ],
)
def test_an_invalid_rule_gives_an_error_that_names_its_key(
    tmp_path: Path, key: str, value: Any
) -> None:
    shown = re.escape(f"{key} is ")
    with pytest.raises(qkv.ModelError, match=f"^load: generation_config.json of .*{shown}"):
        gpt2(tmp_path, seed=2, generation={key: value})


@pytest.mark.parametrize("temperature", [0, 1])
def test_rules_that_suppress_every_token_give_an_error(tmp_path: Path, temperature: float) -> None:
    model = gpt2(tmp_path, seed=2, generation={"suppress_tokens": [*range(EOS + 9)]})
    with pytest.raises(FloatingPointError, match=r"after 3 tokens .* suppress every token"):
        model.generate([[1, 2, 3]], temperature=temperature)

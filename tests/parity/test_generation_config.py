"""Tests of the rules of generation_config.json in greedy generation, against transformers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import qkv
from models.sizes import SMALL

from .models import scatter

NEW = 12
# Each prompt repeats tokens, so that penalties change the new tokens.
PROMPTS = [[7], [5, 9, 5, 9, 5], [8, 3, 30, 3, 30, 3, 30, 12]]
RULES: dict[str, dict[str, Any]] = {
    "repetition": {"repetition_penalty": 1.7},
    "a bonus for repetition": {"repetition_penalty": 0.6},
    "no repeated pairs": {"no_repeat_ngram_size": 2},
    "no repeated tokens": {"no_repeat_ngram_size": 1},
    "no repeated sequences of four": {"no_repeat_ngram_size": 4},
    "suppressed": {"suppress_tokens": [*range(0, 40, 3), 99]},
    "suppressed at first": {"begin_suppress_tokens": [*range(0, 40, 2)]},
    "forced first, then suppressed": {
        **{"begin_suppress_tokens": [*range(0, 40, 2)], "forced_bos_token_id": 6}
    },
    "forced last": {"forced_eos_token_id": 11},
    "one of two forced last": {"forced_eos_token_id": [14, 11]},
    "words": {"bad_words_ids": [[n] for n in range(0, 40, 4)]},
    "sequences": {"bad_words_ids": [[m, n] for m in range(40) for n in range(0, 40, 3)]},
    "words that end texts": {"bad_words_ids": [[n] for n in range(20, 40)]},
    "a minimum length": {"min_length": 7},
    "a minimum number of new tokens": {"min_new_tokens": 4},
    "both minimums": {"min_new_tokens": 2, "min_length": 9},
    "everything": {
        **{"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "min_new_tokens": 5},
        **{"suppress_tokens": [4, 5], "bad_words_ids": [[8], [9, 10]], "forced_eos_token_id": 1},
        **{"begin_suppress_tokens": [7], "forced_bos_token_id": 12},
    },
}


def saved(folder: Path, kind: str, generation: dict[str, Any], seed: int = 0) -> Any:
    """Save a small model with a generation_config.json; return transformers' model, in float64."""
    sizes, _ = SMALL["gpt2" if kind.startswith("GPT2") else "t5"]
    cls = getattr(transformers, kind)
    layers = {} if kind.startswith("GPT2") else {"num_decoder_layers": sizes["num_layers"]}
    model = cls(cls.config_class(**{**sizes, **layers, "eos_token_id": 39})).double()
    scatter(model, seed)
    model.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps(generation))
    return cls.from_pretrained(folder, dtype=torch.float64).eval()


def both(folder: Path, kind: str, rules: dict[str, Any], seed: int = 0) -> tuple[Any, Any, Any]:
    """Return transformers' new tokens, qkv's new tokens, and qkv's model.

    Half of the vocabulary ends a text, so that minimum lengths change the texts.
    """
    generation = {"eos_token_id": [*range(20, 40)], "pad_token_id": 0, **rules}
    generation |= {"decoder_start_token_id": 0} if kind.startswith("T5") else {}
    model = saved(folder, kind, generation, seed)
    ours = qkv.load(folder)
    expected = []
    for prompt in PROMPTS:
        with torch.inference_mode():
            found = model.generate(torch.tensor([prompt]), max_new_tokens=NEW, do_sample=False)
        expected.append(found[0, 1 if kind.startswith("T5") else len(prompt) :].tolist())
    found = ours.generate(PROMPTS, max_new_tokens=NEW)
    return expected, [one.ids for one in found], ours


@pytest.mark.parametrize("kind", ["GPT2LMHeadModel", "T5ForConditionalGeneration"])
@pytest.mark.parametrize("rules", RULES)
def test_greedy_tokens_under_a_rule_are_those_of_transformers(
    tmp_path: Path, kind: str, rules: str
) -> None:
    for seed in range(2):
        expected, found, model = both(tmp_path / str(seed), kind, RULES[rules], seed)
        assert found == expected
        assert [model.generate([p], max_new_tokens=NEW)[0].ids for p in PROMPTS] == expected
        model.save(tmp_path / "saved")
        again = qkv.load(tmp_path / "saved").generate(PROMPTS, max_new_tokens=NEW)
        assert [one.ids for one in again] == expected


@pytest.mark.parametrize("rules", sorted(RULES.keys() - {"words that end texts"}))
def test_each_rule_changes_a_text(tmp_path: Path, rules: str) -> None:
    plain = [both(tmp_path / f"p{s}", "GPT2LMHeadModel", {}, s)[1] for s in range(2)]
    ruled = [both(tmp_path / f"r{s}", "GPT2LMHeadModel", RULES[rules], s)[1] for s in range(2)]
    assert ruled != plain


def test_the_probabilities_of_samples_are_those_of_transformers(tmp_path: Path) -> None:
    from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor as Theirs

    model = saved(tmp_path, "GPT2LMHeadModel", {"repetition_penalty": 1.7, "pad_token_id": 0})
    ours, ids = qkv.load(tmp_path), torch.tensor([PROMPTS[1]])
    with torch.inference_mode():
        logits = Theirs(1.7)(ids, model(ids).logits[:, -1])
    expected = torch.softmax(logits / 0.8, -1)[0].numpy()
    samples = ours.generate([PROMPTS[1]] * 2000, max_new_tokens=1, temperature=0.8, seed=0)
    counts = np.bincount([one.ids[0] for one in samples], minlength=len(expected)) / 2000
    assert np.abs(counts - expected).max() < 0.05

"""Tests of generation against transformers: greedy tokens, and the tokens that may be drawn."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import (
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

import qkv
from models.small_models import WRITERS
from qkv.attend import KVCache
from qkv.models.network.batch import PackedIds
from qkv.models.tasks._sampling import Sampling
from qkv.trace.recorder import pad_rows

from .models import Pair, made

NEW = 64
LENGTHS = (9, 1, 17, 5)
GROUPED = {
    "hidden_size": 48,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 70,
    "num_hidden_layers": 4,
    "max_position_embeddings": 128,
}
PARALLEL = {"hidden_size": 48, "num_attention_heads": 6, "num_hidden_layers": 3}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", {"n_embd": 33, "n_head": 3, "n_layer": 3, "n_positions": 128}),
    "llama": ("Llama", GROUPED),
    "mistral": ("Mistral", {**GROUPED, "sliding_window": 11}),
    "qwen2": ("Qwen2", {k: v for k, v in GROUPED.items() if k != "head_dim"}),
    "qwen3": (
        "Qwen3",
        {**GROUPED, "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2},
    ),
    "qwen3_moe": (
        "Qwen3Moe",
        {**GROUPED, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 20},
    ),
    "gemma": ("Gemma", GROUPED),
    "gemma2": ("Gemma2", {**GROUPED, "sliding_window": 12, "query_pre_attn_scalar": 10}),
    "gemma3_text": ("Gemma3", {**GROUPED, "sliding_window": 8, "query_pre_attn_scalar": 10}),
    "mixtral": ("Mixtral", {**GROUPED, "num_local_experts": 4, "sliding_window": 11}),
    "olmo2": ("Olmo2", GROUPED),
    "olmo": ("Olmo", GROUPED),
    "olmo, clipped": ("Olmo", {**GROUPED, "clip_qkv": 0.7}),
    "olmo3": ("Olmo3", {**GROUPED, "sliding_window": 9}),
    "granite": (
        "Granite",
        {**GROUPED, "residual_multiplier": 0.6, "embedding_multiplier": 5.0, "logits_scaling": 3.0},
    ),
    "smollm3": ("SmolLM3", {**GROUPED, "use_sliding_window": True, "sliding_window": 10}),
    "starcoder2": ("Starcoder2", {**GROUPED, "sliding_window": 11}),
    "stablelm": ("StableLm", {**PARALLEL, "num_key_value_heads": 3, "intermediate_size": 70}),
    "stablelm, a norm for each head": (
        "StableLm",
        {**PARALLEL, "num_key_value_heads": 3, "intermediate_size": 70, "qk_layernorm": True},
    ),
    "phi": ("Phi", {**PARALLEL, "intermediate_size": 70}),
    "falcon": (
        "Falcon",
        {**PARALLEL, "num_kv_heads": 2, "new_decoder_architecture": True, "ffn_hidden_size": 70},
    ),
    "opt": ("OPT", {**PARALLEL, "ffn_dim": 70, "max_position_embeddings": 128}),
    "phi3": (
        "Phi3",
        {
            **{key: size for key, size in GROUPED.items() if key != "head_dim"},
            **{"sliding_window": 11, "partial_rotary_factor": 0.5},
        },
    ),
    "bloom": ("Bloom", {"hidden_size": 35, "n_head": 5, "n_layer": 3}),
    "gpt_neo": (
        "GPTNeo",
        {
            **{"hidden_size": 36, "num_heads": 3, "num_layers": 3, "window_size": 7},
            **{"attention_types": [[["global", "local"], 1], [["local"], 1]]},
            "max_position_embeddings": 128,
        },
    ),
    "gpt_neox": ("GPTNeoX", {**PARALLEL, "intermediate_size": 70}),
    "gptj": (
        "GPTJ",
        {"n_embd": 36, "n_head": 3, "n_layer": 3, "n_positions": 128, "rotary_dim": 6},
    ),
    "gpt_oss": (
        "GptOss",
        {**GROUPED, "sliding_window": 10, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
}


def config_of(family: str, **others: Any) -> Any:
    name, sizes = MODELS[family]
    kind = "Gemma3TextConfig" if name == "Gemma3" else f"{name}Config"
    plain = {"vocab_size": 97, "pad_token_id": 0, "eos_token_id": None, "bos_token_id": 1}
    return getattr(transformers, kind)(**{**plain, **sizes, **others})


def pair_of(folder: Path, family: str, dtype: torch.dtype, **others: Any) -> Pair:
    name = MODELS[family][0]
    kind = getattr(transformers, "GPT2LMHeadModel" if name == "GPT2" else f"{name}ForCausalLM")
    return made(folder, kind, config_of(family, **others), dtype)


def prompts_of(lengths: tuple[int, ...]) -> list[list[int]]:
    rng = np.random.default_rng(3)
    return [rng.integers(3, 97, length).tolist() for length in lengths]


def theirs(pair: Pair, prompts: list[list[int]], **options: Any) -> list[list[int]]:
    """Return the new tokens of transformers' greedy generation, with prompts padded on the left."""
    longest = max(map(len, prompts))
    ids = np.array([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = np.array([[0] * (longest - len(one)) + [1] * len(one) for one in prompts])
    return pair.greedy(ids, NEW, attention_mask=mask, **options)


def test_every_generating_family_is_tested() -> None:
    assert {name.split(",")[0] for name in MODELS} == set(WRITERS)


@pytest.mark.parametrize("family", MODELS)
def test_greedy_tokens_are_those_of_transformers(tmp_path: Path, family: str) -> None:
    pair = pair_of(tmp_path, family, torch.float64)
    prompts = prompts_of(LENGTHS)
    ours = pair.ours.generate(prompts, max_new_tokens=NEW)
    assert [one.ids for one in ours] == theirs(pair, prompts)
    assert len({tuple(one.ids) for one in ours}) > 1
    for prompt, found in zip(prompts, ours, strict=True):
        without_cache = pair.ours([prompt + found.ids]).logits
        chosen = without_cache[0, len(prompt) - 1 : -1].argmax(-1)
        assert chosen.tolist() == found.ids


@pytest.mark.parametrize("family", MODELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_cached_steps_give_the_logits_of_one_run(
    tmp_path: Path, family: str, dtype: torch.dtype
) -> None:
    pair = pair_of(tmp_path, family, dtype)
    body = pair.ours.network
    prompts = [np.array(prompt) for prompt in prompts_of((30, 12, 41))]
    caches = [KVCache(options.get("window")) for options in body.options]
    texts = PackedIds.of([prompt[:-10] for prompt in prompts])
    first = body.step(pad_rows(texts.ids, texts.cu), caches, texts.lengths)
    states = [first[range(3), texts.lengths - 1]]
    for position in range(-10, 0):
        states.append(body.step(np.array([[prompt[position]] for prompt in prompts]), caches)[:, 0])
    for number, prompt in enumerate(prompts):
        expected = pair.ours([prompt]).logits
        for step, state in enumerate(states):
            found = body.logits(state)[number]
            pair.near(found, expected[0, len(prompt) - 11 + step], f"text {number}, step {step}")


def test_ends_and_padding(tmp_path: Path) -> None:
    prompts = prompts_of(LENGTHS)
    free = pair_of(tmp_path / "free", "gpt2", torch.float64)
    ends = [one.ids[k] for one, k in zip(free.ours.generate(prompts), (3, 30, 9, 60), strict=True)]
    pair = pair_of(tmp_path / "ends", "gpt2", torch.float64, eos_token_id=ends)
    ours = pair.ours.generate(prompts)
    padded = [one.ids + [0] * (NEW - len(one.ids)) for one in ours]
    longest = max(len(one.ids) for one in ours)
    assert longest < NEW
    assert [row[:longest] for row in padded] == theirs(pair, prompts)
    assert {one.finish_reason for one in ours} == {"eos"}


@pytest.mark.parametrize("temperature", [1.0, 0.4, 2.5])
@pytest.mark.parametrize("top_k", [None, 1, 7])
@pytest.mark.parametrize("top_p", [None, 0.2, 0.9])
def test_sampling_probabilities_are_those_of_transformers(
    temperature: float, top_k: int | None, top_p: float | None
) -> None:
    processors = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if top_k is not None:
        processors.append(TopKLogitsWarper(top_k))
    if top_p is not None:
        processors.append(TopPLogitsWarper(top_p))
    logits = np.random.default_rng(0).standard_normal((50, 97)) * 2
    logits[:10] = logits[:10].round()  # ties
    left = processors(torch.zeros((50, 1), dtype=torch.long), torch.tensor(logits)).softmax(-1)
    for row, expected in zip(logits, left.numpy(), strict=True):
        ids, probabilities = Sampling(temperature, top_k, top_p).allowed_tokens(row)
        np.testing.assert_allclose(
            np.sort(probabilities), np.sort(expected[expected > 0]), rtol=1e-9
        )
        if top_p is None or len(set(row)) == len(row):  # top_p may drop any of the tied tokens
            np.testing.assert_array_equal(ids, np.flatnonzero(expected))
            np.testing.assert_allclose(probabilities, expected[ids], rtol=1e-9)


def test_sampled_tokens_are_allowed_by_transformers(tmp_path: Path) -> None:
    pair = pair_of(tmp_path, "llama", torch.float64)
    prompts = prompts_of(LENGTHS)
    options: dict[str, Any] = {"temperature": 1.3, "top_k": 9, "top_p": 0.8}
    found = pair.ours.generate(prompts, seed=5, **options)
    processors = LogitsProcessorList(
        [TemperatureLogitsWarper(1.3), TopKLogitsWarper(9), TopPLogitsWarper(0.8)]
    )
    for prompt, one in zip(prompts, found, strict=True):
        ids = torch.tensor([prompt + one.ids])
        logits = pair.run(ids).logits[0, len(prompt) - 1 : -1]
        allowed = processors(ids, logits).isfinite()
        assert allowed[range(NEW), one.ids].all()
        assert allowed.sum(-1).max() > 1


def test_stop_strings(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, decoders, models

    words = {chr(number + 28): number for number in range(97)}
    tokenizer = Tokenizer(models.BPE(words, []))
    tokenizer.decoder = decoders.Fuse()
    pair = pair_of(tmp_path, "gpt2", torch.float64)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    ours = qkv.load(tmp_path)
    prompt = prompts_of((9,))[0]
    text = ours.generate(prompt)
    assert text == tokenizer.decode(text.ids)
    for stop in (text[20:22], text[40:43], "never in it"):
        cut = ours.generate(prompt, stop=stop)
        assert cut == text.split(stop)[0]
        (expected,) = theirs(pair, [prompt], stop_strings=[stop], tokenizer=fast)
        assert cut.ids == expected

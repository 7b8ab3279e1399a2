"""Tests of `why` against transformers, whose scores are masked just before each softmax."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from qkv.models.run.edited_run import MaskedKey
from qkv.models.tasks import Knockout
from qkv.text import Tokenized

from .models import Pair, double, made

V, T = 97, 12
SIZES: dict[str, Any] = {
    **{"vocab_size": V, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4},
    **{"intermediate_size": 40, "max_position_embeddings": 64},
}
GROUPED = {**SIZES, "num_key_value_heads": 2, "head_dim": 6, "pad_token_id": 0}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": (
        "GPT2LMHeadModel",
        {"vocab_size": V, "n_embd": 24, "n_head": 4, "n_layer": 3, "n_inner": 40},
    ),
    "mistral, in windows": ("MistralForCausalLM", {**GROUPED, "sliding_window": 5}),
    "gemma2, with softcaps": (
        "Gemma2ForCausalLM",
        {**GROUPED, "sliding_window": 6, "query_pre_attn_scalar": 6},
    ),
    "bloom, with ALiBi": (
        "BloomForCausalLM",
        {"vocab_size": V, "hidden_size": 24, "n_head": 4, "n_layer": 3},
    ),
    "gpt-oss, with sinks": (
        "GptOssForCausalLM",
        {**GROUPED, "num_local_experts": 3, "num_experts_per_tok": 2, "sliding_window": 5},
    ),
    "bert": ("BertForMaskedLM", SIZES),
}


@contextmanager
def masked(keys: Sequence[MaskedKey]) -> Iterator[None]:
    """Mask keys in each softmax over attention scores (1, H, T, S); the calls count the layers."""
    softmax, layer, inside = torch.nn.functional.softmax, 0, False

    def patched(x: Any, *args: Any, **options: Any) -> Any:
        nonlocal layer, inside
        if x.ndim != 4 or inside:  # a router's softmax, or the call that `double` repeats
            return softmax(x, *args, **options)
        x = x.clone()
        for one in keys:
            if one.layer in (None, layer):
                head = slice(None) if one.head is None else one.head
                query = slice(None) if one.query is None else one.query
                x[:, head, query, one.key] = -1e30  # with -inf, a row without keys would be NaN
        layer, inside = layer + 1, True
        try:
            return softmax(x, *args, **options)
        finally:
            inside = False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.functional, "softmax", patched)
        yield
    assert layer == 3


def copies_of(decodes: bool) -> list[tuple[int, list[MaskedKey]]]:
    """Return masked keys of each kind: hidden words, direct effects, late layers, single links."""
    at = T - 1 if decodes else 7
    queries = [at, at + 1] if decodes else [at]
    hidden = [(key, [MaskedKey(0, None, key, None, None)]) for key in (0, 4, 10, 11)]
    word = (3, [MaskedKey(0, None, key, None, None) for key in (3, 4, 5)])
    direct = [(at, [MaskedKey(0, q, key, None, None) for q in queries]) for key in (5, 10)]
    late = (6, [MaskedKey(0, None, 6, layer, None) for layer in (1, 2)])
    links = [(at, [MaskedKey(0, q, 9, 1, head) for q in queries]) for head in (0, 3)]
    return [(at, []), *hidden, word, *direct, late, *links]


@pytest.mark.parametrize("family", FAMILIES)
def test_probabilities_with_masked_keys(tmp_path: Path, family: str) -> None:
    kind, config = FAMILIES[family]
    pair: Pair = made(tmp_path, kind, config, torch.float64)
    decodes = "Masked" not in kind
    ids, answer = np.random.default_rng(0).integers(4, V, T), [17, 30] if decodes else [17]
    tokens = Tokenized(ids, [str(index) for index in ids], [], [False] * T)
    copies = copies_of(decodes)
    runs = Knockout(pair.ours, tokens, copies[0][0], answer=answer)
    found = [outcome.log_probability for outcome in runs.run(copies)]
    expected = []
    whole = torch.tensor([*ids, *answer[:-1]])[None]
    for _, keys in copies:
        with torch.no_grad(), double(True), masked(keys):
            logits = pair.theirs(whole, **({"use_cache": False} if decodes else {})).logits[0]
        logs = torch.log_softmax(logits, -1)
        expected.append(sum(float(logs[copies[0][0] + n, token]) for n, token in enumerate(answer)))
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert len({round(x, 9) for x in found}) >= len(found) - 2  # some keys are outside windows

"""Tests of the token that a decoder's classification head reads, against transformers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from models.sizes import SMALL
from qkv.models.families import FAMILIES

from .models import Pair, made

DECODERS = {
    name: kinds[1]
    for name, (_, kinds) in SMALL.items()
    if kinds[0].endswith(("ForCausalLM", "LMHeadModel")) and len(kinds) > 1
}


def pair_of(folder: Path, name: str, **changes: Any) -> Pair:
    """Return a small classifier of a family in both libraries, in float64."""
    kind = getattr(transformers, DECODERS[name])
    config = kind.config_class(**{**SMALL[name][0], "num_labels": 3, **changes})
    return made(folder, kind, config, torch.float64)


@pytest.mark.parametrize("name", DECODERS)
def test_a_head_reads_the_last_token_that_is_not_the_padding_token(
    tmp_path: Path, name: str
) -> None:
    pair = pair_of(tmp_path, name, pad_token_id=5)
    texts = [[3, 4, 5, 6, 5, 5], [7, 5], [3, 4, 6], [5, 5, 5], [5]]
    for ids in texts:
        pair.near(pair.ours([ids]).logits, pair.run(np.array([ids])).logits, str(ids))
    longest = max(map(len, texts))
    padded = np.array([ids + [5] * (longest - len(ids)) for ids in texts])
    mask = np.array([[1] * len(ids) + [0] * (longest - len(ids)) for ids in texts])
    theirs = pair.run(padded, attention_mask=mask).logits
    pair.near(pair.ours(padded, mask).logits, theirs, "a padded batch")


@pytest.mark.parametrize("name", DECODERS)
def test_a_head_reads_the_last_token_without_a_padding_token(tmp_path: Path, name: str) -> None:
    pair = pair_of(tmp_path, name, pad_token_id=None)
    for ids in ([3, 4, 0, 1], [0, 0]):
        pair.near(pair.ours([ids]).logits, pair.run(np.array([ids])).logits, str(ids))


@pytest.mark.parametrize("name", DECODERS)
def test_a_family_has_the_default_padding_token_of_transformers(name: str) -> None:
    default = transformers.CONFIG_MAPPING[name]().pad_token_id
    assert FAMILIES[name].defaults.get("pad_token_id") == default

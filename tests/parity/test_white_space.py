"""White space, special tokens and capitals in texts, for every kind of tokenizer.

Each test compares qkv with sentence-transformers, transformers and tokenizers on one folder.
"""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    LlamaConfig,
    LlamaModel,
    PreTrainedTokenizerFast,
)

import qkv

from .models import scatter
from .support import close

BLANKS = [
    *(" ", "  ", "\t", "\n", "\r", "\v", "\f", "\x1c", "\x85", "\xa0"),
    *("\u2003", "\u2028", "\u3000", "\u200b", "\ufeff"),
]
SIDES = [side for one in BLANKS for side in ((one, ""), ("", one), (one, one))]
AROUND = [f"{one}{word}{other}" for word in ("hi", "a hi", "[MASK]") for one, other in SIDES]
TEXTS = [*BLANKS, *AROUND, "hi"]
CAPITALS = ["HI [MASK] A", " [SEP]Hi", "ΟΔΟΣ ΣΑΣ\n", "İA ẞ Hi", "BIG Big big hi", "[CLS]"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = "hiabgskmu[]οδσςα"
GAP = "▁"


def wordpiece() -> Tokenizer:
    """Return a tokenizer like BERT's, which reads upper case as it is."""
    words = [*LETTERS, *(f"##{letter}" for letter in LETTERS), "hi"]
    inner = Tokenizer(models.WordPiece(numbered([*SPECIAL, *words]), unk_token="[UNK]"))
    inner.normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=False)
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return inner


def byte_level() -> Tokenizer:
    """Return a tokenizer like GPT-2's."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("h", "i"), ("Ġ", "hi"), ("Ġ", "a"), ("Ċ", "Ċ")]
    words = [*letters, *map("".join, merges)]
    inner = Tokenizer(models.BPE(numbered([*SPECIAL, *words]), merges))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return inner


def sentencepiece_bpe() -> Tokenizer:
    """Return a tokenizer like Llama 2's."""
    merges = [("h", "i"), (GAP, "hi"), (GAP, "a"), (GAP, GAP)]
    words = [*(f"<0x{n:02X}>" for n in range(256)), GAP, *LETTERS, *map("".join, merges)]
    ids = numbered([*SPECIAL, *words])
    inner = Tokenizer(models.BPE(ids, merges, unk_token="[UNK]", fuse_unk=True, byte_fallback=True))
    parts = [normalizers.Prepend(GAP), normalizers.Replace(" ", GAP)]
    inner.normalizer = normalizers.Sequence(parts)  # type: ignore[arg-type]  # a list is right
    return inner


def unigram() -> Tokenizer:
    """Return a tokenizer like T5's."""
    words = [GAP, *LETTERS, "hi", f"{GAP}hi"]
    pairs = [*((word, 0.0) for word in SPECIAL), *((w, -9.0 + 2 * len(w)) for w in words)]
    inner = Tokenizer(models.Unigram(pairs, unk_id=1))
    inner.normalizer = normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.Strip(left=False),
            normalizers.Replace(Regex(" {2,}"), GAP),
        ]
    )
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    return inner


KINDS = [wordpiece, byte_level, sentencepiece_bpe, unigram]


def numbered(words: list[str]) -> dict[str, int]:
    return {word: number for number, word in enumerate(words)}


def write(folder: Path, kind: Any, model: type = BertModel, **sentence: Any) -> Path:
    """Save a random model with a tokenizer of this kind; a LlamaModel gets no special tokens."""
    inner = kind()
    if model is not LlamaModel:
        inner.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
        )
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    saved = PreTrainedTokenizerFast(
        tokenizer_object=inner, **dict(zip(names, SPECIAL, strict=True))
    )
    saved.add_tokens([AddedToken("Big", normalized=True)])
    sizes = {
        "vocab_size": len(saved),
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 40,
        "max_position_embeddings": 64,
    }
    config = LlamaConfig(**sizes) if model is LlamaModel else BertConfig(**sizes, num_labels=1)
    made = model(config)
    scatter(made)
    made.save_pretrained(folder)
    saved.save_pretrained(folder)
    if model is BertForSequenceClassification:
        return folder
    files = {
        "modules.json": [
            {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{name}"}
            for n, (path, name) in enumerate([("", "Transformer"), ("1_Pooling", "Pooling")])
        ],
        "sentence_bert_config.json": {"max_seq_length": 64} | sentence,
        "config_sentence_transformers.json": {"prompts": {"query": "hi a: ", "document": " a\n"}},
        "1_Pooling/config.json": {"embedding_dimension": 24, "pooling_mode": "mean"},
    }
    (folder / "1_Pooling").mkdir(parents=True)
    for name, values in files.items():
        (folder / name).write_text(json.dumps(values))
    return folder


def both(folder: Path, kind: type = SentenceTransformer) -> tuple[qkv.Model, Any]:
    """Load a folder with both libraries."""
    return qkv.load(folder), kind(str(folder), device="cpu", local_files_only=True)


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize("kind", KINDS)
def test_ids(tmp_path: Path, kind: Any) -> None:
    write(tmp_path, kind)
    ours, library = qkv.load(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    file = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in [*TEXTS, *CAPITALS]:
        ids = ours.tokenize(text).ids.tolist()
        assert ids == library(text)["input_ids"] == file.encode(text).ids, repr(text)
        if len(ids) > 2:
            assert ours.trace(text).tokens == file.encode(text).tokens


@pytest.mark.parametrize("kind", KINDS)
def test_lower_case(tmp_path: Path, kind: Any) -> None:
    """Special tokens keep their capitals, and a final capital sigma becomes the usual small one."""
    ours, theirs = both(write(tmp_path, kind, do_lower_case=True))
    for text in [*TEXTS, *CAPITALS]:
        assert ours.tokenize(text).ids.tolist() == theirs.tokenizer(text)["input_ids"], repr(text)
    for name in ("encode", "encode_query"):
        close(getattr(ours, name)(CAPITALS), getattr(theirs, name)(CAPITALS))
    ours.save(tmp_path / "saved")
    close(both(tmp_path / "saved")[1].encode(CAPITALS), ours.encode(CAPITALS))


@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize("model", [BertModel, LlamaModel])
@pytest.mark.parametrize("kind", KINDS)
def test_vectors(tmp_path: Path, kind: Any, model: type, include: bool) -> None:
    write(tmp_path, kind, model)
    change(tmp_path / "1_Pooling/config.json", include_prompt=include)
    ours, theirs = both(tmp_path)
    texts = [text for text in TEXTS if len(ours.tokenize(text))]
    for name in ("encode", "encode_query", "encode_document"):
        close(getattr(ours, name)(texts), getattr(theirs, name)(texts))


@pytest.mark.parametrize(
    "mode", ["cls", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
)
@pytest.mark.parametrize("model", [BertModel, LlamaModel])
def test_prompts_that_share_their_last_token_with_the_text(
    tmp_path: Path, model: type, mode: str
) -> None:
    """With "hi " left out, "hi a" has no token left: its last token is " a", the second of two."""
    write(tmp_path, byte_level, model, max_seq_length=7)
    change(tmp_path / "1_Pooling/config.json", include_prompt=False, pooling_mode=mode)
    ours, theirs = both(tmp_path)
    for prompt in ("hi ", "hi hi hi hi hi hi hi hi"):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".* cut to 7 tokens", UserWarning)
            found = ours.encode(["a", "hi", "", "a hi"], prompt=prompt)
        close(found, theirs.encode(["a", "hi", "", "a hi"], prompt=prompt))


@pytest.mark.parametrize("kind", KINDS)
def test_pairs(tmp_path: Path, kind: Any) -> None:
    write(tmp_path, kind, BertForSequenceClassification)
    ours, theirs = both(tmp_path, CrossEncoder)
    texts = [*TEXTS, "", "hi [SEP] a", " [CLS]"]
    pairs = [*zip(texts, reversed(texts), strict=True), *(("hi\n", text) for text in texts)]
    logits = {"activation_fn": torch.nn.Identity()}
    close(ours.predict(pairs, **logits), theirs.predict(pairs, **logits))
    close(
        ours.predict(pairs, **logits, prompt=" a "), theirs.predict(pairs, **logits, prompt=" a ")
    )
    for query in (" hi", "a\u3000", "\u2003hi\n"):
        found, expected = (one.rank(query, texts) for one in (ours, theirs))
        scores = {one["corpus_id"]: one["score"] for one in expected}
        close([one["score"] for one in found], [scores[one["corpus_id"]] for one in found])

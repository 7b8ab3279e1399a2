"""Tests of tokenizer_config.json and the files beside it, against transformers."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer

import qkv
from models.sizes import SMALL
from qkv.text import SubwordTokenizer

TEXTS = [
    "The Café déjà vu naïve CAFE",
    "語w1 w2語w3 [MASK]w4",
    " w1 new york w2new york<x>w3 <y> w4<s>w5 [CLS] w6",
    "the w1[SEP] w2 w3 w4 w5 w6 w1 w2 w3 w4 w5 w6 cafe",
    "",
]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
BERT = [*SPECIAL, "the", "The", "cafe", "café", "Café", "CAFE", "語", "new", "york", "y", "[", "]"]
BERT += ["cls", "sep", "CLS", "SEP", "##w", "##new", "##w3", "<", ">", "x"]
BERT += [f"w{n}" for n in range(9)]
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def word_piece() -> Tokenizer:
    """Return a tokenizer like BERT's, with lower case."""
    made = Tokenizer(models.WordPiece({w: n for n, w in enumerate(BERT)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.add_special_tokens(SPECIAL)
    made.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return made


def byte_pairs() -> Tokenizer:
    """Return a tokenizer like RoBERTa's."""
    words = [*ROBERTA, *sorted(pre_tokenizers.ByteLevel.alphabet()), "Ġw", "w1"]
    made = Tokenizer(models.BPE({w: n for n, w in enumerate(words)}, [("Ġ", "w"), ("w", "1")]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(ROBERTA)
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return made


def pieces() -> Tokenizer:
    """Return a tokenizer like XLM-RoBERTa's."""
    words = [*ROBERTA[:4], "▁", "▁w", *(f"{n}" for n in range(9)), *"abcdefghijklmnopqrstuvwxyz é"]
    made = Tokenizer(models.Unigram([(w, -float(n)) for n, w in enumerate([*words, "<mask>"])], 3))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    made.decoder = decoders.Metaspace()
    made.add_special_tokens(ROBERTA)
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    return made


MADE = {"bert": word_piece, "mpnet": word_piece, "roberta": byte_pairs, "gpt2": byte_pairs}
MADE |= {"xlm-roberta": pieces, "electra": word_piece, "distilbert": word_piece}
BERT_KEYS = {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True}
NAMES = dict(
    zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True)
)
MPNET = NAMES | {"bos_token": "[CLS]", "eos_token": "[SEP]"}
DECODER = {
    str(n): {"content": token, "special": n < 5, "normalized": n >= 5, "lstrip": False}
    for n, token in enumerate(SPECIAL)
}
PIECES = NAMES | BERT_KEYS
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "cased": ("bert", {**PIECES, "do_lower_case": False}, {}),
    "no class": ("bert", {"do_lower_case": False}, {}),
    "no accents": ("bert", {**PIECES, "do_lower_case": False, "strip_accents": True}, {}),
    "accents": ("bert", {**PIECES, "strip_accents": False}, {}),
    "characters": ("bert", {**PIECES, "tokenize_chinese_chars": False}, {}),
    "mpnet": ("mpnet", {**MPNET, **BERT_KEYS, "do_lower_case": False}, {}),
    "electra": ("electra", {**PIECES, "do_lower_case": False}, {}),
    "distilbert": ("distilbert", {**PIECES, "do_lower_case": False}, {}),
    "no effect": (
        "bert",
        {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": False},
        {},
    ),
    "a space before": ("roberta", {"add_prefix_space": True}, {}),
    "no space before": ("roberta", {"add_prefix_space": False}, {}),
    "a space before a decoder's text": ("gpt2", {"add_prefix_space": True}, {}),
    "no mark before": ("xlm-roberta", {"add_prefix_space": False}, {}),
    "a mark before": ("xlm-roberta", {"add_prefix_space": True}, {}),
    "special tokens are split": ("bert", {**PIECES, "split_special_tokens": True}, {}),
    "more special tokens": ("bert", {**PIECES, "additional_special_tokens": ["<x>", "w3"]}, {}),
    "extra special tokens": (
        "bert",
        {**PIECES, "extra_special_tokens": {"image_token": "<x>"}},
        {},
    ),
    "a named token": ("bert", {**PIECES, "bos_token": "<x>"}, {}),
    "added tokens": (
        "bert",
        {
            **PIECES,
            "added_tokens_decoder": {
                **DECODER,
                "34": {"content": "new york", "special": False, "normalized": True},
                "35": {"content": "w3", "special": False, "single_word": True},
            },
        },
        {},
    ),
    "other options of a token": (
        "bert",
        {**PIECES, "added_tokens_decoder": DECODER | {"4": {"content": "[MASK]", "lstrip": True}}},
        {},
    ),
    "older added tokens": ("bert", PIECES, {"<x>": 34, "new york": 35}),
    "older added tokens, special": (
        "bert",
        {**PIECES, "additional_special_tokens": ["<x>"]},
        {"new york": 35, "<x>": 34},
    ),
}
SAME = {"no effect", "no space before", "a mark before", "other options of a token"}
CLASSES = {
    **{"bert": "BertTokenizer", "mpnet": "MPNetTokenizer", "roberta": "RobertaTokenizer"},
    **{"gpt2": "GPT2Tokenizer", "xlm-roberta": "XLMRobertaTokenizer"},
    **{"electra": "ElectraTokenizer", "distilbert": "DistilBertTokenizerFast"},
}


def write(folder: Path, family: str, values: dict[str, Any], added: dict[str, Any]) -> None:
    """Write a small model with these files beside its tokenizer.json."""
    kind = getattr(transformers, SMALL[family][1][0])
    sizes = {**SMALL[family][0], "vocab_size": 400}
    kind(kind.config_class(**sizes)).save_pretrained(folder)
    MADE[family]().save(str(folder / "tokenizer.json"))
    own = {} if "no class" in folder.name else {"tokenizer_class": CLASSES[family]}
    (folder / "tokenizer_config.json").write_text(json.dumps({**own, **values}))
    if added:
        (folder / "added_tokens.json").write_text(json.dumps(added))


@pytest.mark.parametrize("case", CASES)
def test_a_tokenizer_gives_the_ids_of_transformers(tmp_path: Path, case: str) -> None:
    family, values, added = CASES[case]
    folder = tmp_path / case
    write(folder, family, values, added)
    model, theirs = qkv.load(folder), AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        expected = theirs(text)["input_ids"]
        assert model.tokenizer.tokenize(text).ids.tolist() == expected, text
    model.save(tmp_path / "saved")
    again = qkv.load(tmp_path / "saved")
    for text in TEXTS:
        assert again.tokenizer.tokenize(text).ids.tolist() == theirs(text)["input_ids"], text


@pytest.mark.parametrize("case", sorted(CASES.keys() - SAME))
def test_each_file_changes_ids(tmp_path: Path, case: str) -> None:
    family, values, added = CASES[case]
    write(tmp_path, family, values, added)
    plain, model = SubwordTokenizer.from_file(tmp_path / "tokenizer.json"), qkv.load(tmp_path)
    assert any(plain(text).ids.tolist() != model.tokenizer(text).ids.tolist() for text in TEXTS)


@pytest.mark.parametrize("where", ["tokenizer_config.json", "tokenizer.json", "both"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_text_is_truncated_on_the_side_of_transformers(
    tmp_path: Path, where: str, side: str
) -> None:
    write(tmp_path, "bert", PIECES, {})
    if where != "tokenizer.json":
        path = tmp_path / "tokenizer_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "truncation_side": side}))
    if where != "tokenizer_config.json":
        path = tmp_path / "tokenizer.json"
        other = {"left": "Right", "right": "Left"}[side] if where == "both" else side.title()
        cut = {"direction": other, "max_length": 5, "strategy": "LongestFirst", "stride": 0}
        path.write_text(json.dumps({**json.loads(path.read_text()), "truncation": cut}))
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    ours = qkv.load(tmp_path)
    for folder in (tmp_path, tmp_path / "saved"):
        if folder != tmp_path:
            ours.save(folder)
            ours = qkv.load(folder)
        ours.max_seq_length = 8
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            for text in TEXTS[:-1]:
                expected = theirs(text, truncation=True, max_length=8)["input_ids"]
                assert ours.trace(text).ids == expected


def test_both_texts_of_a_pair_are_truncated_on_the_left(tmp_path: Path) -> None:
    kind = transformers.BertForSequenceClassification
    sizes = {**SMALL["bert"][0], "num_labels": 1}
    model = kind(kind.config_class(**sizes)).eval()
    with pytest.raises(TypeError, match="BertForSequenceClassification and is in memory; call"):
        qkv.load(model)
    model.save_pretrained(tmp_path)
    word_piece().save(str(tmp_path / "tokenizer.json"))
    values = {"tokenizer_class": "BertTokenizer", "truncation_side": "left", "model_max_length": 9}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**PIECES, **values}))
    theirs, ours = AutoTokenizer.from_pretrained(tmp_path), qkv.load(tmp_path)
    for first, second in (
        ("w1 w2 w3 w4 w5 w6", "w6 w5 w4 w3 w2"),
        ("w1", "w6 w5 w4 w3 w2 w1 w7 w8"),
    ):
        read = theirs(first, second, truncation=True, max_length=9, return_tensors="pt")
        with torch.inference_mode():
            expected = float(model(**read).logits[0, 0])
        with pytest.warns(UserWarning, match="1 of 1 documents, with the query, were cut to 9"):
            [found] = ours.rank(first, [second], activation_fn=lambda logits: logits)
        assert found["score"] == pytest.approx(expected, abs=1e-6)

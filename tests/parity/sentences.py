"""Sentences, and a tokenizer that both libraries read from the same folder.

The tokenizer has the sixty words in `WORDS`, unless the caller gives other words.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from .models import scatter

WORDS = [f"w{number}" for number in range(60)]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def tokenizer(limit: int | None = None, words: Sequence[str] = WORDS) -> PreTrainedTokenizerFast:
    """Return a tokenizer of these words that adds [CLS] and [SEP] to one or two texts."""
    ids = {word: number for number, word in enumerate([*SPECIAL, *words])}
    made = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    kinds = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    given = dict(zip(kinds, SPECIAL, strict=True))
    if limit is not None:
        given["model_max_length"] = limit
    return PreTrainedTokenizerFast(tokenizer_object=made, **given)


def random_bert(folder: Path, limit: int | None = None, seed: int = 0, **others: int) -> None:
    """Save a small random BERT for the words of `tokenizer(limit)`, and this tokenizer."""
    sizes = {
        **{"vocab_size": len(SPECIAL) + len(WORDS), "hidden_size": 24, "num_hidden_layers": 2},
        **{"num_attention_heads": 3, "intermediate_size": 40, "max_position_embeddings": 40},
    }
    model = BertModel(BertConfig(**sizes | others), add_pooling_layer=False)
    scatter(model, seed)
    model.save_pretrained(folder)
    tokenizer(limit).save_pretrained(folder)


def sentences_of_the_docs(count: int) -> list[str]:
    """Return sentences of 20 to 400 characters from the pages in docs/, without tables and code."""
    pages = sorted((Path(__file__).resolve().parents[2] / "docs").glob("*.md"))
    found: dict[str, None] = {}
    for page in pages:
        text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
        for sentence in re.split(r"(?<=[.!?:])\s+", text):
            words = " ".join(sentence.split())
            if 20 <= len(words) <= 400 and "|" not in words:
                found[words] = None
    return list(found)[:: len(found) // count][:count]

"""Sentences, and a tokenizer that both libraries read from the same folder.

The tokenizer has the sixty words in `WORDS`, unless the caller gives other words.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

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

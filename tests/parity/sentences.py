"""A tokenizer that both libraries read from the same folder.

The tokenizer has the sixty words in `WORDS`, unless the caller gives other words.
"""

from collections.abc import Sequence

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

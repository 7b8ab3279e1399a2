"""Turn texts into token ids: tokenizers of words, and of a trained model's subwords."""

from qkv.text.subwords import SubwordTokenizer
from qkv.text.tokenized import Tokenized
from qkv.text.tokenizer import Tokenizer
from qkv.text.words import WordTokenizer

__all__ = ["SubwordTokenizer", "Tokenized", "Tokenizer", "WordTokenizer"]

"""Turn texts into token ids: tokenizers for words, and for the subwords of trained models."""

from qkv.text.tokenized import Tokenized
from qkv.text.tokenizer import SubwordTokenizer, Tokenizer
from qkv.text.words import WordTokenizer

__all__ = ["SubwordTokenizer", "Tokenized", "Tokenizer", "WordTokenizer"]

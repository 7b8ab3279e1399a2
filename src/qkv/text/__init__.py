"""Turn texts into token ids: tokenizers for words, and for the subwords of trained models."""

from qkv.text._words import WordTokenizer
from qkv.text.tokenized import Tokenized
from qkv.text.tokenizer import SubwordTokenizer, Tokenizer

__all__ = ["SubwordTokenizer", "Tokenized", "Tokenizer", "WordTokenizer"]

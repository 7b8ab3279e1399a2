"""Texts that tokenizers must read alike: odd spaces, special tokens, rare characters."""

import unicodedata

import numpy as np

WORDS = "the cat, don't we'll I'M 123 4567.89 naïve 東京 日本語 नमस्ते ждать ἄλφα 🙂🙃 ½² ٣٤ <|end|>"
ODD = [
    " ",
    "  ",
    "\t",
    "\n",
    "\r\n",
    "\n\n  ",
    "\u3000",
    "\u200b",
    "\ufeff",
    "\xa0",
    "\0",
    "�",
    "e\u0301",
]


def odd_texts(count: int, special: tuple[str, ...] = (), seed: int = 0) -> list[str]:
    """Return texts of words, odd spaces, special tokens and random characters."""
    rng = np.random.default_rng(seed)
    letters = [chr(n) for n in range(0x3000) if unicodedata.category(chr(n))[0] != "C"]
    parts = [*WORDS.split(), *ODD, *special, *(chr(n) for n in (0x1F600, 0x20000, 0x10FFFF))]
    texts = [" ".join(WORDS.split()), "", *parts, *special]
    while len(texts) < count:
        made = rng.choice(np.array(parts, object), rng.integers(1, 9)).tolist()
        made += rng.choice(letters, rng.integers(0, 6)).tolist()
        rng.shuffle(made)
        texts.append(rng.choice(["", " "]).join(made))
    return texts

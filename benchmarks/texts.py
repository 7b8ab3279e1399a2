"""Sentences of natural lengths, joined from definitions and examples of WordNet."""

from pathlib import Path

import numpy as np

WORDNET = Path("/usr/share/wordnet")  # the folder of Debian's package wordnet-base


def glosses() -> list[str]:
    """Return the definitions and example sentences of WordNet.

    Raises:
        FileNotFoundError: WordNet is not installed.
    """
    if not (WORDNET / "data.noun").is_file():
        raise FileNotFoundError(f"{WORDNET} is missing: apt-get install wordnet-base")
    found = []
    for kind in ("noun", "verb", "adj", "adv"):
        for line in (WORDNET / f"data.{kind}").read_text(encoding="latin-1").splitlines():
            if line.startswith("  ") or " | " not in line:  # skip the licence
                continue
            found += [part.strip(' "') for part in line.partition(" | ")[2].split("; ")]
    return [text for text in found if text]


def sentences(count: int, tokens_of, *, seed: int = 0, longest: int = 200) -> list[str]:
    """Return `count` texts of 3 to 200 tokens, 35 on average, most of them short.

    Args:
        count: the number of texts.
        tokens_of: the function that returns the number of tokens of a text.
        seed: the seed of the random choice.
        longest: the maximum number of tokens of a text.
    """
    rng = np.random.default_rng(seed)
    parts = glosses()
    wanted = np.clip(rng.lognormal(3.3, 0.75, count), 3, longest).astype(int)
    texts = []
    for target in wanted:
        words: list[str] = []
        while len(words) < target:
            words += parts[rng.integers(len(parts))].split()
        words = words[: max(1, target * 4 // 5)]  # a word has about 1.25 tokens
        while tokens_of(" ".join(words)) > longest:
            words.pop()
        texts.append(" ".join(words))
    return texts

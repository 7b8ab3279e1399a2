"""An assertion that arrays are close, and random texts of every length."""

import json

import numpy as np


def close(found, expected, bound=1e-5):
    """Assert `max |difference| <= bound * max(1, max |value|)`, with finite values."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape
    assert np.isfinite(expected).all()
    difference = np.abs(found.astype(np.float64) - expected.astype(np.float64)).max(initial=0)
    allowed = bound * max(1, np.abs(expected).max(initial=0))
    assert difference <= allowed, f"{difference:.2e} > {allowed:.2e}"


def texts_from(words, count, longest, seed=0):
    """Return `count` texts of 1 to `longest` words, lengths evenly spread, in random order."""
    rng = np.random.default_rng(seed)
    lengths = np.linspace(1, longest, count).round().astype(int)
    rng.shuffle(lengths)
    return [" ".join(rng.choice(words, length)) for length in lengths]


def words_of(path):
    """Return the words of a tokenizer.json that are one token each, of lowercase letters only."""
    vocabulary = json.loads(path.read_text(encoding="utf-8"))["model"]["vocab"]
    return [word for word in vocabulary if word.isascii() and word.isalpha() and word.islower()]

"""Tests of batches: masked words and their shares, next words, and several objectives."""

from __future__ import annotations

import json

import numpy as np
import pytest

from qkv.learn import (
    Causal,
    Masked,
    Part,
    Sequences,
    _objectives as objectives_module,
    train_tokenizer,
)
from rows import failing

TEXT = ["the cat sat on the mat", "a dog ran to the river bank and back again"] * 20


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXT, "wordpiece", 80)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_a_masked_batch_has_the_expected_token_shares(tokenizer) -> None:
    texts = [tokenizer.tokenize(text).ids for text in TEXT]
    objective = Masked(Sequences(texts), tokenizer, share=0.3, tokens_per_step=20_000)
    batch = objective.batch(0, rng())
    assert 20_000 <= len(batch.ids) < 20_000 + max(map(len, texts))
    assert batch.cu_lengths[-1] == len(batch.ids)
    # The batch before words were masked.
    plain = batch.ids.copy()
    plain[batch.at] = batch.targets
    assert set(plain.tolist()) <= {int(token) for ids in texts for token in ids}
    special = np.isin(plain, [tokenizer.vocabulary[name] for name in ("[CLS]", "[SEP]")])
    assert special[batch.cu_lengths[:-1]].all()
    assert special[batch.cu_lengths[1:] - 1].all()
    assert special.sum() == 2 * (len(batch.cu_lengths) - 1)
    assert not special[batch.at].any()
    assert (np.diff(batch.at) > 0).all()
    assert len(batch.at) == round(0.3 * (~special).sum())
    now = batch.ids[batch.at]
    masked = (now == tokenizer.vocabulary["[MASK]"]).mean()
    same = (now == batch.targets).mean()
    assert masked == pytest.approx(0.8, abs=0.02)
    assert same == pytest.approx(0.1, abs=0.02)
    others = now[(now != batch.targets) & (now != tokenizer.vocabulary["[MASK]"])]
    assert not any(tokenizer.is_special(int(token)) for token in others)
    assert len(set(others.tolist())) > 0.7 * len(tokenizer)


def test_the_same_generator_masks_the_same_words(tokenizer) -> None:
    texts = [tokenizer.tokenize(text).ids for text in TEXT]
    first, second = (
        Masked(Sequences(texts, seed=3), tokenizer, tokens_per_step=100) for _ in range(2)
    )
    one, two = first.batch(0, rng(1)), second.batch(0, rng(1))
    np.testing.assert_array_equal(one.ids, two.ids)
    np.testing.assert_array_equal(one.at, two.at)
    assert not np.array_equal(second.batch(1, rng(2)).at, one.at)


def fates(batch, tokenizer) -> list[dict[str, set[str]]]:
    """Return a dict for each text, which says what happened to each token of the text.

    A token was replaced by [MASK] ("hidden"), replaced by another token ("other"), chosen but not
    replaced ("kept"), or not chosen ("seen"). Each value is a set, because a token can occur more
    than once in a text.
    """
    names = {index: name for name, index in tokenizer.vocabulary.items()}
    plain = batch.ids.copy()
    plain[batch.at] = batch.targets
    chosen = np.zeros(len(plain), bool)
    chosen[batch.at] = True
    found = []
    for begin, end in zip(batch.cu_lengths, batch.cu_lengths[1:], strict=False):
        text: dict[str, set[str]] = {}
        for k in range(begin, end):
            fate = "seen"
            if chosen[k]:
                mask = batch.ids[k] == tokenizer.vocabulary["[MASK]"]
                fate = "hidden" if mask else "kept" if batch.ids[k] == plain[k] else "other"
            text.setdefault(names[plain[k]], set()).add(fate)
        found.append(text)
    return found


def test_equal_words_and_their_subwords_are_masked_together() -> None:
    """Equal words of a text are masked together; equal punctuation marks are masked separately.

    For example, if one "the" is masked, every "the" in the text is masked. All subwords of a word
    are masked together, too.
    """
    texts = ["The cat sat on the mat, the dog, too", "mat, matted, mat"]
    tokenizer = train_tokenizer([*TEXT, ", , the dog , too"] * 3, "wordpiece", 90)
    ids = [tokenizer.tokenize(text).ids for text in texts]
    assert tokenizer.tokenize("matted").tokens[1:-1][0] == "mat"
    objective = Masked(
        Sequences(ids), tokenizer, share=0.3, tokens_per_step=3000, alike=str.casefold
    )
    batch = objective.batch(0, rng())
    seen: dict[str, list[str]] = {}
    commas = []
    for text in fates(batch, tokenizer):
        if "cat" in text:
            for word in ("the", "cat", "sat", "dog"):
                fate = text[word]  # the random token may be the original token
                assert len(fate) == 1 or fate == {"other", "kept"}
                seen.setdefault(word, []).append(max(fate))
            commas.append(text[","])
        subwords = [name for name in text if name.startswith("##")]
        if subwords and "cat" not in text:
            assert len({fate for subword in subwords for fate in text[subword]}) == 1
    for word, found in seen.items():
        share = 1 - found.count("seen") / len(found)
        assert share == pytest.approx(0.3, abs=0.08), (
            word
        )  # independent of how often the word occurs
        assert "hidden" in found
    every = [fate for found in seen.values() for fate in found if fate != "seen"]
    assert every.count("hidden") / len(every) == pytest.approx(0.8, abs=0.07)
    assert any({"seen", "hidden"} <= one for one in commas)
    assert len(batch.at) / (~np.isin(batch.ids, [2, 3])).sum() == pytest.approx(0.3, abs=0.01)
    assert (np.diff(batch.at) > 0).all()


def test_words_with_the_same_prefix_differ_unless_alike_equates_them(
    tokenizer,
) -> None:
    ids = [tokenizer.tokenize("mat matted mats mat").ids]
    subwords = tokenizer.tokenize("mat matted mats mat").tokens[1:-1]
    assert subwords[0] == subwords[-1] == subwords[1] == "mat"
    whole = Masked(Sequences(ids), tokenizer, alike=str.casefold)
    length = len(subwords)
    ends = subwords.index("mat", 2)  # where "mats" begins
    expected = [0, *[1] * (ends - 1), *[2] * (length - 1 - ends), 0]
    assert whole._words(ids, str.casefold).tolist() == expected
    assert set(whole._words(ids, lambda word: word[:3]).tolist()) == {0}
    assert whole._words(ids * 2, lambda word: word[:3]).tolist() == [0] * length + [1] * length


def test_causal_targets_are_the_next_tokens() -> None:
    sequences = [[1, 2, 3, 4], [5], [6, 7]]
    batch = Causal(Sequences(sequences), tokens_per_step=11).batch(0, rng())
    begins, follows = {1: [2, 3, 4], 6: [7]}, 0
    for begin, end in zip(batch.cu_lengths, batch.cu_lengths[1:], strict=False):
        assert batch.targets[begin:end].tolist() == begins[int(batch.ids[begin])]
        follows += 1
    assert follows == len(batch.cu_lengths) - 1
    np.testing.assert_array_equal(batch.at, np.arange(len(batch.ids)))


def test_each_epoch_has_every_sequence_once_in_another_order() -> None:
    source = Sequences([[k] for k in range(50)], seed=1)
    rounds = [[int(source.take()[0]) for _ in range(50)] for _ in range(3)]
    assert all(sorted(one) == list(range(50)) for one in rounds)
    assert rounds[0] != rounds[1] != rounds[2] != list(range(50))


def test_sequences_resume_from_their_saved_state() -> None:
    source = Sequences([[k] for k in range(7)], seed=1)
    for _ in range(10):
        source.take()
    state = json.loads(json.dumps(source.state()))
    expected = [int(source.take()[0]) for _ in range(20)]
    again = Sequences([[k] for k in range(7)], seed=1)
    again.restore(state)
    assert [int(again.take()[0]) for _ in range(20)] == expected
    with pytest.raises(ValueError, match="are 6 sequences, but the checkpoint was written with 7"):
        Sequences([[k] for k in range(6)]).restore(state)


def test_weights_by_the_share_of_the_run() -> None:
    objective = Causal(Sequences([[1, 2]]))
    late = Part(objective, 0.5, begin=0.35)
    assert [late.at(share) for share in (0.0, 0.34, 0.35, 1.0)] == [0, 0, 0.5, 0.5]
    assert Part(objective, lambda share: share**2).at(0.5) == 0.25


def test_invalid_arguments_are_refused(tokenizer, monkeypatch) -> None:
    monkeypatch.setattr(objectives_module, "_MOST_BARREN", 50)
    source, unable = Sequences([[1, 2]]), train_tokenizer(TEXT, "bytes", 300)
    special = [tokenizer.vocabulary["[CLS]"], tokenizer.vocabulary["[SEP]"]]
    for make, message in (
        (lambda: Sequences([]), "`sequences` is empty"),
        (lambda: Causal(source, tokens_per_step=0), "tokens_per_step"),
        (lambda: Masked(source, tokenizer, share=1.0), "between 0 and 1"),
        (lambda: Masked(source, unable), "has no mask"),
        (lambda: Masked(Sequences([special]), tokenizer).batch(0, rng()), "no sequence has a tok"),
        (lambda: Causal(Sequences([[4]])).batch(0, rng()), "no sequence has a token"),
    ):
        with failing(message), pytest.raises(ValueError, match=message):
            make()

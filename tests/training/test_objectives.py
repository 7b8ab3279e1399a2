"""Tests of the training objectives: their losses, gradients and batches.

The tests compare losses with separate computations, and gradients with finite differences.
"""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from learn import support
from qkv.learn import Sequences, Words, words_loss
from qkv.learn._network import Network
from qkv.learn._tokenizer import train_tokenizer
from training import wordnet
from training.neighbours import Neighbours
from training.objectives import (
    Guessed,
    Senses,
    Sentence,
    Taught,
    Unseen,
    entries,
    logits_of,
    nearest,
    pieces_of,
    sentences,
)
from training.wordnet import read


def test_the_loss_is_the_formula_word_by_word() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(20, 5))
    spans = np.array([[1, 3], [6, 7], [8, 12], [12, 15], [15, 20]])
    targets = np.array([2, 0])
    vectors = [rows[a:b].mean(0) for a, b in spans]
    expected = 0.0
    for word, right in zip(vectors[:2], targets, strict=True):
        cosines = [word @ d / np.linalg.norm(word) / np.linalg.norm(d) for d in vectors[2:]]
        each = np.exp(np.array(cosines) / 0.1)
        expected -= np.log(each[right] / each.sum()) / 2
    assert nearest(rows, spans, targets, 0.1)[0] == pytest.approx(expected)


def test_its_gradient_is_that_of_finite_differences() -> None:
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(14, 3))
    spans = np.array([[1, 3], [4, 5], [2, 4], [5, 9], [9, 14]])  # two of them overlap
    targets = np.array([1, 1, 0])
    _, grad = nearest(rows, spans, targets, 0.2)
    for at in np.ndindex(rows.shape):
        ends = []
        for step in (1e-6, -1e-6):
            moved = rows.copy()
            moved[at] += step
            ends.append(nearest(moved, spans, targets, 0.2)[0])
        assert grad[at] == pytest.approx((ends[0] - ends[1]) / 2e-6, abs=1e-8)
    assert not grad[0].any()


SENTENCES = [
    Sentence(np.array([2, 10, 11, 3]), 1, 2, 100, (200, 300, 400), ()),
    Sentence(np.array([2, 12, 10, 13, 3]), 2, 3, 200, (100,), ((np.array([14, 15]), (500,)),)),
]
DEFINITIONS = {n: np.array([2, 20 + n // 100, 3]) for n in (100, 200, 300, 400, 500)}


def test_a_batch_has_each_definition_once_and_the_right_one_marked() -> None:
    senses = Senses(SENTENCES, DEFINITIONS, mask=4, uses=12, wrong=2, replaced=0.5, hidden=0)
    batch = senses.batch(0, np.random.default_rng(3))
    texts = np.split(batch.ids, batch.cu_lengths[1:-1])
    definitions = [int(text[1]) - 20 for text in texts[12:]]
    assert len(set(definitions)) == len(definitions)
    for text, (begin, end), start, target in zip(
        texts[:12], batch.spans, batch.cu_lengths, batch.targets, strict=False
    ):
        word = text[begin - start : end - start].tolist()
        assert word in ([10], [14, 15])
        assert definitions[target] == (1 if text[1] == 10 else 2)
        if word == [14, 15]:
            assert text.tolist() == [2, 12, 14, 15, 13, 3]
            assert 5 in definitions  # another sense of the synonym
    for begin, end, start, text in zip(
        *batch.spans[12:].T, batch.cu_lengths[12:], texts[12:], strict=False
    ):
        assert (begin, end) == (start, start + len(text))
    again = senses.batch(0, np.random.default_rng(3))
    assert all(np.array_equal(getattr(batch, k), getattr(again, k)) for k in vars(batch))


def test_another_use_may_stand_for_a_definition() -> None:
    """With `used=1.0`, another sentence with the same sense replaces a definition.

    The batch contains a sentence that is chosen at random. This sentence uses a word in one of the
    word's senses. If no other sentence uses this sense, the batch contains the definition of the
    sense.
    """
    again = Sentence(np.array([2, 16, 10, 3]), 2, 3, 100, (200,), ())
    options = {"mask": 4, "uses": 1, "wrong": 2, "hidden": 0, "replaced": 0}
    senses = Senses([*SENTENCES, again], DEFINITIONS, used=1.0, **options)
    seen = set()
    for seed in range(20):
        batch = senses.batch(0, np.random.default_rng(seed))
        drawn, *meanings = (
            tuple(one.tolist()) for one in np.split(batch.ids, batch.cu_lengths[1:-1])
        )
        spans = (batch.spans - batch.cu_lengths[:-1, None]).tolist()[1:]
        first, second, other = (tuple(one.ids.tolist()) for one in senses.sentences)
        definition = {n: tuple(ids.tolist()) for n, ids in DEFINITIONS.items()}
        seen.add(drawn)
        if drawn == second:
            assert meanings[0] == definition[200]
            assert meanings[1] in (first, other)
        else:
            assert meanings[0] == (other if drawn == first else first)
            assert spans[0] == ([2, 3] if drawn == first else [1, 2])
            assert set(meanings[1:]) <= {second, definition[300], definition[400]}
    assert len(seen) == 3


def test_context_tokens_are_masked_at_their_rates() -> None:
    long = Sentence(np.array([2, 10, *range(100, 200), 3]), 1, 2, 100, (), ())
    entry = Sentence(np.array([2, 11, *range(200, 300), 3]), 1, 2, 200, (), ())
    senses = Senses([long], DEFINITIONS, [entry], mask=4, uses=400, hidden=0.1, defined=0.25)
    batch = senses.batch(0, np.random.default_rng(0))
    uses = np.split(batch.ids, batch.cu_lengths[1:-1])[:400]
    shares: dict[int, list[float]] = {10: [], 11: []}
    for ids in uses:
        whole = long if ids[1] == 10 else entry
        assert ids[[0, 1, -1]].tolist() == whole.ids[[0, 1, -1]].tolist()
        assert set(ids[ids != whole.ids]) <= {4}
        shares[ids[1]].append(float((ids == 4).sum()) / 100)
    assert np.mean(shares[10]) == pytest.approx(0.1, abs=0.01)
    assert np.mean(shares[11]) == pytest.approx(0.5, abs=0.03)
    assert len(shares[11]) == pytest.approx(100, abs=30)


def test_entries_pair_ambiguous_words_with_each_definition(folder: Path) -> None:
    known = read(folder)
    texts = [one.definition for one in known.synsets] + [word for word, _ in known.index]
    tokenizer = train_tokenizer(texts, "wordpiece", 200)
    found, definitions = entries(known, tokenizer, 12)
    several = {word: senses for (word, _), senses in known.index.items() if len(senses) > 1}
    assert len(found) == sum(map(len, several.values())) > 0
    for one in found:
        word = tokenizer.decode(one.ids[one.begin : one.end])
        assert set(several[word]) == {one.synset, *one.wrong}
        definition = known.synsets[one.synset].definition
        assert definition.lower().startswith(tokenizer.decode(one.ids[one.end + 1 : -1])[:5])
        assert one.synset in definitions
        assert len(one.ids) <= 12


@pytest.mark.parametrize("times", [1.0, 2.0])
def test_priors_are_how_often_a_words_senses_are_drawn(times: float) -> None:
    drawn = [
        *[Sentence(np.array([2, 10, 3]), 1, 2, 100, (200,), ())] * 3,
        Sentence(np.array([2, 10, 3]), 1, 2, 200, (100,), ()),
        Sentence(np.array([2, 11, 3]), 1, 2, 300, (), ()),
    ]
    entries = [Sentence(np.array([2, 10, 3]), 1, 2, 200, (100,), ())]
    options = {"uses": 60, "wrong": 1, "defined": 0.5, "prior": times}
    senses = Senses(drawn, DEFINITIONS, entries, mask=4, **options)
    batch = senses.batch(0, np.random.default_rng(0))
    texts = np.split(batch.ids, batch.cu_lengths[1:-1])
    columns = [int(text[1]) - 20 for text in texts[60:]]
    assert batch.priors.shape == (60, 3)
    for text, row in zip(texts[:60], batch.priors, strict=True):
        prior = dict(zip(columns, row.tolist(), strict=True))
        if text[1] == 11:
            assert prior == {1: 0, 2: 0, 3: 0}
        else:  # sense 1: 0.5 * 3 / 5; sense 2: 0.5 * 1 / 5 + 0.5 * 1
            assert prior == pytest.approx({1: times * np.log(0.3 / 0.6), 2: 0, 3: 0})


def test_a_prior_is_added_to_the_logits() -> None:
    rows = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    spans = np.array([[0, 1], [1, 2], [2, 3]])
    loss, _ = nearest(rows, spans, np.array([0]), 0.5, np.array([[-2.0, 0.0]]))
    assert loss == pytest.approx(np.log(2))  # two equal logits: 1 / 0.5 - 2 and 0


def test_wrong_sets_the_number_of_wrong_senses() -> None:
    for wrong, count in ((0, 1), (1, 2), (2, 3), (9, 4)):
        senses = Senses(SENTENCES[:1], DEFINITIONS, mask=4, uses=1, wrong=wrong)
        batch = senses.batch(0, np.random.default_rng(0))
        assert len(batch.spans) == 1 + count


def test_the_gradient_goes_through_the_whole_network() -> None:
    network = support.network(support.BERT | {"vocab_size": 30}, dtype=np.float64)
    rng = np.random.default_rng(0)
    network.flat += rng.normal(0, 0.3, network.flat.size)
    senses = Senses(SENTENCES, DEFINITIONS, mask=4, uses=6, wrong=2, temperature=0.3)
    batch = senses.batch(0, np.random.default_rng(0))
    loss, tokens = senses(network, batch)
    found = network.gradient.copy()
    assert tokens == len(batch.ids)
    assert np.isfinite(loss)
    direction = rng.normal(size=network.flat.size)
    begin = network.flat.copy()
    ends = []
    for step in (1e-6, -1e-6):
        network.flat[:] = begin + step * direction
        ends.append(senses(network, batch)[0])
    assert found @ direction == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-6)


def test_uses_become_ids(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wordnet, "is_held_out", lambda sentence, *_: sentence == "two banks")
    (folder / "index.noun").write_text(
        (folder / "index.noun").read_text() + "shore n 1 0 1 0 00000100\n"
    )
    path = folder / "data.noun"
    path.write_text(path.read_text().replace("02 bank 0 river_bank 0", "02 bank 0 shore 0"))
    small = read(folder)
    texts = list(wordnet.documents(small))
    tokenizer = train_tokenizer(texts * 9, "wordpiece", 200)
    found, definitions = sentences(small, tokenizer, 16)
    words = [tokenizer.decode(one.ids[one.begin : one.end]) for one in found]
    assert words == ["bank", "bank", "oxen", "banked", "biggest"]
    assert [one.synset for one in found] == [0, 1, 2, 3, 4]
    assert [one.wrong for one in found] == [(1,), (0,), (), (), ()]
    synonyms = [[tokenizer.decode(ids) for ids, _ in one.synonyms] for one in found]
    assert synonyms == [["shore"], *[[]] * 4]
    assert tokenizer.decode(definitions[1]) == "an institution : money"
    assert definitions[1][[0, -1]].tolist() == tokenizer.tokenize("").ids.tolist()
    assert set(definitions) == {0, 1, 2, 3, 4}


def test_long_documents_become_several() -> None:
    tokenizer = train_tokenizer(["a b c d e f g"] * 9, "wordpiece", 40)
    first, last = tokenizer.tokenize("").ids
    found = pieces_of(["a b c d e", "f"], tokenizer, 5)
    assert [tokenizer.decode(one) for one in found] == ["a b c", "d e", "f"]
    assert all(one[0] == first and one[-1] == last for one in found)


def test_visible_content_words_raise_the_loss() -> None:
    model = support.tiny_bert(["the dog saw the cat", "a dog and a cat"] * 9, 60)
    net, tokenizer = Network(model), model.tokenizer
    ids = tokenizer.vocabulary
    mask = ids["[MASK]"]
    texts = [["the", "dog", "[MASK]", "the", "cat"], ["a", "cat", "and", "[MASK]", "cat", "dog"]]
    flat = np.array([ids[word] for words in texts for word in words])
    # the targets in the second text: a visible "cat", and a masked "the"
    at, targets = np.array([2, 6, 8]), np.array([ids["saw"], ids["cat"], ids["the"]])
    batch = Words(flat, np.array([0, 5, 11]), at, targets)
    assert flat[8] == mask
    unseen = Unseen(Sequences([flat[:5]]), tokenizer, in_sight=2.0, alike=str.casefold)
    expected = [(0, "dog"), (0, "cat"), (1, "dog"), (2, "dog"), (2, "cat")]
    numbers, words = zip(*sorted((k, ids[word]) for k, word in expected), strict=True)
    prior = np.array(numbers), np.array(words), 2.0
    loss, tokens = unseen(net, batch)
    assert (loss, tokens) == (words_loss(net, batch, prior), 11)
    assert loss > words_loss(net, batch)


def test_little_lowers_the_masking_rate_of_function_words() -> None:
    """A word of weight w comes before a word of weight 1 with probability w / (w + 1)."""
    tokenizer = train_tokenizer(["the river"] * 9, "wordpiece", 60)
    ids = tokenizer.ids_batch(["the river"])[0]
    assert len(ids) == 2
    source = Sequences([ids])
    hidden = {}
    for little in (1.0, 0.25):
        masked = Unseen(
            source, tokenizer, in_sight=0.0, little=little, share=0.5, tokens_per_step=1,
            alike=str.casefold,
        )  # fmt: skip
        rng = np.random.default_rng(0)
        orders = [masked._order(np.array([0, 1]), ids, rng)[0] for _ in range(4000)]
        hidden[little] = float(np.mean(np.array(orders) == 0))
    assert abs(hidden[1.0] - 0.5) < 0.03
    assert abs(hidden[0.25] - 0.2) < 0.03


def test_each_gap_is_masked_separately() -> None:
    tokenizer = train_tokenizer(["the dog saw the cat", "a dog and a cat"] * 9, "wordpiece", 60)
    ids = tokenizer.vocabulary
    unseen = Unseen(Sequences([np.array([1])]), tokenizer, in_sight=1.0, tokens_per_step=10)
    texts = ["the dog saw the cat", "a dog and a cat"]
    gaps = [
        (tokenizer.tokenize(text).ids, position)
        for text, position in zip(texts, (2, 5), strict=True)
    ]
    batch = Guessed(gaps, unseen).batch(0, np.random.default_rng(1))
    assert len(batch.ids) == 14  # two texts of 7 tokens
    seen = set()
    for row, (first, last) in zip(batch.at, pairwise(batch.cu_lengths), strict=True):
        words = tokenizer.decode(batch.ids[first:last]).split()
        which = 0 if "saw" in words else 1
        seen.add(which)
        expected, position = gaps[which][0].copy(), gaps[which][1]
        assert row == first + position
        expected[position] = ids["[MASK]"]
        assert batch.ids[first:last].tolist() == expected.tolist()
        assert batch.ids[row] == ids["[MASK]"]
    named = [tokenizer.decode([one]) for one in batch.targets]
    assert named == ["cat" if at == 5 else "dog" for at in batch.at - batch.cu_lengths[:-1]]
    assert seen <= {0, 1}


def test_a_teacher_is_a_model_multiplied_by_counts() -> None:
    """The target mixes a teacher's guess with the masked word; visible content words get 0."""
    texts = ["the dog saw the cat", "a dog and a cat"] * 9
    models = [support.tiny_bert(texts, 60, seed=seed) for seed in (1, 2)]
    (before, network), tokenizer = map(Network, models), models[0].tokenizer
    unseen = Unseen(
        Sequences([tokenizer.tokenize("the dog saw the cat").ids]), tokenizer, in_sight=1.5
    )
    neighbours = Neighbours(tokenizer.ids_batch(["the dog saw the cat"] * 3), unseen.content)
    neighbours.weights = np.linspace(0.2, 0.9, 1 + len(neighbours.tables)).astype(np.float32)
    taught = Taught(unseen, before, 0.9, neighbours, told=0.3)
    batch = taught.batch(0, np.random.default_rng(0))
    numbers, tokens = unseen.seen(batch)
    logits = neighbours.logits(batch).astype(np.float64)
    logits += 0.9 * logits_of(before, batch).astype(np.float64)
    logits[numbers, tokens] = -np.inf
    soft = 0.7 * np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    soft[np.arange(len(soft)), batch.targets] += 0.3
    loss, count = taught(network, batch)
    found = network.gradient.copy()
    network.gradient[:] = 0
    prior = numbers, tokens, 1.5
    expected = words_loss(network, batch, prior, soft.astype(np.float32))
    assert (loss, count) == (expected, len(batch.ids))
    assert len(numbers)
    np.testing.assert_allclose(found, network.gradient, atol=1e-6)
    assert abs(found).max() > 1e-3

"""Tests of `rank` and `predict`: scores of pairs of texts, against logits by hand."""

import warnings

import numpy as np
import pytest

from qkv.models import ModelError, load
from qkv.models.sentence.rank import fit_lengths

from ..support import WORDS, cross_encoder

QUERY = "the cat sat"
DOCUMENTS = ["a dog ran .", "the river bank", "", "a mat on the bank , runs"]


@pytest.fixture
def ranks(tmp_path):
    """A folder with a small cross-encoder."""
    return cross_encoder(tmp_path / "ranks")


def by_hand(model, ids, apart=True):
    """Return the logit of one pair, with segment 1 after the first [SEP] if `apart` is true."""
    p = {name: np.asarray(array) for name, array in model.parameters.items()}
    ids = np.array(ids)
    second = np.cumsum(ids == WORDS.index("[SEP]")) - (ids == WORDS.index("[SEP]")) > 0
    kinds = second.astype(int) if apart else np.zeros(len(ids), int)
    difference = p["token_type_embed.weight"][kinds] - p["token_type_embed.weight"][0]
    positions = p["pos_embed.weight"].copy()
    positions[: len(ids)] += difference
    moved = model.with_parameters(p | {"pos_embed.weight": positions})
    return moved([ids]).logits[0, 0]


def sigmoid(x):
    return 1 / (1 + np.exp(-np.float64(x)))


def ids_of(model, query, document):
    words = model.tokenizer.ids_batch([query, document])
    cls, sep = WORDS.index("[CLS]"), WORDS.index("[SEP]")
    return [cls, *words[0], sep, *words[1], sep]


@pytest.mark.parametrize("apart", [True, False])
def test_scores(ranks, apart):
    if not apart:
        ranks.json("tokenizer_config.json", {"model_input_names": ["input_ids"]})
    model = load(ranks.path)
    found = model.rank(QUERY, DOCUMENTS, return_documents=True)
    expected = [
        sigmoid(by_hand(model, ids_of(model, QUERY, document), apart)) for document in DOCUMENTS
    ]
    assert [one["corpus_id"] for one in found] == np.argsort(expected)[::-1].tolist()
    for one in found:
        assert one["score"] == pytest.approx(expected[one["corpus_id"]], abs=1e-5)
        assert one["text"] == DOCUMENTS[one["corpus_id"]]
    assert model.rank(QUERY, DOCUMENTS, 2) == [
        {name: one[name] for name in ("corpus_id", "score")} for one in found[:2]
    ]


def test_pairs(ranks):
    """`predict` scores a list of pairs in order, one pair alone, and a pair with a prompt."""
    model = load(ranks.path)
    pairs = [(QUERY, "a dog ran ."), ("the river", ""), ("", "a mat"), ("a", "the river bank runs")]
    expected = [sigmoid(by_hand(model, ids_of(model, *pair))) for pair in pairs]
    np.testing.assert_allclose(model.predict(pairs), expected, atol=1e-5)
    np.testing.assert_allclose(model.predict(pairs * 99, batch_size=2), expected * 99, atol=1e-5)
    assert model.predict(pairs[0]) == pytest.approx(expected[0], abs=1e-5)
    moved = sigmoid(by_hand(model, ids_of(model, "a dog the river", "")))
    assert model.predict(pairs[1], prompt="a dog ") == pytest.approx(moved, abs=1e-5)
    logits = model.predict(pairs, activation_fn=lambda x: x)
    np.testing.assert_allclose(sigmoid(logits), expected, atol=1e-5)
    assert model.predict([]).shape == (0,)
    with pytest.raises(ValueError, match="predict: unknown prompt 'x'"):
        model.predict(pairs, prompt_name="x")
    with pytest.raises(ValueError, match="query is empty; pass a query"):
        model.predict([("", " ")])


def test_pairs_that_are_too_long(ranks):
    model = load(ranks.path)
    model.max_seq_length = 9
    with pytest.warns(UserWarning, match="1 of 2 pairs were cut to 9 tokens"):
        model.predict([(QUERY, "the dog ran on"), ("a", "a")])


def test_batches_change_nothing(ranks):
    model = load(ranks.path)
    documents = [f"{'bank ' * n}{WORDS[4 + n % 8]}" for n in range(10)] * 20
    found = {one["corpus_id"]: one["score"] for one in model.rank(QUERY, documents)}
    few = {one["corpus_id"]: one["score"] for one in model.rank(QUERY, documents, batch_size=1)}
    assert found == pytest.approx(few, abs=1e-6)
    assert len({found[number] for number in range(10)}) == 10


def test_rank_truncates_the_longer_text_of_a_pair(ranks):
    """The longer text of a pair is cut first; a warning counts the documents that were cut."""
    model = load(ranks.path)
    model.max_seq_length = 9
    with pytest.warns(UserWarning, match="1 of 2 documents, with the query, were cut to 9 tokens"):
        found = model.rank(QUERY, ["the dog ran on", "a"])
    expected = sigmoid(by_hand(model, ids_of(model, QUERY, "the dog ran")))
    scores = {one["corpus_id"]: one["score"] for one in found}
    assert scores[0] == pytest.approx(expected, abs=1e-5)
    model.max_seq_length = 4
    with pytest.raises(ValueError, match=r"max_seq_length is 4, .* 3 special tokens; pass 5"):
        model.rank(QUERY, ["a"])


@pytest.mark.parametrize("modules", [False, True])
def test_the_limit_of_the_tokenizer_holds(ranks, modules):
    ranks.json("tokenizer_config.json", {"model_max_length": 9})
    if modules:
        saved_by_cross_encoder(ranks)
    with pytest.warns(UserWarning, match="1 of 1 documents, with the query, were cut to 9"):
        load(ranks.path).rank(QUERY, ["the dog ran on"])


def saved_by_cross_encoder(folder, **values):
    module = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.Transformer"}
    folder.json("modules.json", [module])
    folder.json("config_sentence_transformers.json", {"model_type": "CrossEncoder"} | values)


IDENTITY = "torch.nn.modules.linear.Identity"


@pytest.mark.parametrize(
    ("files", "config", "function"),
    [
        ({}, {}, sigmoid),
        ({}, {"sentence_transformers": {"activation_fn": IDENTITY}}, float),
        ({}, {"sbert_ce_default_activation_function": IDENTITY}, float),
        ({"activation_fn": IDENTITY}, {}, float),
        (
            {"activation_fn": "torch.nn.modules.activation.Tanh"},
            {"sbert_ce_default_activation_function": IDENTITY},
            np.tanh,
        ),
        ({"activation_fn": "my.Own"}, {}, sigmoid),
    ],
)
def test_what_follows_the_logits(ranks, files, config, function, tmp_path):
    ranks.config |= config
    ranks.json("config.json", ranks.config)
    saved_by_cross_encoder(ranks, **files)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no key is unknown
        model = load(ranks.path)
    model.save(tmp_path / "copy")
    logit = by_hand(model, ids_of(model, QUERY, "a dog"))
    [found] = load(tmp_path / "copy").rank(QUERY, ["a dog"])
    assert found["score"] == pytest.approx(function(logit), abs=1e-5)


def test_models_that_cannot_rank_are_refused(ranks, small):
    with pytest.raises(ValueError, match=r"rank: .* has no head and does not rank: load a cross"):
        load(small).rank(QUERY, DOCUMENTS)
    ranks.config["id2label"] = {"0": "a", "1": "b"}
    ranks.json("config.json", ranks.config)
    ranks.tensors |= {
        "classifier.weight": np.ones((2, 12), np.float32),
        "classifier.bias": np.ones(2, np.float32),
    }
    ranks.weights("model.safetensors", ranks.tensors)
    with pytest.raises(ValueError, match=r"rank: .* has a head for 2 classes and does not rank"):
        load(ranks.path).rank(QUERY, DOCUMENTS)


def test_what_does_not_fit(ranks):
    model = load(ranks.path)
    for query, documents, top_k, error, words in (
        (3, DOCUMENTS, None, TypeError, "rank: query is int"),
        (QUERY, "a dog", None, TypeError, "rank: `texts` is one str"),
        (QUERY, ["a", 3], None, TypeError, "rank: text 1 is int"),
        (QUERY, ["a"], 0, ValueError, "rank: top_k is 0"),
        (" ", ["a"], None, ValueError, "rank: the query is empty"),
    ):
        with pytest.raises(error, match=words):
            model.rank(query, documents, top_k)
    ranks.json("config_sentence_transformers.json", {"activation_fn": "torch.nn.Softmin"})
    with pytest.raises(ValueError, match=r"the activation after the logits .* is torch.nn.Softmin"):
        load(ranks.path).rank(QUERY, ["a"])
    ranks.json("tokenizer_config.json", {"model_max_length": "long"})
    with pytest.raises(ModelError, match="model_max_length is 'long'"):
        load(ranks.path).rank(QUERY, ["a"])


def test_a_transformer_alone_is_no_encoder(ranks):
    """A Transformer without pooling is refused; only a cross-encoder needs no pooling."""
    saved_by_cross_encoder(ranks, model_type="SentenceTransformer")
    with pytest.raises(ModelError, match="its modules are Transformer"):
        load(ranks.path)


def test_shortened_as_the_tokenizers_package_does_it():
    """All pairs of lengths up to 9 are tested, with limits from 2 to 18."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    for free in range(2, 19):
        tokenizer.enable_truncation(free, strategy="longest_first")
        for first in range(1, 10):
            for second in range(1, 10):
                found = tokenizer.encode("a " * first, "b " * second).ids
                expected = found.count(0), found.count(1)
                assert fit_lengths(first, second, free) == expected, (first, second, free)

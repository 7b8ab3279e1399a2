"""Tests of the rule by which show, walk, play and compare choose the first head."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qkv
from models.support import mask_bert
from qkv.models.untrained import fresh_model
from qkv.see import play
from qkv.see.analysis import selection
from qkv.see.analysis._interventions import MOST_HEADS, removal_of
from qkv.see.analysis.head_weights import heads_of

from ..support import made_trace
from ..views.test_opening import SECOND

GAPS = [
    "The oak is a small [MASK].",
    "He sat on the [MASK].",
    "A hammer is a [MASK] with a heavy head.",
    "The [MASK] barked at the stranger.",
]
NONE = "No head stands out"


@pytest.fixture(scope="module")
def model() -> qkv.Model:
    return qkv.load("books")


def probabilities(model: qkv.Model, text: str, **options: Any) -> np.ndarray:
    """Compute the probability of each vocabulary entry at the first mask token."""
    trace = model.trace(text, names=["embed"], logits=True, **options)
    logits = trace["logits"][0, trace.tokens.index("[MASK]")].astype(np.float64)
    shares = np.exp(logits - logits.max())
    found: np.ndarray = shares / shares.sum()
    return found


def moved(model: qkv.Model, text: str) -> np.ndarray:
    """Compute how much probability the removal of each head moves, by one forward pass per head."""
    before = probabilities(model, text)
    without = [
        [
            probabilities(model, text, ablate=[(layer, head)]) - before
            for head in range(model.num_heads)
        ]
        for layer in range(model.num_layers)
    ]
    found: np.ndarray = np.abs(without).sum(axis=-1) / 2
    return found


def head_of(view: Any) -> tuple[int, int]:
    return view.head.layer, view.head.head


# ---- texts with a mask token


@pytest.mark.parametrize("text", GAPS)
def test_a_gap_opens_on_the_head_that_changes_the_guess_most(text: str, model: qkv.Model) -> None:
    each = moved(model, text)
    layer, head = np.unravel_index(each.argmax(), each.shape)
    view = qkv.show(text, model=model)
    assert head_of(view) == (layer, head)
    assert f" {each.max():.2f} of the probability goes to other words" in view.head.reason
    assert view.head.stands_out is bool(each.max() >= 0.1)
    if not view.head.stands_out:
        assert view.sentence.startswith(NONE)
        return
    before, after = (
        probabilities(model, text),
        probabilities(model, text, ablate=[(int(layer), int(head))]),
    )
    [[(word, share)]] = model.predict(text, 1)
    assert share == pytest.approx(before.max(), rel=1e-5)  # rounding in float32
    assert view.sentence.startswith(
        f"Removing layer {layer}, head {head} changes the guess most: {word}, {before.max():.2f} → "
        f"{after[before.argmax()]:.2f}. In that head, the gap attends most to "
    )
    position = view.trace.tokens.index("[MASK]")
    row = view.trace.pattern(int(layer), int(head))[position]
    assert view.sentence.endswith(f": {row.max():.2f}.")
    assert ("the word before it" in view.sentence) is bool(row.argmax() == position - 1)


@pytest.mark.parametrize("text", [GAPS[1], SECOND[7], "I love you."])
def test_show_walk_and_play_open_on_the_same_head(text: str, model: qkv.Model) -> None:
    shown = qkv.show(text, model=model)
    walked = qkv.walk(text, model=model)
    assert shown.head == walked.head
    # the page writes probabilities as percentages
    of_page = play(text, model=model).head
    assert replace(of_page, reason="", headline="") == replace(shown.head, reason="", headline="")
    assert (walked.walk.layer, walked.walk.head) == head_of(shown)
    assert shown.head.headline in walked.title
    found = walked.to_dict()
    assert (found["chosen"], found["stands_out"]) == (shown.head.reason, shown.head.stands_out)


def test_a_layer_or_a_head_narrows_the_choice(model: qkv.Model) -> None:
    each = moved(model, GAPS[0])
    assert head_of(qkv.show(GAPS[0], model=model, layer=1)) == (1, each[1].argmax())
    assert head_of(qkv.walk(GAPS[0], model=model, head=4)) == (each[:, 4].argmax(), 4)
    view = qkv.show(GAPS[0], model=model, layer=-1, head=4)
    assert (head_of(view), view.head.reason) == ((3, 4), "it was requested")
    assert qkv.walk(GAPS[0], model=model, layer=0, head=0).title == (
        "Layer 0, head 0, step by step."
    )


def test_links_choose_the_head_without_a_model_or_after_edits(model: qkv.Model) -> None:
    trace = model.trace(GAPS[0])
    assert qkv.show(trace, model=model).head == qkv.show(GAPS[0], model=model).head
    by_links, _ = selection.choose_head(heads_of(trace))
    assert qkv.show(trace).head == by_links != qkv.show(GAPS[0], model=model).head
    edited = model.trace(GAPS[0], ablate=[(3, 2)])
    assert "link" in qkv.show(edited, model=model).head.reason
    assert "its weight from oak" in qkv.show(GAPS[0], model=model, query="oak").head.reason


def test_with_many_heads_only_those_of_the_last_layers_are_removed(tmp_path: Path) -> None:
    mask_bert(tmp_path / "deep", num_hidden_layers=17)
    model = qkv.load(tmp_path / "deep")
    text = "the cat sat on the [MASK]."
    kept = MOST_HEADS // model.num_heads
    assert model.num_heads * 17 > MOST_HEADS > kept
    each = moved(model, text)
    each[:-kept] = 0
    found = removal_of(model, model.trace(text))
    assert (found.layer, found.head) == np.unravel_index(each.argmax(), each.shape)
    assert found.moved == pytest.approx(each.max(), abs=1e-6)
    assert found.layers == tuple(range(17 - kept, 17))
    assert (
        f"among the heads of layers {17 - kept} to 16, removing this head changes the guess at "
        in qkv.show(text, model=model).head.reason
    )
    long = model.trace(" ".join(["cat"] * 10 + ["[MASK]"]), names=["pattern"])
    assert removal_of(model, long) is not None


def test_a_change_below_a_tenth_does_not_stand_out(model: qkv.Model) -> None:
    """If the heads' values are small, the headline says that no head stands out."""
    quiet = {
        name: array * np.float32(0.02) if name.endswith(("v_proj.weight", "v_proj.bias")) else array
        for name, array in model.parameters.items()
    }
    view = qkv.show(GAPS[0], model=model.with_parameters(quiet))
    assert view.head.stands_out is False
    assert view.sentence.startswith(
        f"{NONE} in this sentence: the head whose removal changes the guess most is layer "
    )
    assert view.sentence.endswith(
        " of the probability goes to other words, below the threshold of 0.10."
    )


# ---- texts without a mask token


def rows(size: int, rng: np.random.Generator, at: Any, share: float) -> np.ndarray:
    """Make a head in which each of `size` queries gives about `share` of its weight to one key."""
    table = rng.dirichlet(np.full(size, 0.5), size)
    shares = np.clip(share + 0.15 * rng.standard_normal(size), 0.4, 1)[:, None]
    places = np.zeros((size, size))
    places[np.arange(size), np.clip(at(np.arange(size)), 0, size - 1)] = 1
    found: np.ndarray = shares * places + (1 - shares) * table
    return found


@pytest.mark.parametrize("share", [0.6, 0.8, 1.0])
@pytest.mark.parametrize(
    "at",
    [lambda i: i - 1, lambda i: i + 1, lambda i: 0 * i, lambda i: i, lambda i: 0 * i + 5],
    ids=["previous", "next", "first", "self", "one word"],
)
@pytest.mark.parametrize("tables", [10, pytest.param(100, marks=pytest.mark.attack)])
def test_a_positional_head_never_stands_out_for_its_position(
    at: Any, share: float, tables: int
) -> None:
    rng = np.random.default_rng(0)
    for size in (2, 3, 4, 6, 9, 14):
        tokens = [f"word{i}" for i in range(size)]  # all tokens are content words
        for _ in range(tables):
            table = rows(size, rng, at, share)[None, None]
            links = selection.rank_heads(heads_of(made_trace(tokens, table)))
            for link in links:
                if link.key == np.clip(at(np.arange(size)), 0, size - 1)[link.query]:
                    assert not link.stands_out


@pytest.mark.parametrize("text", ["I love you", "I love you.", "Dogs bark.", "hello world", "So!"])
def test_the_headline_makes_no_claim_if_no_head_stands_out(text: str, model: qkv.Model) -> None:
    for view in (qkv.show(text, model=model), qkv.walk(text, model=model)):
        assert view.head.stands_out is False
        assert view.head.headline.startswith(f"{NONE} in this sentence: ")
        assert " attends to" not in view.head.headline.replace("attends to another", "")
        assert view.head.headline in " ".join(str(view).split())
    shown = qkv.show(text, model=model)
    assert not shown.elsewhere
    if shown.head.link is not None:
        assert shown.sentence.endswith(", less than 0.10 above the usual weight.")
        assert not shown.head.link.of_positions


def test_other_sentences_open_on_a_link_above_the_usual_weight(model: qkv.Model) -> None:
    """Test the threshold on the second list of sentences in test_opening.

    The threshold was chosen with the first list of that file.
    """
    views = [qkv.show(text, model=model) for text in SECOND]
    assert sum(view.head.stands_out is True for view in views) >= 22
    for view in views:
        link = view.head.link
        assert view.head.stands_out is (link.weight - max(2 * link.usual[0], link.usual[1]) >= 0.1)
        assert max(link.usual) < 0.4 or not view.head.stands_out


# ---- untrained models


@pytest.mark.parametrize(
    ("dim", "heads"),
    [
        *((4, 2), (8, 1), (192, 6)),
        *(
            pytest.param(*size, marks=pytest.mark.attack)
            for size in ((8, 2), (16, 4), (32, 4), (64, 8))
        ),
    ],
)
@pytest.mark.parametrize("causal", [False, True])
def test_no_head_of_an_untrained_model_stands_out(dim: int, heads: int, causal: bool) -> None:
    for seed in range(6):
        model = qkv.models.random_model(SECOND, dim=dim, heads=heads, seed=seed, causal=causal)
        for text in SECOND[seed::6]:
            for view in (qkv.show(text, model=model), qkv.show(model.trace(text))):
                assert view.sentence.startswith(f"{NONE} in this sentence, because the model is un")
                assert not view.elsewhere
        assert NONE in qkv.walk(SECOND[seed], model=model).title
        pair = qkv.compare(SECOND[7], SECOND[0], word="the", model=model)
        assert pair.sentence.startswith(f"{NONE} for the, because the model is untrained. ")


@pytest.mark.parametrize("seeds", [(0,), pytest.param(range(1, 6), marks=pytest.mark.attack)])
@pytest.mark.parametrize("times", [1, 20])
@pytest.mark.parametrize(("dim", "heads", "layers"), [(32, 4, 2), (64, 2, 3)])
def test_no_head_of_an_untrained_masked_language_model_stands_out(
    dim: int, heads: int, layers: int, times: int, seeds: Sequence[int], model: qkv.Model
) -> None:
    config = {
        **{"model_type": "bert", "architectures": ["BertForMaskedLM"], "vocab_size": 13_000},
        **{"hidden_size": dim, "num_attention_heads": heads, "num_hidden_layers": layers},
        **{"intermediate_size": 2 * dim, "max_position_embeddings": 64},
    }
    config["vocab_size"] = len(model.parameters["embed.weight"])
    for seed in seeds:
        fresh = fresh_model(config, tokenizer=model.tokenizer, seed=seed)
        larger = {name: array * np.float32(times) for name, array in fresh.parameters.items()}
        for text in [GAPS[0], SECOND[seed]]:
            view = qkv.show(text, model=fresh.with_parameters(larger))
            assert view.head.stands_out is False
            assert view.sentence.startswith(
                f"{NONE} in this sentence, because the model is untrained: "
            )


# ---- compare


def test_compare_says_where_no_link_stands_out(model: qkv.Model) -> None:
    view = qkv.compare("I love you", "I love them", word="love", model=model)
    assert view.sentence.startswith("No head stands out for love. Where its attention differs")
    assert view.to_dict()["stands_out"] is False
    standing = qkv.compare(
        "I sat on the bank of the river.", "The bank charged a fee for the loan.", model=model
    )
    assert standing.head.stands_out

"""Tests of the measures of heads, on hand-made weights with known answers."""

import json
from pathlib import Path

import numpy as np
import pytest

from learn.support import tiny_bert
from qkv.models.model import Model
from training import heads
from training.heads import (
    directions,
    explained,
    forms,
    lines_up,
    measure,
    place_scores,
    principal_cosines,
    random_texts,
)

SENTENCES = ["we saw a cat sit on the mat", "her dog ran home", "now eat"]
POSITIONS, DIM = 32, 64


def bert(**sizes: int) -> Model:
    return tiny_bert(SENTENCES * 9, 80, seed=1, **{"hidden_size": DIM, **sizes})


def made_by_hand() -> Model:
    """Return a model whose head 0 attends by positions (dims 0-31) and head 1 by words (32-63)."""
    model = bert()
    rng = np.random.default_rng(0)
    table = model.parameters["embed.weight"] * 0
    signs = np.array([[(n >> k) & 1 for k in range(7)] for n in range(len(table))]) * 2.0 - 1
    table[:, POSITIONS : POSITIONS + 7] = signs
    # so the mean of each vector is 0 before the norm
    table[:, POSITIONS + 7 : POSITIONS + 14] = -signs
    positions = np.zeros((POSITIONS, DIM))
    positions[:, :POSITIONS] = 4 * (np.eye(POSITIONS) - 1 / POSITIONS)
    w_q, w_k = np.zeros((2, DIM, DIM))
    # position i attends to position i - 1
    w_q[:POSITIONS, :POSITIONS] = 30 * np.eye(POSITIONS, k=-1)
    w_k[:POSITIONS, :POSITIONS] = np.eye(POSITIONS)
    # to the same word
    w_q[POSITIONS:, POSITIONS:] = w_k[POSITIONS:, POSITIONS:] = 9 * np.eye(DIM - POSITIONS)
    for name, value in (
        ("embed.weight", table),
        ("pos_embed.weight", positions),
        ("token_type_embed.weight", np.zeros((2, DIM))),
        ("blocks.0.attn.q_proj.weight", w_q),
        ("blocks.0.attn.k_proj.weight", w_k),
        ("blocks.0.attn.k_proj.bias", rng.standard_normal(DIM)),  # shifts whole rows of scores
    ):
        model.parameters[name] = value
    return model


def test_scores_of_a_position_head_and_a_word_head() -> None:
    found = measure(made_by_hand(), SENTENCES)
    assert found["previous"][0] == pytest.approx([1, 0], abs=0.01)
    assert found["next"][0] == pytest.approx([0, 0], abs=0.05)  # [CLS] attends to all positions
    assert found["same"][0, 1] == pytest.approx(1, abs=0.01)
    assert found["from_places"][0] == pytest.approx([1, 0], abs=0.1)
    for letter in "qk":
        assert found[f"{letter}_places"][0] == pytest.approx([1, 0], abs=0.05)
        assert found[f"{letter}_words"][0] == pytest.approx([0, 1], abs=0.05)
    looks = found["place_scores"][0, 0].argmax(axis=1)  # of positions 1 to 24, without [CLS]
    assert looks[1:].tolist() == list(range(heads.WORDS - 1))
    assert heads.best(found["same"]) == (0, 1)


def test_random_weights_give_the_expected_overlap() -> None:
    model = bert(hidden_size=96, num_hidden_layers=2, num_attention_heads=6)
    found = forms(model, random_texts(model, 32, 24))
    for name in ("q_places", "k_places", "q_words", "k_words"):
        assert found[name].mean() == pytest.approx(16 / 96, abs=0.02), name
    rng = np.random.default_rng(0)
    drawn = [lines_up(rng.standard_normal((60, 6)), np.eye(60)[:, :4]) for _ in range(200)]
    assert np.mean(drawn) == pytest.approx(6 / 60, abs=0.01)


def test_principal_cosines_are_those_of_known_angles() -> None:
    angles = np.array([0.2, 0.7, 1.5])
    one = np.eye(6)[:, :3]
    other = np.concatenate([np.diag(np.cos(angles)), np.diag(np.sin(angles))])
    turned = other @ np.array([[2.0, 1, 0], [0, 1, 5], [0, 0, 3]])  # another basis, same space
    np.testing.assert_allclose(principal_cosines(one, turned), np.cos(angles), rtol=1e-12)
    np.testing.assert_allclose(principal_cosines(turned[:, :2], turned[:, :2]), [1, 1], rtol=1e-12)
    assert lines_up(turned, one) == pytest.approx((np.cos(angles) ** 2).mean())


def test_directions_are_those_of_the_largest_variance() -> None:
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.standard_normal((5, 5)))[0]
    rows = rng.standard_normal((400, 5)) * [9, 7, 0.1, 0.1, 0.1] @ basis.T + 100
    assert lines_up(directions(rows, 2), basis[:, :2]) == pytest.approx(1, abs=1e-3)


def test_position_scores_and_their_explained_share() -> None:
    rng = np.random.default_rng(0)
    places, w_q, w_k = (rng.standard_normal(shape) for shape in ((3, 4), (4, 2), (4, 2)))
    b_q, b_k = rng.standard_normal((2, 2))
    by_hand = [
        [sum((x @ w_q + b_q) * (y @ w_k + b_k)) / np.sqrt(2) for y in places] for x in places
    ]
    scores = place_scores(places, w_q, w_k, b_q, b_k)
    np.testing.assert_allclose(scores, by_hand)
    without = place_scores(places, w_q, w_k, b_q)
    assert np.ptp(scores - without, axis=1) == pytest.approx(0, abs=1e-12)  # constant per row
    assert explained(scores, without) == pytest.approx(1)
    assert explained(np.array([[1.0, -1.0], [1.0, -1.0]]), np.array([[1.0, -1.0], [0.0, 0.0]])) == (
        0.5
    )
    assert explained(scores, -scores) == pytest.approx(-3)
    assert explained(np.ones((2, 3)), np.ones((2, 3))) == 0


def test_random_texts_have_words_alone_between_the_special_tokens() -> None:
    model = bert()
    ids = random_texts(model, 50, 24)
    assert ids.shape == (50, 26)
    vocabulary = model.tokenizer.vocabulary
    assert set(ids[:, 0]) == {vocabulary["[CLS]"]}
    assert set(ids[:, -1]) == {vocabulary["[SEP]"]}
    assert not any(model.tokenizer.is_special(one) for one in set(ids[:, 1:-1].ravel().tolist()))
    assert len(set(ids[:, 1:-1].ravel().tolist())) > len(vocabulary) / 2
    np.testing.assert_array_equal(ids, random_texts(model, 50, 24))


def test_a_run_from_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    bert().save(run / "snapshots" / "step-00000000")
    made_by_hand().save(run / "snapshots" / "step-00000060")
    with (run / "metrics.jsonl").open("w") as file:
        for step in range(1, 61):
            losses = {"masked": 100.0 - step} | ({"senses": 1.0} if step > 40 else {})
            file.write(json.dumps({"step": step, "loss": 0.0, "losses": losses}) + "\n")
    monkeypatch.setattr(heads, "held_out_sentences", lambda _: SENTENCES)
    monkeypatch.setattr(heads, "read", lambda _: None)
    said: list[str] = []
    heads.main([str(run), "-o", str(out)], said.append)

    result = json.loads((out / "scores.json").read_text())
    assert result["steps"] == [0, 60]
    assert result["objectives"] == {"masked": 1, "senses": 41}
    assert result["loss"] == [99.0, np.mean(100.0 - np.arange(11, 61))]
    assert (result["layers"], result["heads"], result["sentences"]) == (1, 2, 3)
    expected = measure(made_by_hand(), SENTENCES)
    for name, values in result["scores"].items():
        assert values[1] == pytest.approx(expected[name].ravel(), abs=2e-3), name
    assert "0.0" in said[-1]
    assert "step 60: previous 1.00 in 0.0" in said[1]
    for name in ("scores.png", "places.png", "subspaces.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")
    assert "previous" in (out / "replay.html").read_text()


def test_chained_runs_are_joined_into_one() -> None:
    first = {
        **{"layers": 1, "heads": 1, "objectives": {"masked": 1, "senses": 4}},
        **{"steps": [0, 5], "loss": [9.0, 7.0], "scores": {"previous": [[0.1], [0.4]]}},
    }
    second = {
        **{"layers": 1, "heads": 1, "objectives": {"masked": 1, "late": 2}},
        **{"steps": [0, 1, 3], "loss": [7.1, 6.0, 5.0]},
        **{"scores": {"previous": [[0.4], [0.5], [0.9]]}},
    }
    found = heads.joined([first, second, second])
    assert found["steps"] == [0, 5, 6, 8, 9, 11]
    assert found["loss"] == [9.0, 7.0, 6.0, 5.0, 6.0, 5.0]
    assert found["scores"] == {"previous": [[0.1], [0.4], [0.5], [0.9], [0.5], [0.9]]}
    assert found["objectives"] == {"masked": 1, "senses": 4, "late": 7}
    assert found["ends"] == [5, 8, 11]
    assert first["objectives"] == {"masked": 1, "senses": 4}

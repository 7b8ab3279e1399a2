"""Tests of random texts with a repeat, of two scores on hand-made patterns, and of the command."""

import ast
import json
from pathlib import Path

import numpy as np
import pytest

import qkv
from qkv.learn import Network, fresh_model
from training import induction
from training.induction import Repeats, accuracy, scores, without

PAGE = Path(__file__).resolve().parents[2] / "docs" / "course" / "further-induction.md"
CONFIG = {
    "model_type": "qkv-attention-only",
    "architectures": ["AttentionOnlyLM"],
    "vocab_size": 36,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "max_position_embeddings": 24,
}


def test_a_text_repeats_one_span_and_no_other_token() -> None:
    texts, positions = Repeats(36, 24, texts=200).draw(np.random.default_rng(0))
    assert texts.shape == (200, 24)
    sizes, gaps = [], []
    for number, text in enumerate(texts.tolist()):
        mine = positions[positions[:, 0] == number]
        again = [i for i, token in enumerate(text) if token in text[:i]]
        size, second, first = len(again), again[0], text.index(text[again[0]])
        assert again == list(range(second, second + size))
        assert text[second : second + size] == text[first : first + size]
        assert first + size <= second
        assert mine[:, 1].tolist() == again[:-1]
        assert mine[:, 2].tolist() == list(range(first + 1, first + size))
        sizes.append(size)
        gaps.append(second - first)
    assert set(sizes) == set(range(4, 13))
    assert len(set(gaps)) > 10
    assert texts.min() == 0
    assert texts.max() == 35


class Fixed(Repeats):
    def draw(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        texts = np.array([[7, 3, 5, 7, 3, 5], [1, 2, 9, 4, 1, 2]])
        return texts, np.array([[0, 3, 1], [0, 4, 2], [1, 4, 1]])


def test_batch_targets_continue_the_repeated_span() -> None:
    batch = Fixed(10, 6, texts=2).batch(0, np.random.default_rng(0))
    assert batch.ids.tolist() == [7, 3, 5, 7, 3, 5, 1, 2, 9, 4, 1, 2]
    assert batch.cu_lengths.tolist() == [0, 6, 12]
    # at the repeated 7 and 3 in text 0, and at the repeated 1 in text 1
    assert batch.at.tolist() == [3, 4, 10]
    assert batch.targets.tolist() == [3, 5, 2]


def test_the_same_seed_draws_the_same_batch() -> None:
    objective = Repeats(36, 24, texts=8)
    a, b, c = (objective.batch(0, np.random.default_rng(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(a.ids, b.ids)
    assert (a.ids != c.ids).any()
    assert objective.state() == {}
    network = Network(fresh_model(CONFIG))
    loss, tokens = objective(network, a)
    assert tokens == 8 * 24
    assert loss == pytest.approx(np.log(36), abs=0.1)  # the model is untrained
    assert np.abs(network.gradient).max() > 0


class Says:
    """A stand-in for a model: patterns and logits made by hand."""

    def __init__(self, patterns: list[np.ndarray], said: np.ndarray) -> None:
        self.attentions, self.logits = patterns, np.eye(10)[said]

    def trace(self, texts: np.ndarray, names: list[str]) -> "Says":
        assert names == ["pattern"]
        return self

    def __call__(self, texts: np.ndarray) -> "Says":
        return self


def test_scores_and_accuracy_of_patterns_made_by_hand() -> None:
    texts, positions = Fixed(10, 6, texts=2).draw(np.random.default_rng(0))
    before = np.zeros((2, 6, 6))  # weight on the previous token: 1 in text 0, 0.5 in text 1
    before[0, range(1, 6), range(5)] = 1
    before[1, range(1, 6), range(5)] = 0.5
    behind = np.zeros((2, 6, 6))
    behind[0, 3, 1] = 0.9
    behind[0, 4, 2] = 0.6
    behind[1, 4, 0] = 1  # at the earlier copy, not at the token after the copy
    nothing = np.zeros((2, 6, 6))
    layers = [np.stack([before, nothing], 1), np.stack([nothing, behind], 1)]  # (B, H, T, T)
    said = np.zeros((2, 6), int)
    said[0, 3], said[0, 4], said[1, 4] = 3, 5, 1  # right, right, wrong
    model = Says(layers, said)
    previous, found = scores(model, texts, positions)
    np.testing.assert_allclose(previous, [[0.75, 0], [0, 0]])
    np.testing.assert_allclose(found, [[0, 0], [0, 0.5]])  # (0.9 + 0.6 + 0) / 3
    assert accuracy(model, texts, positions) == pytest.approx(2 / 3)


def test_without_equals_a_trace_with_the_head_ablated() -> None:
    model = fresh_model(CONFIG)
    texts, _ = Repeats(36, 24, texts=2).draw(np.random.default_rng(0))
    expected = model.trace(texts, ablate=[(0, 1)])
    found = without(model, 0, 1).trace(texts)
    for layer in (0, 1):
        np.testing.assert_allclose(
            found["resid_post", layer], expected["resid_post", layer], atol=1e-6
        )
    whole = model.trace(texts)
    assert np.abs(found["resid_post", 1] - whole["resid_post", 1]).max() > 1e-4


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    small = ["--symbols", "36", "--length", "24", "--texts", "4", "--dim", "16", "--heads", "2"]
    induction.main(["-o", str(run), *small, "--steps", "4", "--snapshots", "2"])
    said = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0].split()[-1] for line in said[:3]] == ["0", "2", "4"]
    assert all("previous 0." in line and "induction 0." in line for line in said[:3])
    assert said[3].startswith("without the heads of layer 0: accuracy ")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [list(row["losses"]) for row in rows] == [["repeats"]] * 4
    assert (run / "induction.png").read_bytes().startswith(b"\x89PNG")
    page = (run / "replay.html").read_text(encoding="utf-8")
    assert "weight on the token after an earlier occurrence of the same token" in page
    assert qkv.load(run).tokenize(induction.TEXT).tokens == induction.TEXT.split()
    with pytest.raises(ValueError, match="contains a run"):
        induction.main(["-o", str(run), *small, "--steps", "4", "--snapshots", "2"])
    induction.main(["-o", str(run), *small, "--steps", "4", "--snapshots", "2", "--resume"])


@pytest.mark.parametrize("wrong", [["--length", "63"], ["--symbols", "20"], ["--length", "8"]])
def test_sizes_that_do_not_fit(
    tmp_path: Path, wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        induction.main(["-o", str(tmp_path / "run"), *wrong])
    assert "36 to 62 symbols" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def bare(tree: ast.AST) -> ast.AST:
    """Remove type annotations and docstrings from functions and classes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
            node.body = node.body[1:] or [ast.Pass()]
        if isinstance(node, ast.FunctionDef):
            node.returns = None
            for one in node.args.args:
                one.annotation = None
    return tree


@pytest.mark.parametrize("name", ["Repeats", "scores", "accuracy", "without"])
def test_the_page_shows_this_code(name: str) -> None:
    cells = PAGE.read_text(encoding="utf-8").split("```{code-cell} ipython3\n")[1:]
    shown = "\n".join(
        line
        for cell in cells
        for line in cell.partition("\n```")[0].splitlines()
        if not line.startswith((":tags:", ":mystnb:", ":  "))
    )
    both = []
    for source in (shown, Path(induction.__file__).read_text(encoding="utf-8")):
        (found,) = (
            node
            for node in ast.parse(source).body
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name
        )
        both.append(ast.unparse(bare(found)))
    assert both[0] == both[1]

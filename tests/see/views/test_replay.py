"""Tests that a replay has the numbers of its snapshots, and that its sentences match them."""

import base64
import json
import re
import shutil
import zlib
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from rich.console import Console

import qkv
from qkv.see import replay
from qkv.see.analysis.measures import after_copies, on_cells
from qkv.see.analysis.snapshots import replay_of
from qkv.see.views._replay import ReplayView
from qkv.trace import Trace

from ..page.reading import Page, payload_in
from ..page.test_html import HOSTILE
from ..support import changed, unpack
from ..training import STEPS, TEXT, goal, made_run, run_folder, write_snapshot

COPIES = ["[CLS]", "the", "cat", "sat", "on", "the", "cat", "and", "the", "dog", "sat"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_folder(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def view(folder: Path) -> ReplayView:
    return replay(folder, TEXT)


def score(pattern: np.ndarray, cells: np.ndarray) -> float:
    """Compute the mean weight on `cells` over the queries that have such a cell."""
    rows = [i for i in range(len(cells)) if cells[i].any()]
    return sum(float(pattern[i, j]) for i in rows for j in np.flatnonzero(cells[i])) / len(rows)


# The scores


def test_after_copies_marks_keys_after_earlier_occurrences() -> None:
    found = after_copies(COPIES, [True] + [False] * 10)
    # the (5) -> cat (2); cat (6) -> sat (3); the (8) -> cat (2, 6); sat (10) -> on (4)
    assert np.argwhere(found).tolist() == [[5, 2], [6, 3], [8, 2], [8, 6], [10, 4]]
    assert np.argwhere(after_copies(["a", "a", "a"], [False] * 3)).tolist() == [[2, 1]]
    assert not after_copies(["[SEP]", "a", "[SEP]"], [True, False, True]).any()


def test_a_score_is_the_mean_over_the_queries_that_have_such_a_key() -> None:
    weights = np.array([[[0.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.2, 0.3, 0.5]]])
    cells = np.array([[True, True, True], [True, False, False], [True, False, True]])
    # the first query attends to nothing: (0.5 + 0.7) / 2
    assert on_cells(weights, cells) == pytest.approx([0.6])
    assert on_cells(weights, np.zeros((3, 3), bool)).tolist() == [0.0]


def test_each_score_of_each_head_at_each_step() -> None:
    run = made_run(COPIES, causal=False, learns={(0, 1): "next"})
    view = replay(run)
    names = [each.name for each in view.replay.scores]
    assert names == ["previous", "next", "induction", "first"]
    for place, name in enumerate(names):
        cells = goal(COPIES, name) > 0
        if name == "induction":
            cells[:, 1] &= [token != "[CLS]" for token in COPIES]
        for n, step in enumerate(STEPS):
            for layer in range(2):
                for head in range(3):
                    expected = score(run[step].pattern(layer, head), cells)
                    assert view.replay.values[n, layer, head, place] == pytest.approx(expected)


def test_scores_that_do_not_apply_are_left_out() -> None:
    names = lambda run: [each.name for each in replay(run).replay.scores]  # noqa: E731
    assert names(made_run(list("abca"))) == ["previous", "induction", "first"]  # causal
    assert names(made_run(list("abcd"))) == ["previous", "first"]
    assert names(made_run(["a"])) == ["first"]
    blind = {n: Trace({"blocks.0.attn.hook_pattern": np.eye(2)[None, None]}, tokens=[["a", "b"]])
             for n in (1, 2)}  # fmt: skip
    assert names(blind) == ["previous", "next", "first"]  # without scores, masks are unknown


# The choice of the head, and its description


def test_the_head_whose_score_rose_most_is_shown() -> None:
    run = made_run(COPIES, learns={(0, 1): "induction"})
    view = replay(run)
    rises = view.replay.values[-1] - view.replay.values[0]
    best = max(
        (rises[layer, head, place], -layer, -head, -place)
        for layer in range(2)
        for head in range(3)
        for place in range(3)
    )
    assert (view.head.layer, view.head.head, view.score) == (-best[1], -best[2], -best[3])
    assert (view.head.layer, view.head.head) == (0, 1)
    course = view.replay.values[:, 0, 1, 1]
    most = int(np.argmax(np.diff(course)))
    assert view.sentence == (
        "In layer 0, head 1, the weight on the token after an earlier occurrence of the same token "
        f"rises from {course[0]:.2f} at step 0 to {course[-1]:.2f} at step 800, "
        f"with the largest change between steps {STEPS[most]} and {STEPS[most + 1]}."
    )
    assert view.head.reason == (
        "its weight on the token after an earlier occurrence of the same token rose most among "
        "all scores of all layers and heads"
    )


def test_layer_and_head_narrow_the_choice() -> None:
    run = made_run(COPIES, learns={(0, 1): "induction", (1, 2): "first"})
    assert (replay(run, layer=1).head.layer, replay(run, layer=1).head.head) == (1, 2)
    assert replay(run, head=2).head.layer == 1
    asked = replay(run, layer=0, head=0)
    assert (asked.head.layer, asked.head.head, asked.head.reason) == (0, 0, "it was requested")
    assert asked.sentence.startswith("In layer 0, head 0, the weight on ")
    for wrong, words in (({"layer": 2}, "no layer 2: the layers are 0 to 1"),
                         ({"head": -4}, "no head -4: the heads are 0 to 2")):  # fmt: skip
        with pytest.raises(IndexError, match=f"replay: there is {words}"):
            replay(run, **wrong)


def test_a_head_that_loses_its_structure() -> None:
    back, own = np.eye(4, k=-1), np.eye(4)
    back[0, 0] = 1
    run = {1: back, 2: own}
    view = replay(
        {
            step: Trace({"blocks.0.attn.hook_pattern": weights[None, None]}, tokens=[list("abcd")])
            for step, weights in run.items()
        }
    )
    # previous token: 3/3, then 0; next token: 0 both times; first token: 2/4, then 1/4
    assert view.replay.values[:, 0, 0].tolist() == [[1.0, 0.0, 0.5], [0.0, 0.0, 0.25]]
    assert view.head.reason.startswith("its weight on the next token fell least among all scores")
    view = replay({1: made_run(["a"])[0], 2: made_run(["a"])[0]})
    assert view.sentence == (
        "In layer 0, head 0, the weight on the first token stays at 1.00 from step 1 to step 2."
    )


def two_tokens(weight: float) -> Trace:
    """Make a causal head over two tokens; the second token puts this weight on the first token."""
    arrays = {"pattern": [[1, 0], [weight, 1 - weight]], "attn_scores": [[0, -np.inf], [0, 0]]}
    return Trace(
        {f"blocks.0.attn.hook_{name}": np.array([[array]]) for name, array in arrays.items()},
        tokens=[["a", "b"]],
    )


def test_the_sentence_reports_falling_and_already_high_scores() -> None:
    falling = replay({step: two_tokens(x) for step, x in ((1, 1.0), (2, 0.9), (3, 0.2))})
    assert falling.sentence == (
        "In layer 0, head 0, the weight on the first token falls from 1.00 at step 1 to 0.60 at "
        "step 3, with the largest change between steps 2 and 3."
    )
    there = replay({1: two_tokens(0.6), 2: two_tokens(1.0)})
    assert there.sentence == (  # the score is over 0.5 at step 1, so no "becomes"
        "In layer 0, head 0, the weight on the previous token rises from 0.60 at step 1 to 1.00 at "
        "step 2."
    )


def test_a_single_snapshot_is_reported_as_the_only_one() -> None:
    run = {30: made_run(COPIES)[800]}
    view = replay(run)
    pattern = run[30].pattern(1, 2)
    found = score(pattern, np.eye(len(COPIES), k=-1) > 0)
    assert view.sentence == (
        f"In layer 1, head 2, the weight on the previous token is {found:.2f} at step 30, the only "
        "snapshot."
    )
    assert "step" in str(view)
    assert ElementTree.fromstring(view.svg()).tag.endswith("svg")


def random_tokens(front: list[int], ids: list[int], count: int, back: list[int]) -> np.ndarray:
    """Draw the 10 sequences on which heads are tested before a sentence names them."""
    rng = np.random.default_rng(0)
    drawn = [rng.choice(ids, count, replace=len(ids) < count).tolist() for _ in range(10)]
    return np.array([[*front, *part, *part, *back] for part in drawn])


def test_a_head_of_an_untrained_model_is_no_induction_head() -> None:
    words = "the cat sat on mat dog ran far hill tree"
    models = {step: qkv.models.random_model(words, seed=14 + step) for step in (0, 1)}
    view = replay(models, "the cat the")
    patterns = [model.trace("the cat the").pattern(0, 0) for model in models.values()]
    before, after = (float(pattern[2, 1]) for pattern in patterns)
    assert before < 0.5 < after
    assert view.sentence == (
        "In layer 0, head 0, the weight on the token after an earlier occurrence of the same token "
        f"rises from {before:.2f} at step 0 to {after:.2f} at step 1."
    )


# The folder of a run


def test_a_folder_gives_the_same_weights_as_its_models(view: ReplayView, folder: Path) -> None:
    assert view.steps == STEPS
    assert view.tokens == ["[CLS]", *TEXT.split(), "[SEP]"]
    assert (view.head.layer, view.head.head) == (1, 2)
    ends = [qkv.load(folder / "snapshots" / f"step-{step:08}") for step in (0, 800)]
    texts = random_tokens([2], [1, *range(4, 19)], 7, [3])  # 16 positions with [CLS] and [SEP]
    before, after = (
        np.mean([score(model.trace(ids).pattern(1, 2), np.eye(16, k=-1) > 0) for ids in texts])
        for model in ends
    )
    pattern = ends[1].trace(TEXT).pattern(1, 2)
    assert view.sentence.startswith("Layer 1, head 2 becomes a previous-token head: its weight on ")
    assert f" to {score(pattern, np.eye(12, k=-1) > 0):.2f} at step 800, " in view.sentence
    assert before < 0.5 <= after
    assert view.sentence.endswith(
        "On 10 sequences of 7 random tokens, each repeated once, this weight rises from "
        f"{before:.2f} to {after:.2f}."
    )
    for n, step in enumerate(STEPS):
        model = qkv.load(folder / "snapshots" / f"step-{step:08}")
        np.testing.assert_array_equal(view.weights[n], model.trace(TEXT).pattern(1, 2))
    assert view.replay.losses == [(n, pytest.approx(4 - 3 * n / 800)) for n in range(0, 801, 50)]
    assert (view.replay.loss_at(0), view.replay.loss_at(10**6)) == (4.0, 1.0)


def test_replay_also_accepts_models_and_traces(view: ReplayView, folder: Path) -> None:
    models = {step: qkv.load(folder / "snapshots" / f"step-{step:08}") for step in STEPS[::-1]}
    traces = {step: model.trace(TEXT) for step, model in models.items()}
    ids = models[0].tokenize(TEXT).ids
    for other in (
        replay(models, TEXT),
        replay(models, ids),
        qkv.replay(models, TEXT),
        replay(traces),
    ):
        assert other.steps == STEPS
        np.testing.assert_array_equal(other.replay.values, view.replay.values)
        named = "Layer 1, head 2 becomes" in other.sentence
        assert named == (other.replay.controls is not None)
        assert not named or other.sentence == view.sentence
        assert other.replay.losses == []
    assert replay is qkv.replay
    assert traces[0].model == models[0].name  # replay does not change the given traces


def test_incomplete_snapshots_are_skipped(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(folder, run)
    # a snapshot without config.json is still being written
    (run / "snapshots" / "step-00000900").mkdir()
    (run / "snapshots" / "notes").mkdir()
    (run / "snapshots" / "step-1.part").write_text("")
    (run / "metrics.jsonl").unlink()
    found = replay(str(run), TEXT)
    assert found.steps == STEPS
    assert found.replay.losses == []
    assert found.replay.loss_at(3) is None


def test_a_cut_text_draws_one_warning(folder: Path) -> None:
    with pytest.warns(UserWarning, match="cut to 16 tokens") as said:
        view = replay(folder, "the cat sat on a mat " * 5)
    assert len(said) == 1
    assert len(view.tokens) == 16


def test_a_snapshot_that_is_not_finite_is_left_out() -> None:
    run = made_run(COPIES)
    for step in (100, 800):
        run[step] = changed(run[step], "blocks.1.attn.hook_pattern", (0, 0, 3), np.nan)
    with pytest.warns(UserWarning, match="steps are left out, .* not finite: 100, 800"):
        view = replay(run)
    assert view.steps == [0, 200, 400]
    json.dumps(view.to_dict(), allow_nan=False)
    for step in (0, 200, 400):
        run[step] = changed(run[step], "blocks.0.attn.hook_pattern", ..., np.nan)
    with pytest.raises(ValueError, match="no snapshot has finite weights"):
        replay(run)


# Rejected inputs


def test_folders_without_a_run_are_refused(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"replay: the folder .*nowhere does not exist"):
        replay(tmp_path / "nowhere", TEXT)
    with pytest.raises(NotADirectoryError, match="is a file"):
        replay(folder / "metrics.jsonl", TEXT)
    for run in (tmp_path, folder / "snapshots" / "step-00000100"):
        with pytest.raises(ValueError, match=r"has no snapshots .*`qkv train` writes them"):
            replay(run, TEXT)


def test_snapshots_of_two_runs(tmp_path: Path) -> None:
    write_snapshot(tmp_path, 0, 0.0)
    other = write_snapshot(tmp_path, 100, 1.0, intermediate_size=28)
    with pytest.raises(ValueError, match="steps 0 and 100 are from different runs"):
        replay(tmp_path, TEXT)
    shutil.rmtree(other)
    other = write_snapshot(tmp_path, 100, 1.0)
    words = json.loads((other / "tokenizer.json").read_text())
    vocabulary = words["model"]["vocab"]
    vocabulary["cat"], vocabulary["dog"] = vocabulary["dog"], vocabulary["cat"]
    (other / "tokenizer.json").write_text(json.dumps(words))
    with pytest.raises(ValueError, match=r"steps 0 and 100 .* have different ids of tokens"):
        replay(tmp_path, TEXT)


MADE, LESSON = made_run(COPIES)[0], qkv.load("random")
FEWER = made_run(COPIES, heads=2, learns={(0, 0): "first"})[0]
FLAT = made_run(COPIES, layers=1, learns={(0, 0): "first"})[0]
NOTHING = Trace({"hook_embed": np.ones((1, 2, 3))}, tokens=[["a", "b"]])


@pytest.mark.parametrize(
    ("run", "text", "error", "words"),
    [
        ({}, None, ValueError, "`run` is empty"),
        (7, None, TypeError, "`run` has type int; pass the folder of a run"),
        ({"a": MADE}, None, TypeError, "'a' is not a training step"),
        ({-1: MADE}, None, TypeError, "-1 is not a training step"),
        ({1: "minilm"}, "a", TypeError, "step 1 has type str; pass a model or a trace"),
        ({1: MADE}, "a text", TypeError, "leave `text` out"),
        ({1: LESSON}, None, ValueError, "the text is missing"),
        ({1: LESSON}, " ", ValueError, "the text is empty"),
        ({1: NOTHING}, None, ValueError, "step 1 holds no weights"),
        ({1: MADE, 2: made_run(COPIES[:4])[0]}, None, ValueError, "different tokens"),
        ({1: MADE, 2: FEWER}, None, ValueError, "different heads, 3 and 2"),
        ({1: MADE, 2: FLAT}, None, ValueError, "different layers, 2 and 1"),
    ],
)
def test_invalid_arguments_are_refused_in_one_line(run, text, error, words) -> None:
    with pytest.raises(error, match=words) as said:
        replay(run, text)
    assert "\n" not in str(said.value)
    assert str(said.value).startswith("replay: ")
    with pytest.raises(ValueError, match="replay: theme is 'blue'"):
        replay(run, text, theme="blue")


# The page, the pictures, the terminal


def test_the_page_holds_the_weights_and_the_scores(view: ReplayView, folder: Path) -> None:
    data = payload_in(view._repr_html_())
    found = data["replay"]
    weights = unpack(found["weights"]) / found["weights"]["per"]
    np.testing.assert_array_equal(
        np.round(weights, 2), np.round(view.replay.weights.astype(float), 2)
    )
    assert weights.shape == (5, 2, 3, 12, 12)
    assert found["steps"] == STEPS
    assert found["shown"] == [0, 1, 2, 3, 4]
    assert found["tokens"] == view.tokens
    assert [each["name"] for each in found["scores"]] == ["previous", "next", "induction", "first"]
    for place, each in enumerate(found["scores"]):
        exact = view.replay.values[..., place].reshape(5, 6)
        assert each["values"] == exact.tolist()
    assert (data["start"]["layer"], data["start"]["head"], found["score"]) == (1, 2, 0)
    assert data["start"]["sentence"] == view.sentence
    assert found["losses"][0] == [0, 4.0]
    assert found["hidden"] is None
    assert found["run"] == folder.resolve().name


def test_a_causal_mask_is_packed_once() -> None:
    hidden = payload_in(replay(made_run(COPIES))._repr_html_())["replay"]["hidden"]
    assert hidden["shape"] == [1, 1, 11, 11]
    flags = np.unpackbits(unpack(hidden | {"shape": [-1]}).astype(np.uint8))[:121].reshape(11, 11)
    np.testing.assert_array_equal(flags, np.triu(np.ones((11, 11)), 1))


def test_the_page_of_a_small_model_is_under_a_megabyte(tmp_path: Path) -> None:
    words = [f"word{i % 20}" for i in range(30)]
    run = made_run(words, list(range(0, 1200, 100)), layers=4, heads=6)
    replay(run).to_html(tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size < 1_000_000


def test_a_large_run_keeps_the_weights_of_some_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    run = made_run(list("abcab"), list(range(9)))
    cells = 2 * 3 * 5 * 5
    monkeypatch.setitem(replay_of.__globals__, "MOST_CELLS", 3 * cells)
    view = replay(run)
    found = payload_in(view._repr_html_())["replay"]
    assert found["shown"] == [0, 4, 8]
    assert found["steps"] == list(range(9))
    assert len(found["scores"][0]["values"]) == 9
    assert found["left_out"] == [
        "This page has the weights of 3 of the 9 snapshots, and the scores of all snapshots."
    ]
    np.testing.assert_array_equal(view.weights[1], run[4].pattern(1, 2))
    assert view.to_dict()["shown_steps"] == [0, 4, 8]
    monkeypatch.setitem(replay_of.__globals__, "MOST_CELLS", 2 * cells - 1)
    with pytest.raises(ValueError, match="5 tokens, but with 6 heads a page holds at most 4"):
        replay(run)


def test_tokens_from_outside_stay_text() -> None:
    tokens = [HOSTILE, "\u2028", "\u202eevil", HOSTILE, "]]>"]
    view = replay(made_run(tokens))
    page = Page(view._repr_html_())
    assert page.tags.count("img") == 0
    assert len(page.scripts) == 1
    assert payload_in(view._repr_html_())["replay"]["tokens"] == tokens
    ElementTree.fromstring(view.svg())
    assert "\u202e" not in str(view)


def test_the_picture_is_a_strip_over_charts(view: ReplayView) -> None:
    root = ElementTree.fromstring(view.svg())
    assert root.get("aria-label") == view.sentence
    space = "{http://www.w3.org/2000/svg}"
    words = [node.text for node in root.iter(f"{space}text")]
    assert [word for word in words if re.fullmatch(r"step \d+", word)] == [
        f"step {n}" for n in STEPS
    ]
    assert len(list(root.iter(f"{space}image"))) == 5
    lines = list(root.iter(f"{space}polyline"))
    assert len(lines) == 5  # four scores and the loss
    assert "weight on the previous token" in words
    for place, line in enumerate(lines[:4]):
        y = [float(point.split(",")[1]) for point in line.get("points").split()]
        course = view.replay.values[:, 1, 2, place]
        # in the chart, 1 is at the top
        np.testing.assert_allclose(y, 8 + 150 * (1 - course), atol=0.06)
    long = replay(made_run(COPIES, list(range(0, 110, 10))))
    assert long.strip == [0, 2, 4, 6, 8, 10]


def test_a_tile_has_the_colours_of_the_weights_and_grey_if_masked() -> None:
    view = replay({1: two_tokens(1.0), 2: two_tokens(0.0)})
    found = re.findall(r"base64,([^\"]+)", view.svg())
    parts = [base64.b64decode(data) for data in found]
    # after the header of 33 bytes comes a chunk: its length, "IDAT" and its data
    rows = [zlib.decompress(part[41 : 41 + int.from_bytes(part[33:37])]) for part in parts]
    pixels = [np.frombuffer(row, np.uint8).reshape(2, 7)[:, 1:].reshape(2, 2, 3) for row in rows]
    light, dark, grey = (255, 255, 255), (2, 58, 108), (226, 226, 226)
    for shown, expected in zip(
        pixels, ([[dark, grey], [dark, light]], [[dark, grey], [light, dark]]), strict=True
    ):
        np.testing.assert_array_equal(shown, expected)


def test_the_terminal_shows_first_and_last_scores_of_heads(view: ReplayView, folder: Path) -> None:
    text = str(view)
    assert text.startswith(f"{folder.resolve().name}, 12 tokens: [CLS] the cat")
    assert " ".join(view.sentence.split()) in " ".join(text.split())
    first, last = view.replay.values[[0, -1], 1, 2]
    row = next(line for line in text.splitlines() if line.strip().startswith("1 · 2"))
    assert [float(x) for x in row.replace("1 · 2", "").replace("→", "").split()] == pytest.approx(
        np.stack([first, last], axis=1).ravel().tolist(), abs=0.0051
    )
    assert max(map(len, text.splitlines())) <= 80
    steps = [line.split() for line in text.splitlines() if re.match(r"\d+ +\d\.\d\d ", line)]
    assert [int(parts[0]) for parts in steps] == STEPS
    assert [float(parts[1]) for parts in steps] == pytest.approx(
        view.replay.values[:, 1, 2, 0].tolist(), abs=0.0051
    )
    assert [float(parts[-1]) for parts in steps] == [4.0, 3.625, 3.25, 2.5, 1.0]


def test_a_plain_terminal_and_many_heads(tmp_path: Path) -> None:
    view = replay(made_run(COPIES, layers=6, heads=8))
    path = tmp_path / "out.txt"
    # characters outside ASCII would raise an error
    with path.open("w", encoding="ascii") as file:
        view.print(Console(file=file, width=60, highlight=False))
    text = path.read_text("ascii")
    assert "24 of 48 heads that changed most" in text.replace("\n", " ")
    course = view.replay.course(view.head, view.score)
    assert re.search(rf"\n1 \* 2 +{course[0]:.2f} -> {course[-1]:.2f} ", text)


def test_its_numbers_are_ready_for_json(view: ReplayView) -> None:
    data = json.loads(json.dumps(view.to_dict(), allow_nan=False))
    assert (data["layer"], data["head"], data["score"]) == (1, 2, "previous")
    assert data["steps"] == data["shown_steps"] == STEPS
    np.testing.assert_array_equal(data["scores"]["first"], view.replay.values[..., 3])
    np.testing.assert_array_equal(np.float32(data["weights"]), view.weights)
    assert data["losses"][-1] == [800, 1.0]

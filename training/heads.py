"""Measure how heads change during training: their attention, and the subspaces they read.

`python -m training.heads RUN [RUN ...] -o DIR` measures each snapshot of chained runs of
`training.make`. The command writes into DIR: scores.json (for the page *What two heads learned*),
three figures, and replay.html, which shows the last run.

Method. *Scores*: the mean weight that a token gives to certain other tokens, for example to the
previous token, over held-out sentences (see `training.senses.heads`). *Positions*: the texts are
random words, so that every word is equally likely at every position. The mean of a layer's input at
a position, over all texts, is the vector of this position (Song and Zhong 2023, "Uncovering hidden
geometry in Transformers via disentangling position and context"). The matrix W_Q W_K^T of a head is
the head's QK circuit (Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits"); the
code calls this matrix a form. The matrix gives each pair of positions a score. A head's scores vary
over the keys; `from_places` is the share of this variance that the position scores explain. W_Q and
W_K each read a subspace of the vectors. We compare this subspace with the eight directions in which
the vectors of positions (or of words) differ most. *Lines up* is the mean squared cosine of the
principal angles between the subspace and these directions. For a random subspace, the expected
value is d / D. Here d (8 or more) is the dimension of the subspace, and D is the size of the
vectors.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import qkv
from qkv.arrays import Array
from qkv.extras import need
from qkv.files import replacing
from qkv.learn import read_metrics
from qkv.see.analysis.measures import on_offset
from qkv.see.analysis.snapshots import read_run
from training import command
from training.objectives import around
from training.senses import heads, held_out_sentences
from training.wordnet import FOLDER, read

TEXTS, WORDS = 64, 24  # the number of random texts, and the number of words in each text
DIRECTIONS = 8
SENTENCES = 400
SHOWN = "She opened the window because the room was warm."
ON_TEXT = ("previous", "next", "same", "first", "last")
OF_FORM = ("from_places", "q_places", "k_places", "q_words", "k_words")
_LINES = ("#0072b2", "#d55e00")
_INK, _FAINT = "#333333", "#dddddd"


def random_texts(model: qkv.Model, texts: int, words: int, seed: int = 0) -> Array:
    """Return ids (B, T) of texts with random words between the special tokens."""
    tokenizer = model.tokenizer
    assert tokenizer is not None
    plain = [one for one in range(len(tokenizer)) if not tokenizer.is_special(one)]
    drawn = np.random.default_rng(seed).choice(plain, (texts, words))
    before, after = (np.tile(ids, (texts, 1)) for ids in around(tokenizer))
    return np.concatenate([before, drawn, after], axis=1)


def place_scores(
    positions: Array, w_q: Array, w_k: Array, b_q: Array | None = None, b_k: Array | None = None
) -> Array:
    """Return the score of each pair of positions: (T, T).

    Args:
        positions: (T, D), the vectors of the positions.
        w_q: (D, d), one head's query weights.
        w_k: (D, d), its key weights.
        b_q: (d,), the biases of the queries.
        b_k: (d,), the biases of the keys.

    >>> place_scores(np.eye(2), np.array([[0.0], [2.0]]), np.array([[3.0], [0.0]]))
    array([[0., 0.],
           [6., 0.]])
    """
    queries = positions @ w_q + (0 if b_q is None else b_q)
    keys = positions @ w_k + (0 if b_k is None else b_k)
    found: Array = queries @ keys.T / np.sqrt(w_q.shape[1])
    return found


def explained(scores: Array, part: Array) -> float:
    """Return R squared: the share of the variance over keys that `part` explains.

    The scores have shape (..., L, S). Adding a constant to a whole row of `part` does not
    change the share, as in softmax. The share is below 0 if `part` predicts the scores worse than a
    constant.

    >>> scores = np.array([[3.0, 1.0]])
    >>> explained(scores, scores + 5), explained(scores, np.zeros((1, 2)))
    (1.0, 0.0)
    """
    centred, other = (x - x.mean(axis=-1, keepdims=True) for x in (scores, part))
    total = float((centred**2).sum())
    return 1 - float(((centred - other) ** 2).sum()) / total if total else 0.0


def directions(rows: Array, count: int = DIRECTIONS) -> Array:
    """Return the orthogonal directions (D, count) in which rows (N, D) differ most.

    >>> np.abs(directions(np.array([[5.0, 1.0], [5.0, 3.0]]), 1)).T
    array([[0., 1.]])
    """
    centred = rows - rows.mean(axis=0)
    _, vectors = np.linalg.eigh(centred.T @ centred)
    found: Array = vectors[:, ::-1][:, :count]
    return found


def principal_cosines(one: Array, other: Array) -> Array:
    """Return the cosines of the principal angles between two column spaces, the largest first.

    Source:
        Björck and Golub 1973, "Numerical methods for computing angles between linear subspaces".

    >>> principal_cosines(np.eye(3)[:, :2], np.array([[2.0], [0.0], [2.0]])).round(3)
    array([0.707])
    """
    bases = [np.linalg.qr(columns)[0] for columns in (one, other)]
    return np.minimum(np.linalg.svd(bases[0].T @ bases[1], compute_uv=False), 1.0)


def lines_up(projection: Array, space: Array) -> float:
    """Return the mean squared cosine of the principal angles between two subspaces.

    The result is 1 if one subspace contains the other, and 0 if they are orthogonal.

    >>> lines_up(np.eye(4)[:, :2], np.eye(4)[:, 1:3])
    0.5
    """
    return float((principal_cosines(projection, space) ** 2).mean())


def forms(model: qkv.Model, ids: Array) -> dict[str, Array]:
    """Return the measures of W_Q and W_K, each (layers, heads); also return the position scores.

    The position scores, "place_scores" (layers, heads, T, T), leave out the special tokens. In the
    model, each head must have its own keys, and position vectors must be added to word vectors.
    """
    tokenizer = model.tokenizer
    assert tokenizer is not None
    before, after = around(tokenizer)
    words = slice(len(before), ids.shape[1] - len(after))
    trace = model.trace(ids, names=["resid_pre", "q", "k"])
    found: dict[str, list[list[Any]]] = {name: [] for name in (*OF_FORM, "place_scores")}
    for layer in range(model.num_layers):
        x = trace["resid_pre", layer][:, words].astype(np.float64)  # (B, T, D)
        positions = x.mean(axis=0)
        spaces = {
            "places": directions(positions),
            "words": directions((x - positions).reshape(-1, x.shape[-1])),
        }
        row: dict[str, list[Any]] = {name: [] for name in found}
        for head in range(model.num_heads):
            w_q, w_k, b_q, b_k = projections(model, layer, head)
            alone = place_scores(positions, w_q, w_k, b_q, b_k)
            q, k = (trace[name, layer][:, words, head].astype(np.float64) for name in "qk")
            scores = q @ k.transpose(0, 2, 1) / np.sqrt(w_q.shape[1])
            row["place_scores"].append(alone)
            row["from_places"].append(explained(scores, alone))
            for name, space in spaces.items():
                row[f"q_{name}"].append(lines_up(w_q, space))
                row[f"k_{name}"].append(lines_up(w_k, space))
        for name, values in row.items():
            found[name].append(values)
    return {name: np.array(values) for name, values in found.items()}


def projections(model: qkv.Model, layer: int, head: int) -> tuple[Array, Array, Array, Array]:
    """Return W_Q and W_K (D, d) of one head, and their biases (d,), in float64."""
    size = model.dim // model.num_heads
    own = slice(head * size, (head + 1) * size)
    names = [
        f"blocks.{layer}.attn.{one}_proj.{kind}" for kind in ("weight", "bias") for one in "qk"
    ]
    w_q, w_k, b_q, b_k = (model.parameters[name][..., own].astype(np.float64) for name in names)
    return w_q, w_k, b_q, b_k


def measure(model: qkv.Model, sentences: Sequence[str]) -> dict[str, Array]:
    """Return all measures of one model's heads, each (layers, heads), and the position scores."""
    shape = (model.num_layers, model.num_heads)
    rows = heads(model, sentences)
    on_text = {name: np.array([row[name] for row in rows]).reshape(shape) for name in ON_TEXT}
    return on_text | forms(model, random_texts(model, TEXTS, WORDS))


def best(scores: Array) -> tuple[int, int]:
    """Return the layer and the head with the largest score."""
    layer, head = divmod(int(scores.argmax()), scores.shape[1])
    return layer, head


def through(
    folder: Path, sentences: Sequence[str], say: Callable[[str], None] = print
) -> tuple[dict[str, Any], dict[int, dict[str, Array]]]:
    """Measure each snapshot of a run. Return data for JSON, and the arrays of each snapshot."""
    run = read_run(folder)
    found = {}
    for step in run.steps:
        found[step] = measure(run.open(step), sentences)
        say(f"step {step:,}: " + ", ".join(_best_in_words(found[step], name) for name in _TWO))
    rows = read_metrics(folder)
    began: dict[str, int] = {}
    for row in rows:
        for name in row["losses"]:
            began.setdefault(name, row["step"])
    layers, count = next(iter(found.values()))["previous"].shape
    return {
        "layers": layers,
        "heads": count,
        "sentences": len(sentences),
        "objectives": began,  # the step at which each objective begins
        "steps": run.steps,
        "loss": [_loss_at(rows, step) for step in run.steps],
        "scores": {
            name: [np.round(found[step][name], 3).ravel().tolist() for step in run.steps]
            for name in (*ON_TEXT, *OF_FORM)
        },
    }, found


def joined(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Combine the results of chained runs into one result.

    Each result is the data for JSON that the function `through` returns for one run. A later run
    starts where the previous run ended, so the first snapshot of each later run is left out.
    """
    first, *later = results
    whole = {**first, "objectives": dict(first["objectives"]), "ends": [first["steps"][-1]]}
    for one in later:
        done = whole["steps"][-1]
        whole["steps"] = [*whole["steps"], *(done + step for step in one["steps"][1:])]
        whole["loss"] = [*whole["loss"], *one["loss"][1:]]
        whole["scores"] = {
            name: [*values, *one["scores"][name][1:]] for name, values in whole["scores"].items()
        }
        for name, step in one["objectives"].items():
            whole["objectives"].setdefault(name, done + step)
        whole["ends"].append(whole["steps"][-1])
    return whole


_TWO = ("previous", "next")


def _best_in_words(found: Mapping[str, Array], name: str) -> str:
    layer, head = best(found[name])
    return f"{name} {found[name][layer, head]:.2f} in {layer}.{head}"


def _loss_at(rows: Sequence[Mapping[str, Any]], step: int, last: int = 50) -> float | None:
    """Return the mean loss of the first objective, over the `last` steps before `step`."""
    near = [row["losses"] for row in rows if step - last < row["step"] <= max(step, 1)]
    losses = [next(iter(one.values())) for one in near if one]
    known = [loss for loss in losses if loss is not None]
    return round(float(np.mean(known)), 4) if known else None


def table(first: Mapping[str, Array], last: Mapping[str, Array]) -> str:
    """Format the scores of each head before and after training."""
    names = (*ON_TEXT, *OF_FORM)
    lines = ["head  " + " ".join(f"{name:>14}" for name in names)]
    for layer, head in np.ndindex(*last["previous"].shape):
        cells = (
            f"{first[name][layer, head]:.2f} > {last[name][layer, head]:.2f}" for name in names
        )
        lines.append(f"{layer}.{head:<3} " + " ".join(f"{cell:>14}" for cell in cells))
    return "\n".join(lines)


def draw(folder: Path, found: Mapping[int, Mapping[str, Array]]) -> None:
    """Draw three figures: scores during training, position scores, and subspaces."""
    need("matplotlib", "plot")
    from matplotlib.figure import Figure

    steps = list(found)
    first, last = found[steps[0]], found[steps[-1]]
    chosen = {name: best(last[name]) for name in _TWO}

    figure = Figure(figsize=(7.2, 4.0), dpi=150, layout="constrained")
    axis = figure.subplots()
    at = np.arange(len(steps))
    for name, color in zip(_TWO, _LINES, strict=True):
        courses = np.array([found[step][name] for step in steps]).reshape(len(steps), -1)
        axis.plot(at, courses, color=color, alpha=0.15, linewidth=0.8)
        layer, head = chosen[name]
        own = [found[step][name][layer, head] for step in steps]
        axis.plot(at, own, color=color, linewidth=2, label=f"{name} token, {layer}.{head}")
    axis.set_xticks(at, [f"{step:,}" for step in steps], rotation=45, ha="right")
    axis.set(xlabel="step", ylabel="mean weight", ylim=(0, 1))
    axis.legend(frameon=False, labelcolor=_INK)
    _save(figure, folder / "scores.png")

    figure = Figure(figsize=(7.2, 7.0), dpi=150, layout="constrained")
    for axes, name in zip(figure.subplots(2, 2), _TWO, strict=True):
        layer, head = chosen[name]
        for axis, one, step in zip(axes, (first, last), (steps[0], steps[-1]), strict=True):
            scores = one["place_scores"][layer, head]
            weights = qkv.softmax(scores)
            axis.imshow(weights, cmap="Blues", vmin=0, vmax=1)
            offset = -1 if name == "previous" else 1
            score = on_offset(weights[None], offset)[0]
            axis.set_title(f"{layer}.{head}, step {step:,}: {name} {score:.2f}", fontsize=10)
            axis.set(xlabel="place", ylabel="looks from place")
    _save(figure, folder / "places.png")

    figure = Figure(figsize=(7.2, 4.0), dpi=150, layout="constrained")
    axis = figure.subplots()
    shares = {name: np.ravel(last[name]) for name in OF_FORM}
    order = np.argsort(shares["from_places"])
    for name, color, mark in (("q_places", _LINES[0], "o"), ("k_places", _LINES[1], "s")):
        axis.plot(shares[name][order], mark, color=color, label=f"{name[0].upper()}, after")
        axis.plot(np.ravel(first[name])[order], mark, color=color, mfc="none", alpha=0.5)
    labels = [f"{n // last['previous'].shape[1]}.{n % last['previous'].shape[1]}" for n in order]
    axis.set_xticks(range(len(order)), labels, rotation=90, fontsize=7)
    axis.set(
        xlabel="heads, sorted by the share that positions explain",
        ylabel="alignment with positions",
        ylim=(0, 1),
    )
    axis.legend(frameon=False, labelcolor=_INK, title="hollow: before")
    _save(figure, folder / "subspaces.png")


def _save(figure: Any, path: Path) -> None:
    for axis in figure.axes:
        axis.tick_params(colors=_INK)
        axis.spines[:].set_color(_FAINT)
    with replacing(path) as file:
        figure.savefig(file, format="png")


def main(arguments: Sequence[str] | None = None, say: Callable[[str], None] = print) -> None:
    """Measure a run."""
    parser = argparse.ArgumentParser(prog="python -m training.heads", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("run", type=Path, nargs="+", help="the folder of a run of training.make")
    parser.add_argument("-o", "--out", type=Path, required=True, help="the folder for the results")
    parser.add_argument("--wordnet", type=Path, default=FOLDER, help="folder of WordNet's files")
    given = parser.parse_args(arguments)
    sentences = list(islice(held_out_sentences(read(given.wordnet)), SENTENCES))
    results, measured = zip(*(through(run, sentences, say) for run in given.run), strict=True)
    result = joined(results)
    copies = [copy for run, one in enumerate(measured) for copy in list(one.values())[run > 0 :]]
    found = dict(zip(result["steps"], copies, strict=True))
    given.out.mkdir(parents=True, exist_ok=True)
    with replacing(given.out / "scores.json") as file:
        file.write(dumped(result).encode())
    draw(given.out, found)
    qkv.replay(given.run[-1], SHOWN).to_html(given.out / "replay.html")
    say("\n" + table(found[result["steps"][0]], found[result["steps"][-1]]))


def dumped(result: Mapping[str, Any]) -> str:
    """Format JSON with a line for each list of numbers."""
    scores = ",\n".join(
        f"{json.dumps(name)}: [\n{rows}\n]"
        for name, rows in (
            (name, ",\n".join(json.dumps(row, separators=(",", ":")) for row in values))
            for name, values in result["scores"].items()
        )
    )
    rest = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in result.items() if k != "scores"]
    return "{\n" + ",\n".join([*rest, '"scores": {\n' + scores + "\n}"]) + "\n}\n"


if __name__ == "__main__":
    command(main)

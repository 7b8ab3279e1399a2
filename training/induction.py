"""Train two layers of attention to copy: `python -m training.induction -o DIR`.

The command trains with `qkv.learn`, which writes the run into the folder DIR. The command then adds
two files to DIR: replay.html shows the heads step by step, and induction.png shows the loss and the
scores of the heads. The page *Induction* of the course trains a smaller model in the same way.
"""

from __future__ import annotations

import argparse
import string
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import qkv
from qkv.arrays import Array
from qkv.extras import need
from qkv.files import replacing
from qkv.learn import Network, Trained, Words, fresh_model, read_metrics, train, words_loss
from qkv.learn.run_folder import snapshots_in
from training import command

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REPLAY, PICTURE = "replay.html", "induction.png"
SYMBOLS = string.ascii_lowercase + string.digits + string.ascii_uppercase
TEXT = "k n o w 4 b r i d g e s 9 x b r i d g e s"
SHORTEST = 4  # the minimum and maximum length of the repeated part
_LINES = (("previous", "previous token", "#0072b2"), ("induction", "induction", "#d55e00"))
_INK, _FAINT = "#333333", "#dddddd"


@dataclass(frozen=True)
class Sizes:
    """The sizes of the model and the settings of its training.

    Attributes:
        symbols: the number of letters and digits.
        length: T, the number of tokens in a text; at most the number of symbols.
        texts: B, the number of texts in a step.
        layers: the number of layers.
        heads: the number of heads in each layer.
        dim: D, the size of the vectors.
        steps: the number of steps.
        snapshots: the number of snapshots after step 0.
        rate: the highest learning rate.
        seed: the seed of all random draws.
    """

    symbols: int = 62
    length: int = 40
    texts: int = 64
    layers: int = 2
    heads: int = 4
    dim: int = 128
    steps: int = 1200
    snapshots: int = 40
    rate: float = 3e-3
    seed: int = 0


class Repeats:
    """An objective with random texts; in each text, one sequence of tokens occurs twice.

    All other tokens of a text occur once. The model must predict the tokens of the second copy
    except its first token. All other tokens are random, so the model cannot predict them.

    Args:
        symbols: the number of tokens to draw from.
        length: T, the number of tokens in a text.
        texts: B, the number of texts in a step.

    >>> texts, positions = Repeats(36, 12, texts=1).draw(np.random.default_rng(0))
    >>> texts
    array([[ 4, 34, 30,  2,  3, 21,  4, 34, 30,  2,  3, 21]])
    >>> positions[:2]  # in text 0: from the second 4 to the 34 behind the first, and so on
    array([[0, 6, 1],
           [0, 7, 2]])
    """

    name = "repeats"

    def __init__(self, symbols: int, length: int, texts: int) -> None:
        self.symbols, self.length, self.texts = symbols, length, texts

    def draw(self, rng: np.random.Generator) -> tuple[Array, Array]:
        """Return texts (B, T), and an array of positions (n, 3).

        The array has a row for each token of the second copies, except for their last tokens. A
        row contains three indices: the index of the text, the token's position, and the position
        that follows the same token in the first copy.
        """
        texts, positions = [], []
        for number in range(self.texts):
            text = rng.permutation(self.symbols)[: self.length]
            size = rng.integers(SHORTEST, self.length // 2 + 1)
            first = rng.integers(0, self.length - 2 * size + 1)
            second = rng.integers(first + size, self.length - size + 1)
            text[second : second + size] = text[first : first + size]
            texts.append(text)
            positions += [(number, second + i, first + i + 1) for i in range(size - 1)]
        return np.array(texts), np.array(positions)

    def batch(self, step: int, rng: np.random.Generator) -> Words:
        """Return the packed texts of a step, with the token after each repeated token as target."""
        texts, positions = self.draw(rng)
        number, now, _ = positions.T
        ends = np.arange(self.texts + 1) * self.length
        return Words(texts.ravel(), ends, ends[number] + now, texts[number, now + 1])

    def __call__(self, network: Network, batch: Words) -> tuple[float, int]:
        """Return the mean loss and the number of tokens; add the gradient to `network.gradient`."""
        return words_loss(network, batch), len(batch.ids)

    def state(self) -> dict[str, Any]:
        """Return no state, because each step draws its own texts."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore nothing, because the objective has no state."""


def scores(model: qkv.Model, texts: Array, positions: Array) -> tuple[Array, Array]:
    """Return the previous-token score and the induction score of each head, both (layers, heads).

    The previous-token score is the mean weight on the previous token. The induction score is the
    mean weight that a token of the second copy gives to the token that followed the same token
    in the first copy.

    Source:
        Olsson et al. 2022, "In-context Learning and Induction Heads", where the induction score is
        called prefix matching score.
    """
    weights = np.stack(model.trace(texts, names=["pattern"]).attentions)  # (layers, B, H, T, T)
    previous = weights.diagonal(-1, 3, 4).mean(axis=(1, 3))
    number, now, behind = positions.T
    induction = weights[:, number, :, now, behind].mean(axis=0)
    return previous, induction


def accuracy(model: qkv.Model, texts: Array, positions: Array) -> float:
    """Return the share of the positions at which the next token has the largest logit."""
    number, now, _ = positions.T
    logits = np.asarray(model(texts).logits)  # (B, T, V)
    said = logits[number, now].argmax(axis=-1)
    return float((said == texts[number, now + 1]).mean())


def without(model: qkv.Model, layer: int, head: int) -> qkv.Model:
    """Return a copy of the model in which one head adds nothing: its rows of `W_O` are 0."""
    name = f"blocks.{layer}.attn.out_proj.weight"
    parameters = dict(model.parameters)
    size = model.dim // model.num_heads
    parameters[name] = parameters[name].copy()
    parameters[name][head * size : (head + 1) * size] = 0
    return model.with_parameters(parameters)


@dataclass(frozen=True)
class Point:
    """The measurements of a snapshot.

    Attributes:
        step: the step of the snapshot.
        previous: (layers, heads), the previous-token score.
        induction: (layers, heads), the induction score.
        accuracy: the accuracy in the second copies.
    """

    step: int
    previous: Array
    induction: Array
    accuracy: float

    @property
    def best(self) -> dict[str, tuple[float, int, int]]:
        """Return the highest value of each score, with the layer and the head that have it."""
        found = {}
        for name in ("previous", "induction"):
            each = getattr(self, name)
            layer, head = np.unravel_index(int(each.argmax()), each.shape)
            found[name] = (float(each.max()), int(layer), int(head))
        return found

    def __str__(self) -> str:
        said = ", ".join(
            f"{name} {score:.2f} (layer {layer}, head {head})"
            for name, (score, layer, head) in self.best.items()
        )
        return f"step {self.step:5,}: {said}, right {self.accuracy:.0%}"


def run(sizes: Sizes, folder: Path, *, resume: bool = False) -> Trained:
    """Train the model, with snapshots at equal intervals."""
    tokenizer = qkv.WordTokenizer(" ".join(SYMBOLS[: sizes.symbols]), lowercase=False)
    config = {
        "model_type": "qkv-attention-only",
        "architectures": ["AttentionOnlyLM"],
        "vocab_size": len(tokenizer),
        "hidden_size": sizes.dim,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "max_position_embeddings": sizes.length,
    }
    network = Network(fresh_model(config, tokenizer, seed=sizes.seed, name="induction"))
    return train(
        network,
        Repeats(sizes.symbols, sizes.length, sizes.texts),
        folder=folder,
        steps=sizes.steps,
        schedule=sizes.rate,
        seed=sizes.seed,
        resume=resume,
        snapshots=np.linspace(0, sizes.steps, sizes.snapshots + 1).round().astype(int).tolist(),
        settings={"sizes": asdict(sizes)},
    )


def held_out(sizes: Sizes) -> tuple[Array, Array]:
    """Draw texts and positions for measurements, with a generator that training does not use."""
    rng = np.random.default_rng([sizes.seed, sizes.steps])
    return Repeats(sizes.symbols, sizes.length, 64).draw(rng)


def follow(folder: Path, sizes: Sizes) -> list[Point]:
    """Measure the scores and the accuracy of each snapshot on held-out texts."""
    texts, positions = held_out(sizes)
    found = []
    for step, path in snapshots_in(folder).items():
        model = qkv.load(path)
        found.append(
            Point(step, *scores(model, texts, positions), accuracy(model, texts, positions))
        )
    return found


def plot(folder: Path, points: Sequence[Point]) -> Figure:
    """Draw the loss of each step, and below it the highest value of each score at each snapshot."""
    need("matplotlib", "plot")
    from matplotlib.figure import Figure

    rows = read_metrics(folder)
    figure = Figure(figsize=(7.2, 5.2), dpi=150, layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    above.plot([row["step"] for row in rows], [row["loss"] for row in rows], color=_INK, lw=1.2)
    above.set_ylabel("loss on the second copy (nats)", color=_INK)
    for name, label, color in _LINES:
        values = [point.best[name][0] for point in points]
        below.plot([point.step for point in points], values, "o-", ms=3, color=color, label=label)
    right = [point.accuracy for point in points]
    below.plot([point.step for point in points], right, ":", color=_INK, label="share right")
    below.set_ylabel("highest score of a head", color=_INK)
    below.set_xlabel("step", color=_INK)
    below.set_ylim(0, 1.02)
    below.legend(frameon=False, labelcolor=_INK)
    for axes in (above, below):
        axes.grid(color=_FAINT, linewidth=0.6)
        axes.tick_params(colors=_INK)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(_FAINT)
    return figure


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, print the scores of each snapshot and draw them."""
    parser = argparse.ArgumentParser(prog="python -m training.induction", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("-o", "--out", type=Path, required=True, help="the folder of the run")
    parser.add_argument("--threads", type=int, help="number of threads (default: all cores)")
    parser.add_argument("--resume", action="store_true", help="continue from the last checkpoint")
    group = parser.add_argument_group("the sizes")
    for one in fields(Sizes):
        group.add_argument(
            f"--{one.name}", type=type(one.default), default=one.default, help=f"{one.default}"
        )
    given = parser.parse_args(arguments)
    sizes = Sizes(**{one.name: getattr(given, one.name) for one in fields(Sizes)})
    least, alphabet = len(TEXT.split()), SYMBOLS[: sizes.symbols]
    if not (least <= sizes.length <= sizes.symbols <= len(SYMBOLS) and "9" in alphabet):
        parser.error(
            f"--symbols {sizes.symbols}, --length {sizes.length}: choose 36 to "
            f"{len(SYMBOLS)} symbols, and a length from {least} to the number of symbols"
        )
    if given.threads is not None:
        qkv.set_num_threads(given.threads)
    done = run(sizes, given.out, resume=given.resume)
    points = follow(given.out, sizes)
    print(*points, sep="\n")
    texts, positions = held_out(sizes)
    cut = qkv.load(given.out)
    for head in range(sizes.heads):
        cut = without(cut, 0, head)
    print(f"without the heads of layer 0: accuracy {accuracy(cut, texts, positions):.0%}")
    with replacing(given.out / PICTURE) as file:
        plot(given.out, points).savefig(file, format="png")
    qkv.replay(given.out, TEXT).to_html(given.out / REPLAY)
    print(
        f"{done.folder}: {done.steps:,} steps in {done.seconds:.0f} s, loss {done.loss:.3f}; "
        f"{REPLAY} and {PICTURE} show it"
    )


if __name__ == "__main__":
    command(main)

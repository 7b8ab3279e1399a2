"""Training runs made by hand: snapshots or traces that change from noise to structure."""

import json
from pathlib import Path

import numpy as np

from models.support import CONFIG, WORDS, Folder, bert_tensors
from qkv.trace import Trace

STEPS = [0, 100, 200, 400, 800]
TEXT = "the cat sat on the mat . a dog ran"


def shares(steps: list[int] = STEPS) -> list[float]:
    """Return how much has been learned at each step: little, then a sudden rise in the middle."""
    if len(steps) == 1:
        return [1.0]
    whole = 1 / (1 + np.exp(-8 * (np.linspace(0, 1, len(steps)) - 0.5)))
    return [float((x - whole[0]) / (whole[-1] - whole[0])) for x in whole]


def run_folder(path: Path, steps: list[int] = STEPS, *, log: bool = True) -> Path:
    """Write the run of a BERT whose layer 1, head 2 learns to attend to the previous token."""
    for step, share in zip(steps, shares(steps), strict=True):
        write_snapshot(path, step, share)
    if log:
        lines = [{"step": n, "loss": 4 - 3 * n / max(steps[-1], 1)} for n in range(0, 801, 50)]
        (path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def write_snapshot(path: Path, step: int, share: float, **changes: object) -> Path:
    """Write the snapshot of one training step.

    With `share` 0, head 2 of layer 1 has random weights. With `share` 1, this head attends to the
    previous token. Between 0 and 1, its weights are a mix of both.
    """
    home = path / "snapshots" / f"step-{step:08}"
    home.mkdir(parents=True)
    folder = Folder(home)
    folder.config = CONFIG | {"hidden_size": 24, "vocab_size": len(WORDS), **changes}
    folder.tensors = bert_tensors(folder.config)
    head = int(folder.config["hidden_size"]) // folder.config["num_attention_heads"]
    # The first numbers of a position vector are cosines and sines. `turn` maps these numbers to
    # the numbers of the previous position.
    waves = np.array([1.0, 0.5, 0.25, 0.125])[: head // 2]
    angles = np.arange(folder.config["max_position_embeddings"])[:, None] * waves
    positions = np.stack([np.cos(angles), np.sin(angles)], axis=-1).reshape(len(angles), -1)
    here = "embeddings.position_embeddings.weight"
    folder.tensors[here][:, : positions.shape[1]] = 16 * positions
    turn = np.zeros((head, head), np.float32)
    for k, wave in enumerate(waves):
        cos, sin = np.cos(wave), np.sin(wave)
        turn[2 * k : 2 * k + 2, 2 * k : 2 * k + 2] = [[cos, sin], [-sin, cos]]
    for name, weight in (("query", 40 * turn), ("key", np.eye(head))):
        for kind in ("weight", "bias"):
            tensor = folder.tensors[f"encoder.layer.1.attention.self.{name}.{kind}"]
            rows = tensor[2 * head : 3 * head]
            rows *= 1 - share
            if kind == "weight":
                rows[:, :head] += share * weight
    for tensors in ("attention.output.dense", "output.dense"):  # layer 0 keeps the positions
        folder.tensors[f"encoder.layer.0.{tensors}.weight"] *= 0.05
    folder.write()
    return home


def made_run(
    tokens: list[str],
    steps: list[int] = STEPS,
    *,
    layers: int = 2,
    heads: int = 3,
    learns: dict[tuple[int, int], str] | None = None,
    causal: bool = True,
    seed: int = 0,
) -> dict[int, Trace]:
    """Make the traces of a training run in which the heads in `learns` learn their patterns.

    The attention weights are softmaxes of noise. At later steps, the weights of a head in `learns`
    come closer to the head's pattern.
    """
    rng, size = np.random.default_rng(seed), len(tokens)
    special = [token in ("[CLS]", "[SEP]") for token in tokens]
    noise = rng.normal(size=(layers, heads, size, size))
    goals = np.zeros_like(noise)
    for place, what in (learns or {(1, 2): "previous"}).items():
        goals[place] = goal(tokens, what)
    mask = np.tri(size, dtype=bool) if causal else np.ones((size, size), bool)
    run = {}
    for step, share in zip(steps, shares(steps), strict=True):
        wobble = rng.normal(size=noise.shape) * 0.3
        scores = np.where(mask, noise + wobble + 8 * share * goals, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        arrays = {}
        for layer in range(layers):
            arrays[f"blocks.{layer}.attn.hook_attn_scores"] = scores[None, layer]
            arrays[f"blocks.{layer}.attn.hook_pattern"] = weights[None, layer].astype(np.float32)
        run[step] = Trace(arrays, tokens=[tokens], special=[special], model="made")
    return run


def goal(tokens: list[str], what: str) -> np.ndarray:
    """Return the ideal pattern of a head of this kind: 1 at attended cells, else 0, `(L, L)`."""
    size = len(tokens)
    if what == "first":
        return np.eye(size)[[0] * size]
    if what != "induction":
        return np.eye(size, k={"previous": -1, "next": 1}[what])
    found = np.zeros((size, size))
    for i in range(size):
        for j in range(i):
            found[i, j] = j > 0 and tokens[j - 1] == tokens[i]
    return found

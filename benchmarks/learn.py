"""One training step of the included encoder on one batch: forward pass, backward pass and AdamW.

The learning rate is 0, so every step starts from the same weights, and all gradients can be
compared with gradients in float64. A step does the same work whatever the learning rate is.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.bert import operations
from benchmarks.common import Row, Way, faster
from benchmarks.models import in_transformers, largest
from benchmarks.peers import needs, torch
from qkv.learn import AdamW, Network, Words, fresh_model, words_loss
from qkv.models.files.find import find_model

CONFIG = json.loads((find_model("books") / "config.json").read_text())
TABLE, HEAD = "embed.weight", "AutoModelForMaskedLM"


def rows(shrink: int = 1) -> Iterator[Row]:
    """Yield rows for texts of full length, and for texts with the lengths of WordNet's entries."""
    full = np.full(64 // shrink, 64)
    drawn = np.clip(np.random.default_rng(0).lognormal(3.0, 0.5, 190 // shrink), 5, 64).astype(int)
    yield row(f"{len(full)} texts of 64 tokens", full)
    yield row(f"{len(drawn)} texts of 5 to 64 tokens, {drawn.sum()} in all", drawn)


def row(name: str, lengths: np.ndarray) -> Row:
    """Make the row of the results table for one batch of texts with these lengths.

    A fifth of the tokens are predicted.
    """
    rng = np.random.default_rng(1)
    cu = np.concatenate([[0], np.cumsum(lengths)])
    ids = rng.integers(5, CONFIG["vocab_size"], cu[-1])
    at = np.sort(rng.choice(cu[-1], cu[-1] // 5, replace=False))
    batch = Words(ids, cu, at, rng.integers(5, CONFIG["vocab_size"], len(at)))
    model = fresh_model(CONFIG, seed=0)
    wide = in_transformers(model, HEAD, "float64")
    if wide is None:  # then qkv computes the truth, too
        exact = Network(model, dtype=np.float64)
        words_loss(exact, batch)
    error = largest(torch_step(wide, batch)() if wide else exact.gradients[TABLE])
    network = Network(model)
    optimizer = AdamW(network, decay=0.0, clip=1e9)

    def ours() -> np.ndarray:
        network.gradient[:] = 0
        words_loss(network, batch)
        optimizer.step(0.0)
        return network.gradients[TABLE]

    theirs = in_transformers(model, HEAD)
    peer = theirs and torch_step(theirs, batch)
    scored = model.parameters[TABLE].size + model.parameters["head.dense_proj.weight"].size
    # each product of the forward pass has two of the same size in the backward pass
    work = 3 * (operations(model, lengths) + 2.0 * len(at) * scored)
    ways = {
        "qkv": Way(ours, error, operations=work),
        "torch": peer and Way(peer, error, operations=work),
    }
    return Row(name, ways, (faster("torch", 1.5),), rounds=7)


@needs("torch")
def torch_step(model: Any, batch: Words) -> Callable[[], np.ndarray]:
    """Make the same step with transformers' BERT and torch's fused AdamW, on padded texts."""
    lengths = np.diff(batch.cu_lengths)
    real = torch().arange(int(lengths.max())) < torch().from_numpy(lengths)[:, None]
    ids = torch().zeros(real.shape, dtype=torch().long)
    ids[real] = torch().from_numpy(batch.ids)
    targets = torch().from_numpy(batch.targets)
    at = real.flatten().nonzero()[:, 0][torch().from_numpy(batch.at)]
    mask = None if real.all() else real.long()
    optimizer = torch().optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.0, fused=True)

    def step() -> np.ndarray:
        with torch().enable_grad():
            optimizer.zero_grad()
            vectors = model.bert(ids, attention_mask=mask).last_hidden_state
            # the head runs only at the positions of predicted tokens
            logits = model.cls(vectors.flatten(0, 1)[at])
            torch().nn.functional.cross_entropy(logits, targets).backward()
            optimizer.step()
        return model.bert.embeddings.word_embeddings.weight.grad.numpy()

    return step

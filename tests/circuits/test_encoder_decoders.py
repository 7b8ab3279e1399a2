"""Tests of the refusal of encoder-decoders by every function of `qkv.circuits`."""

from typing import Any

import numpy as np
import pytest

from qkv import circuits
from qkv.circuits import SAE

IDS, PAIR, METRIC = [3, 5, 6], ([3, 5, 6], [3, 7, 6]), {"metric": (0, 3)}
NO_MODEL = {"plot", "rollout", "Result", "Graph", "Edge", "PlotView", "Cache"}
NO_MODEL |= {"Example", "HeadExample", "Scan", "HeadScan", "metrics", "SAE"}


def coder() -> SAE:
    sae = SAE(np.eye(12), np.eye(12))
    sae.at = ("resid_post", 0)
    return sae


CALLS: dict[str, Any] = {
    "attribute_logits": lambda model, trace: circuits.attribute_logits(model, trace, of=(0, 3)),
    "attribution_patch": lambda m, _: circuits.attribution_patch(m, *PAIR, **METRIC, at="z"),
    "cache": lambda model, _: circuits.cache(model, [IDS], "unused", names="resid_post"),
    "composition": lambda model, _: circuits.composition(model, "q"),
    "copying_scores": lambda model, _: circuits.copying_scores(model),
    "diff": lambda model, _: circuits.diff(model, model, [IDS]),
    "discover": lambda model, _: circuits.discover(model, *PAIR, **METRIC, edges=3),
    "edges": lambda model, _: circuits.edges(model, *PAIR, **METRIC),
    "head_scores": lambda model, _: circuits.head_scores(model, [IDS]),
    "integrated_gradients": lambda m, _: circuits.integrated_gradients(m, IDS, of=(0, 3)),
    "logit_lens": lambda model, trace: circuits.logit_lens(model, trace),
    "patch": lambda model, _: circuits.patch(model, *PAIR, **METRIC, at="z"),
    "path": lambda m, _: circuits.path(m, *PAIR, **METRIC, sender="embed", receivers="logits"),
    "rollout": lambda _, trace: circuits.rollout(trace),
    "scan": lambda model, _: circuits.scan(model, [IDS], of=("post", 0)),
    "scan_heads": lambda model, _: circuits.scan_heads(model, [IDS]),
    "value_weighted": lambda _, trace: circuits.value_weighted(trace, 0),
    "SAE.train": lambda m, _: SAE.train(m, [IDS], at=("resid_post", 0), features=8),
    "SAE.evaluate": lambda model, _: coder().evaluate(model, [IDS]),
}


@pytest.mark.parametrize("name", CALLS)
def test_every_function_refuses_an_encoder_decoder(small, name):
    model = small("t5")
    said = f"{name}: {model.name} reads one text and writes another: load a text encoder or decoder"
    with pytest.raises(ValueError, match="reads one text") as error:
        CALLS[name](model, model.trace(IDS, target=[4, 5]))
    assert str(error.value) == said


def test_the_table_has_every_function():
    assert {*circuits.__all__} <= {*CALLS, *NO_MODEL}

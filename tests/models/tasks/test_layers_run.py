"""Tests that no layer runs after the last activation that a trace keeps."""

import numpy as np
import pytest

from qkv.layers import MLP, Block, LayerNorm, RMSNorm
from qkv.trace import Seq2SeqTrace

IDS = [[4, 5, 6, 7, 8], [9, 4]]
KINDS = ["gpt2", "albert", "modernbert", "llama", "gemma2", "t5"]


@pytest.fixture
def run(monkeypatch):
    """The layers, MLPs and norms that are run, in their order."""
    ran = []

    def watched(kind):
        usual = kind.run

        def run(self, *args, **options):
            ran.append(self)
            return usual(self, *args, **options)

        monkeypatch.setattr(kind, "run", run)

    for kind in (Block, MLP, LayerNorm, RMSNorm):
        watched(kind)
    return ran


def numbers(model, ran):
    """Return how many layers were run, and whether the final norm was run."""
    blocks = [one for one in ran if isinstance(one, Block)]
    return len(blocks), any(one is model.network.final_norm for one in ran)


@pytest.mark.parametrize(
    "kind",
    [
        *("gpt2", "albert", "gemma2", "t5"),
        *(pytest.param(kind, marks=pytest.mark.attack) for kind in ("modernbert", "llama")),
    ],
)
@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"layers": 0}, 1),
        ({"layers": [0]}, 1),
        ({"layers": -2}, -1),
        ({"layers": (-1, 0)}, 0),
        ({"names": ("q", 0)}, 1),
        ({"names": [("pattern", 0), "embed"]}, 1),
        ({"names": "blocks.0.hook_resid_pre"}, 1),
        ({"names": "embed"}, 0),
        ({"names": []}, 0),
        ({"names": "pattern", "layers": 0}, 1),
        ({"top_k": 2, "layers": 0}, 1),
        ({"top_k": 2, "names": ("q", 1), "layers": 0}, 1),
    ],
)
def test_layers_above_what_is_kept_are_not_run(model_of, run, kind, options, count):
    model = model_of(kind)
    wanted = count if options.get("layers") not in (-2, (-1, 0)) else model.num_layers + count
    everything = {name: one for name, one in options.items() if name == "top_k"}
    whole = model.trace(IDS, names=model.network.hook_names, **everything)
    run.clear()
    found = model.trace(IDS, **options)
    has_last = options.get("layers") == (-1, 0) and model.network.final_norm is not None
    assert numbers(model, run) == (wanted, has_last)
    np.testing.assert_equal(dict(found), {name: whole[name] for name in found.names()})
    run.clear()
    stream = list(model.trace_stream(IDS, batch_size=1, **options))
    assert numbers(model, run) == (2 * wanted, has_last)
    assert [trace.names() for trace in stream] == [found.names()] * 2


def test_logits_need_all_layers_and_the_final_norm_is_kept_with_the_last(model_of, run):
    model = model_of("gpt2")
    for options in ({"logits": True}, {"names": "ln_final.scale"}, {"names": ("scale", None)}):
        run.clear()
        trace = model.trace(IDS, layers=0, **options)
        assert numbers(model, run) == (2, True)
        assert ("scale", None) in trace or "logits" in trace
        assert ("q", 1) not in trace
    assert ("scale", None) not in model.trace(IDS, layers=0)
    assert ("scale", None) in model.trace(IDS, layers=1)
    assert ("normalized", None) not in model.trace(IDS, layers=0, names=["normalized"])
    assert ("normalized", None) in model.trace(IDS, layers=-1, names=["normalized"])


def test_layers_that_do_not_run_compute_no_edits_or_means(model_of, run):
    model, called = model_of("modernbert"), []

    def look(x, at):
        called.append(at.layer)
        return 2 * x

    edit = {"z": look, "embed": look}
    ablate = {(2, 0): "mean", (1, 1): "zero"}
    found = model.trace(IDS, layers=1, edit=edit, ablate=ablate)
    assert called == [None, 0, 1]
    assert numbers(model, run) == (2, False)
    assert found.changed["edit"] == [
        "blocks.0.attn.hook_z",
        "blocks.1.attn.hook_z",
        "blocks.2.attn.hook_z",
        "hook_embed",
    ]
    assert found.changed["ablate"] == [(1, 1), (2, 0)]
    whole = model.trace(IDS, edit=edit, ablate=ablate)
    np.testing.assert_equal(dict(found), {name: whole[name] for name in found.names()})
    run.clear()
    model.trace(IDS, layers=0, ablate={(0, 0): "mean"})
    assert numbers(model, run) == (2, False)  # one of them for the mean


@pytest.mark.parametrize(
    ("options", "counts"),
    [
        ({"names": "encoder.blocks.0.attn.hook_q"}, (1, 0)),
        ({"names": "encoder.hook_embed"}, (0, 0)),
        ({"names": "decoder.hook_embed"}, (0, 0)),
        ({"names": "decoder.0.cross_attn.hook_pattern"}, (2, 1)),
        ({"layers": 1, "names": "resid_post"}, (2, 2)),
        ({"layers": 0}, (2, 1)),
        ({"layers": 0, "top_k": 1}, (2, 1)),
        ({"layers": 0, "logits": True}, (2, 3)),
        ({}, (2, 3)),
    ],
)
def test_a_pair_runs_only_the_layers_that_its_trace_needs(model_of, run, options, counts):
    model = model_of("t5")
    pair = {"texts": IDS, "target": [[2, 5], [2]]}
    both = {name: one for name, one in options.items() if name in ("top_k", "logits")}
    whole = model.trace(**pair, names=model.network.pair_hook_names, **both)
    run.clear()
    found = model.trace(**pair, **options)
    assert isinstance(found, Seq2SeqTrace)
    decoder = model.network.decoder.layers
    ran = [any(one is layer for layer in decoder) for one in run if isinstance(one, Block)]
    assert (ran.count(False), ran.count(True)) == counts
    np.testing.assert_equal(dict(found), {name: whole[name] for name in found.names()})

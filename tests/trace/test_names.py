"""Tests that one resolver finds the activations of traces, edits, gradients and `names=`."""

from typing import Any

import numpy as np
import pytest

import qkv
from qkv.trace.names import NameIndex

TEXT = "The oak is a [MASK] tree."
# Names of TransformerLens's bridge, and the names in section 2 of the contract.
BRIDGE = {
    "embed.hook_out": "hook_embed",
    "pos_embed.hook_out": "hook_pos_embed",
    "blocks.1.hook_in": "blocks.1.hook_resid_pre",
    "blocks.1.attn.hook_out": "blocks.1.hook_attn_out",
    "blocks.1.attn.q.hook_out": "blocks.1.attn.hook_q",
    "blocks.1.attn.k.hook_out": "blocks.1.attn.hook_k",
    "blocks.1.attn.v.hook_out": "blocks.1.attn.hook_v",
    "blocks.1.attn.o.hook_in": "blocks.1.attn.hook_z",
    "blocks.1.mlp.hook_out": "blocks.1.hook_mlp_out",
    "blocks.1.mlp.out.hook_in": "blocks.1.mlp.hook_post",
}


@pytest.fixture(scope="module")
def model() -> qkv.Model:
    return qkv.load()


@pytest.mark.parametrize(("bridge", "usual"), BRIDGE.items())
def test_names_of_transformer_lens_3_are_aliases(model: qkv.Model, bridge: str, usual: str) -> None:
    trace = model.trace(TEXT, names=bridge)
    assert trace.names() == [usual]
    assert trace[bridge] is trace[usual]
    assert model.trace(TEXT, names=[], edit={bridge: np.negative}).changed["edit"] == [usual]
    assert model.gradient(TEXT, of=(-3, "small"), at=bridge)[bridge].shape == trace[usual].shape


def test_the_output_of_a_block_is_what_the_next_block_reads(model: qkv.Model) -> None:
    for one, text in ((model, TEXT), (qkv.load("books-decoder"), "The oak is")):
        trace = one.trace(text)
        for name in ("blocks.0.hook_out", ("out", 0)):
            np.testing.assert_array_equal(trace[name], trace["resid_pre", 1])
        assert trace["out", 0, "attn"] is trace["attn_out", 0]


@pytest.mark.parametrize(
    ("name", "layers"),
    [("z", [0, 1, 2, 3]), (("z", None), [0, 1, 2, 3]), (("z", (3, 1)), [3, 1]), (("z", -1), [3])],
)
def test_traces_edits_and_gradients_accept_the_same_names(
    model: qkv.Model, name: Any, layers: list[int]
) -> None:
    full = [f"blocks.{layer}.attn.hook_z" for layer in layers]
    trace = model.trace(TEXT, names=[name])
    assert trace.names() == sorted(full)
    assert model.trace(TEXT, edit={name: np.negative}).changed["edit"] == full
    found = model.gradient(TEXT, of=(-3, "small"), at=[name])[name]
    each = model.gradient(TEXT, of=(-3, "small"), at=full)
    expected = [each[one] for one in full]
    np.testing.assert_array_equal(found, expected[0] if name == ("z", -1) else expected)
    columns = trace.to_pandas(name)["layer"].unique().tolist()
    assert columns == layers


def test_a_name_of_several_activations_is_no_single_name(model: qkv.Model) -> None:
    trace = model.trace(TEXT)
    for name in ("z", ("z", None), ("z", (0, 1))):
        assert name not in trace


def test_a_missing_layer_of_several_is_named() -> None:
    index = NameIndex(["blocks.0.attn.hook_q", "blocks.1.attn.hook_q", "blocks.1.ln1.hook_scale"])
    assert index.find(("scale", (1, 0), "ln1")) == []
    assert index.why_not(("scale", (1, 0), "ln1")) == ("('scale', 0, 'ln1') exists only in layer 1")
    assert index.why_not(("q", (1, 2))) == (
        "there is no layer 2: the model has 2 layers, numbered 0 to 1"
    )
    assert index.find(("scale", None, "ln1")) == ["blocks.1.ln1.hook_scale"]


def test_both_sides_of_a_pair_need_a_side() -> None:
    names = ["encoder.blocks.0.attn.hook_q", "decoder.blocks.0.attn.hook_q"]
    index = NameIndex(
        [*names, "decoder.blocks.1.attn.hook_q", "decoder.blocks.0.cross_attn.hook_q"]
    )
    assert index.one(("encoder.q", 0)) == index.one("encoder.0.attn.hook_q") == names[0]
    assert index.one(("cross_attn.q", 0)) == "decoder.blocks.0.cross_attn.hook_q"
    for name in ("q", ("q", 0), ("q", 1)):  # only the decoder has a layer 1, but both have a `q`
        assert index.find(name) == []
        assert "names begin with 'encoder.' or 'decoder.'" in index.why_not(name)
    assert index.why_not(("encoder.q", (0, 1))) == (
        "there is no layer 1: the model has 1 layers, numbered 0 to 0"
    )
    assert index.matching("q") == [*index.full]
    assert index.matching(("q", 0)) == names

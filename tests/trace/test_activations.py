"""Tests that the table of activations agrees with traces and with the edits that models reject."""

from typing import Any

import numpy as np
import pytest

import qkv
from qkv.trace.activations import TABLE, WORDS, activation

TEXTS = ["A cat.", "The oak is a small tree by the river."]  # of different lengths


@pytest.fixture(scope="module", params=["books", "books-decoder"])
def model(request: Any) -> qkv.Model:
    return qkv.load(request.param)


def traces(model: qkv.Model) -> list[qkv.Trace]:
    names = [name for name in model.network.hook_names if activation(name).editable]
    return [model.trace(TEXTS, names=names), model.trace(TEXTS, top_k=3)]


def test_each_axis_has_one_size_in_a_model(model: qkv.Model) -> None:
    attn = model.layers[0].attn
    longest = max(len(model.trace(text).tokens) for text in TEXTS)
    sizes = dict.fromkeys(WORDS, longest) | {"text": 2, "one": 1, "rank": 3, "D": model.network.dim}
    sizes |= {"head": attn.num_heads, "kv_head": attn.num_kv_heads}
    sizes |= {"d": attn.d_query, "dv": attn.d_value, "F": model.layers[0].mlp.hidden}
    for trace in traces(model):
        for name in trace.names():
            axes = activation(name).axes
            assert trace[name].shape == tuple(sizes[axis] for axis in axes), name


def test_padding_is_filled_as_the_table_says(model: qkv.Model) -> None:
    for trace in traces(model):
        short = int(trace.lengths[0])
        for name in trace.names():
            one = activation(name)
            for axis, what in enumerate(one.axes[1:]):
                if what in WORDS:
                    rest = np.moveaxis(trace[name][0], axis, 0)[short:]
                    assert rest.size, name
                    assert (rest == one.fill).all(), (name, what)


def test_uneditable_activations_cannot_be_edited_and_have_no_gradient(model: qkv.Model) -> None:
    for name in model.network.hook_names:
        edit = {name: lambda array: array}
        if activation(name).editable:
            model.trace("A cat.", names=[], edit=edit)
        else:
            with pytest.raises(ValueError, match="edit"):
                model.trace("A cat.", edit=edit)
            with pytest.raises(ValueError, match="gradient"):
                model.gradient("A cat.", of=(-1, 5), at=name)


def test_an_alias_is_of_one_name() -> None:
    aliases = [alias for one in TABLE.values() for alias in one.aliases]
    assert len({*aliases}) == len(aliases)
    assert not {*aliases} & {*TABLE}

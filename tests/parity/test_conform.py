"""Tests of `qkv.conform` on attention of torch and onnxruntime."""

import numpy as np
import pytest
import torch

import qkv


@pytest.mark.parametrize("target", ["torch.sdpa", "torch.sdpa.math"])
def test_features_of_sdpa_are_right(target):
    report = qkv.conform(target)
    assert report.passed, report
    right = {name for name, it in report.features.items() if it == "right"}
    assert {"plain", "scale", "grouped heads", "causal", "bool mask", "float mask"} <= right
    assert {"half precision", "strides", "empty", "large scores", "gradient"} <= right
    assert {report.features[name] for name in ("sinks", "softcap", "q_offset")} == {"absent"}


def test_sdpa_is_recognized_when_passed_as_a_function():
    function = torch.nn.functional.scaled_dot_product_attention
    report = qkv.conform(function, arrays="torch", features=["plain", "causal"])
    assert report.features == {"plain": "right", "causal": "right"}


def test_a_function_that_calls_sdpa_gets_the_card_of_sdpa():
    def attention(query, key, value, attn_mask=None, is_causal=False, scale=None):
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask, is_causal=is_causal, scale=scale, enable_gqa=True
        )

    report = qkv.conform(attention, arrays="torch", aligned="start")
    assert report.features == qkv.conform("torch.sdpa").features
    assert report.features["hidden NaN"] == "fragile"
    assert report.passed


def test_a_function_on_tensors_is_judged_with_its_gradient():
    def attention(query, key, value, is_causal=False, softcap=None):
        scores = query @ key.mT * query.shape[-1] ** -0.5
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        if is_causal:
            L, S = scores.shape[-2:]
            seen = torch.ones(L, S, dtype=torch.bool).tril(S - L)
            scores = scores.masked_fill(~seen, -torch.inf)
        return scores.softmax(-1) @ value

    features = ["plain", "causal", "softcap", "half precision", "gradient"]
    report = qkv.conform(attention, arrays="torch", features=features)
    assert report.passed, report
    assert report.features["gradient"] == "right"


def test_arguments_of_a_module_are_those_of_forward():
    class Attention(torch.nn.Module):
        def forward(self, query, key, value, mask=None):
            return torch.nn.functional.scaled_dot_product_attention(query, key, value, mask)

    report = qkv.conform(Attention(), arrays="torch", features=["plain", "bool mask", "softcap"])
    assert report.features == {"plain": "right", "bool mask": "right", "softcap": "absent"}


def test_a_gradient_of_detached_weights_is_wrong():
    def attention(query, key, value):
        weights = (query @ key.mT * query.shape[-1] ** -0.5).softmax(-1).detach()
        return weights @ value + 0 * query.sum() + 0 * key.sum()

    report = qkv.conform(attention, arrays="torch", features=["plain", "gradient"])
    assert report.features == {"plain": "right", "gradient": "wrong"}


def test_features_of_onnxruntime_are_right(tmp_path):
    report = qkv.conform("onnxruntime.Attention")
    assert report.passed, report
    assert report.features["softcap"] == report.features["weights"] == "right"


def test_an_onnx_file_is_judged(tmp_path):
    from onnx import TensorProto, helper

    def number(name):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * 4)

    nodes = [
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "kt"], ["scores"]),
        helper.make_node("Add", ["scores", "mask"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "v"], ["out"]),
    ]
    graph = helper.make_graph(
        nodes, "mine", [*map(number, ["q", "k", "v", "mask"])], [number("out")]
    )
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])
    path = tmp_path / "mine.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ValueError, match="simplest call is refused"):  # the graph needs a mask
        qkv.conform(str(path))

    graph.node[2].CopyFrom(helper.make_node("Identity", ["scores"], ["masked"]))
    del graph.input[3]
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])
    path.write_bytes(model.SerializeToString())
    report = qkv.conform(str(path), features=["plain", "large scores"])
    assert report.remark("plain") == "as if the kernel did not apply the scale"
    assert np.prod([report.findings["plain"].case.case.B]) == 1

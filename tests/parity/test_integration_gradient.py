"""Tests that transformers' models train with qkv as they train with eager attention.

The gradients and the losses must agree up to rounding.
"""

import copy
import math
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import transformers

from qkv.attend.gradient import attention_grad
from qkv.integrations.transformers import attend, register

from .models import double
from .test_integration import PAIRS, TEXTS, VISION, inputs_of, made, words

FAMILIES = [
    "albert",  # layers that share their weights
    "bert",
    "distilbert",
    "gemma2",  # softcap, and windows in some layers
    "gpt2",
    "gpt_oss",  # sinks
    "granite",  # its own scale
    "llama",  # heads that share keys
    "llama4_text",  # chunks, which need a mask as an array
    "mistral",  # a window
    "modernbert",  # a window on both sides
    "opt",
    "qwen3",
    "roberta",
]
BOUND = {torch.float32: 1e-5, torch.float64: 1e-10, torch.bfloat16: 4e-2}  # of the largest value
NO_DROPOUT = {
    "dropout": 0.0,
    "dropout_rate": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "attn_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "resid_pdrop": 0.0,
}


@pytest.fixture(autouse=True)
def _registered() -> None:
    register()


def loss_of(model: Any, inputs: dict[str, Any]) -> Any:
    """Return a number that depends on each hidden state, except at padding."""
    vectors = model(**inputs).last_hidden_state
    generator = torch.Generator().manual_seed(1)
    above = torch.randn(vectors.shape, generator=generator).to(vectors.dtype)
    real = inputs.get("attention_mask")
    if real is not None and real.shape == vectors.shape[:2]:
        above = above * real[..., None]
    return (above * vectors).sum()


def gradients(
    model: Any, inputs: dict[str, Any], implementation: str, loss: Callable[..., Any] = loss_of
) -> dict[str, Any]:
    """Return the gradient of each parameter that has one."""
    model.set_attn_implementation(implementation)
    model.zero_grad(set_to_none=True)
    way_back = mock.patch("qkv.integrations.transformers.attention_grad", wraps=attention_grad)
    with double(model.dtype == torch.float64), way_back as called:
        loss(model, inputs).backward()
    assert bool(called.call_count) == (implementation == "qkv")
    model.set_attn_implementation("eager")
    return {name: x.grad for name, x in model.named_parameters() if x.grad is not None}


def near(found: dict[str, Any], expected: dict[str, Any], bound: float) -> None:
    """Assert that each gradient is close, relative to its own largest value.

    Some gradients are zero except for rounding: a bias of keys, for example, moves all scores of a
    row alike. The error of such a gradient is measured relative to 1% of the largest value of all
    gradients. Each relative error may be up to `bound`.
    """
    assert found.keys() == expected.keys()
    most = max(float(x.abs().max()) for x in expected.values())
    assert 0 < most < np.inf
    for name, theirs in expected.items():
        ours = found[name]
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        allowed = bound * max(float(theirs.abs().max()), most / 100)
        assert float((ours - theirs).abs().max()) <= allowed, name


def compare(model: Any, inputs: dict[str, Any]) -> None:
    ours = gradients(model, inputs, "qkv")
    near(ours, gradients(model, inputs, "eager"), BOUND[model.dtype])


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_gradients_of_a_text_model_are_those_of_eager_attention(
    name: str, dtype: torch.dtype
) -> None:
    model = made(name, TEXTS[name], dtype)
    compare(model, words([19, 19]))
    for side in ("right", "left"):
        compare(model, words([19, 7, 1, 12], side))


@pytest.mark.parametrize("name", sorted({*TEXTS} - {*FAMILIES}))
def test_gradients_of_every_other_family(name: str) -> None:
    model = made(name, TEXTS[name], torch.float64)
    inputs = words([19, 7, 12], "left")
    ours, theirs = (gradients(model, inputs, which) for which in ("qkv", "eager"))
    # without norms, a change of 1e-15 in the weights moves MobileBERT's gradients by 5e-10
    near(ours, theirs, 1e-8 if name == "mobilebert" else 1e-10)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, torch.float64) for name in (*VISION, *PAIRS)),
        *((name, torch.float32) for name in (*VISION, "bart", "t5")),
    ],
)
def test_gradients_of_images_and_pairs_are_those_of_eager_attention(
    name: str, dtype: torch.dtype
) -> None:
    inputs = {
        key: x.to(dtype) if x.is_floating_point() else x for key, x in inputs_of(name).items()
    }
    model = made(name, {**VISION, **PAIRS}[name], dtype)
    compare(model, inputs)
    if name == "t5":
        found = gradients(model, inputs, "qkv")
        for side in ("encoder", "decoder"):
            bias = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
            assert found[bias].abs().max() > 0


@pytest.mark.parametrize("name", ["bert", "llama", "gemma2", "gpt_oss"])
def test_gradients_in_bfloat16(name: str) -> None:
    """The error of qkv against float32 is at most about twice that of eager attention."""
    model = made(name, TEXTS[name])
    inputs = words([19, 7, 12], "left")
    exact = gradients(model, inputs, "eager")
    half = copy.deepcopy(model).to(torch.bfloat16)
    ours, theirs = (gradients(half, inputs, which) for which in ("qkv", "eager"))
    as_exact_as(ours, theirs, exact, torch.bfloat16)


def as_exact_as(ours: Any, theirs: Any, exact: Any, dtype: torch.dtype) -> None:
    """Assert that the errors of `ours` are at most about twice those of `theirs`."""
    most = max(float(x.abs().max()) for x in exact.values())
    for key, truth in exact.items():
        assert ours[key].dtype == dtype
        wrong, allowed = (float((x[key] - truth).abs().max()) for x in (ours, theirs))
        assert wrong <= 2 * allowed + 0.005 * most, key


@pytest.mark.parametrize("name", ["bert", "gpt_oss", "llama", "t5"])
@pytest.mark.parametrize("optimiser", [torch.optim.SGD, torch.optim.AdamW])
def test_training_losses_are_those_of_eager_attention(name: str, optimiser: Any) -> None:
    kind = {"bert": "ForMaskedLM", "t5": "ForSeq2SeqLM"}.get(name, "ForCausalLM")
    kind = getattr(transformers, f"AutoModel{kind}")
    first = made(name, {**TEXTS, **PAIRS}[name] | NO_DROPOUT, torch.float64, kind)
    inputs = words([19, 7, 12])
    seen = inputs["attention_mask"].bool()
    inputs["labels"] = torch.where(seen, inputs["input_ids"], -100)
    losses = []
    for implementation in ("eager", "qkv"):
        model = copy.deepcopy(first).train()
        model.set_attn_implementation(implementation)
        steps = optimiser(model.parameters(), lr=1e-2)
        found = []
        with double(True):
            for _ in range(6):
                steps.zero_grad()
                loss = model(**inputs).loss
                loss.backward()
                steps.step()
                found.append(loss.item())
        losses.append(found)
    eager, ours = losses
    assert eager[-1] < eager[0] - 0.05
    np.testing.assert_allclose(ours, eager, rtol=1e-8)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("name", ["bert", "gemma2", "gpt_oss", "t5"])
def test_gradients_are_the_same_with_activation_checkpointing(name: str, reentrant: bool) -> None:
    model = made(name, {**TEXTS, **PAIRS}[name] | NO_DROPOUT)
    inputs = words([19, 7, 12], "left")
    if name == "t5":
        inputs |= {"decoder_input_ids": words([5, 5, 5])["input_ids"]}
    expected = gradients(model, inputs, "qkv")
    near(expected, gradients(model, inputs, "eager"), 1e-5)
    model.train().activation_checkpointing_enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    found = gradients(model, inputs, "qkv")
    near(found, expected, 1e-6)


def test_no_autograd_function_runs_without_gradients() -> None:
    model = made("llama", TEXTS["llama"])
    model.set_attn_implementation("qkv")
    result = model(**words([9])).last_hidden_state
    assert result.requires_grad
    with mock.patch("qkv.integrations.transformers._functions", side_effect=AssertionError):
        with torch.no_grad():
            assert torch.equal(model(**words([9])).last_hidden_state, result)
        model.requires_grad_(False)
        assert not model(**words([9])).last_hidden_state.requires_grad


def test_frozen_parameters_get_no_gradient() -> None:
    model = made("gpt_oss", TEXTS["gpt_oss"])
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("sinks" in name)
    compare(model, words([19, 7]))
    assert len(gradients(model, words([19, 7]), "qkv")) == 3


def test_gradients_under_autocast() -> None:
    model = made("llama", TEXTS["llama"])
    exact = gradients(model, words([19]), "eager")
    with torch.autocast("cpu", torch.bfloat16):
        ours, theirs = (gradients(model, words([19]), which) for which in ("qkv", "eager"))
    as_exact_as(ours, theirs, exact, torch.float32)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch reads it itself
def test_gradients_of_a_compiled_model() -> None:
    model = made("gemma2", TEXTS["gemma2"])
    expected = gradients(model, words([9, 4]), "eager")
    compiled = torch.compile(model, backend="aot_eager")
    found = gradients(model, words([9, 4]), "qkv", lambda _, inputs: loss_of(compiled, inputs))
    near(found, expected, 1e-5)


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_gradients_with_a_custom_mask(kind: str) -> None:
    model = made("llama", TEXTS["llama"])
    seen = torch.rand(2, 1, 19, 19) < 0.5
    seen |= torch.eye(19, dtype=torch.bool)
    numbers = torch.where(seen, 0.0, torch.finfo(torch.float32).min)
    inputs = words([19, 19]) | {"attention_mask": numbers}
    expected = gradients(model, inputs, "eager")
    inputs["attention_mask"] = seen if kind == "bool" else numbers
    near(gradients(model, inputs, "qkv"), expected, 1e-5)


def drawn(*, seed: int = 0, **shapes: tuple[int, ...]) -> dict[str, Any]:
    """Return random float64 tensors that require a gradient."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
        for name, shape in shapes.items()
    }


HEADS = {"query": (2, 4, 5, 3), "key": (2, 2, 7, 3), "value": (2, 2, 7, 6)}
LEARNED = {
    "position_bias": (1, 4, 5, 7),
    "attention_mask": (2, 1, 5, 7),
    "s_aux": (4,),
    "scaling": (),
}


@pytest.mark.parametrize("names", [(), *((name,) for name in LEARNED), tuple(LEARNED)], ids=str)
def test_every_learned_input_gets_its_gradient(names: tuple[str, ...]) -> None:
    """All gradients equal those of the formula in torch, and those of finite differences."""
    tensors = drawn(**HEADS, **{name: LEARNED[name] for name in names})

    def formula(query: Any, key: Any, value: Any, **more: Any) -> Any:
        key, value = (x.repeat_interleave(2, 1) for x in (key, value))
        scores = query @ key.mT * more.get("scaling", 3**-0.5)
        scores = 2 * torch.tanh(scores / 2)
        for name in ("position_bias", "attention_mask"):
            scores = scores + more.get(name, 0)
        sinks = more.get("s_aux", torch.tensor([-math.inf] * 4))
        sinks = sinks[:, None, None].expand(2, 4, 5, 1).to(scores)
        weights = torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]
        return (weights @ value).transpose(1, 2)

    def ours(**given: Any) -> Any:
        given = {"attention_mask": None, "is_causal": False, "softcap": 2.0} | given
        out, weights = attend(torch.nn.Module(), **given)
        assert weights is None
        return out

    out, expected = ours(**tensors), formula(**tensors)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)
    above = torch.randn_like(out)
    found = torch.autograd.grad(out, [*tensors.values()], above)
    theirs = torch.autograd.grad(expected, [*tensors.values()], above)
    for name, one, other in zip(tensors, found, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12, msg=name)

    def at(*changed: Any) -> Any:
        return ours(**dict(zip(tensors, changed, strict=True)))

    assert torch.autograd.gradcheck(at, [*tensors.values()])


def test_tensors_are_saved_without_a_copy() -> None:
    heads = {name: (x[0], x[2], x[1], x[3]) for name, x in HEADS.items()}
    tensors = {name: x.transpose(1, 2) for name, x in drawn(**heads).items()}
    out, _ = attend(torch.nn.Module(), **tensors, attention_mask=None, is_causal=False)
    kept = out.grad_fn.saved_tensors
    assert [x.data_ptr() for x in kept[:-1]] == [x.data_ptr() for x in (*tensors.values(), out)]
    assert kept[-1].shape == (2, 4, 5)


def test_a_mask_changed_before_the_backward_pass_is_an_error() -> None:
    tensors = drawn(**HEADS)
    seen = torch.rand(2, 1, 5, 7) < 0.8
    out, _ = attend(torch.nn.Module(), **tensors, attention_mask=seen)
    seen.fill_(True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_padding_changed_before_the_backward_pass_has_no_effect() -> None:
    model = made("llama", TEXTS["llama"])
    inputs = words([9, 9]) | {"attention_mask": torch.ones(2, 9, dtype=torch.bool)}
    inputs["attention_mask"][0, 4] = False  # padding inside a text needs an explicit mask
    expected = gradients(model, inputs, "eager")

    def loss(model: Any, inputs: dict[str, Any]) -> Any:
        mask = inputs["attention_mask"].clone()
        found = loss_of(model, inputs | {"attention_mask": mask})
        mask.fill_(True)
        return found

    near(gradients(model, inputs, "qkv", loss), expected, 1e-5)


def weights_and_loss(name: str, implementation: str) -> tuple[Any, Any]:
    """Return the weights that a model returns, and a loss of the model's other result."""
    model = made(name, {**TEXTS, **PAIRS}[name], torch.float64)
    model.set_attn_implementation(implementation)
    inputs = words([9, 6]) | {"output_attentions": True}
    if name in PAIRS:
        inputs["decoder_input_ids"] = words([5, 5])["input_ids"]
    with double(True):
        result = model(**inputs)
    weights = result.encoder_attentions if name in PAIRS else result.attentions
    return weights, (result.last_hidden_state**2).sum()


def retained(weights: Any, loss: Any) -> list[Any]:
    for one in weights:
        one.retain_grad()
    loss.backward()
    return [one.grad for one in weights]


def asked_for(weights: Any, loss: Any) -> list[Any]:
    return [*torch.autograd.grad(loss, weights)]


def hooked(weights: Any, loss: Any) -> list[Any]:
    seen: dict[int, Any] = {}
    for number, one in enumerate(weights):
        one.register_hook(lambda grad, number=number: seen.update({number: grad.clone()}))
    loss.backward()
    return [seen[number] for number in range(len(weights))]


@pytest.mark.parametrize("way", [retained, asked_for, hooked])
@pytest.mark.parametrize("name", ["bert", "gemma2", "gpt_oss", "llama", "t5"])
def test_the_gradient_of_returned_weights_is_that_of_eager_attention(name: str, way: Any) -> None:
    found, expected = (way(*weights_and_loss(name, which)) for which in ("qkv", "eager"))
    numbered = [dict(enumerate(each)) for each in (found, expected)]
    near(*numbered, BOUND[torch.float64])


def test_weights_that_are_returned_change_no_gradient_of_a_parameter() -> None:
    model = made("llama", TEXTS["llama"])
    alone = gradients(model, words([9]), "qkv")
    shown = gradients(model, words([9]) | {"output_attentions": True}, "qkv")
    assert all(torch.equal(shown[name], alone[name]) for name in alone)


@pytest.mark.parametrize("how", ["a loss of them", "a part of the loss", "a hook", "after a loss"])
def test_a_loss_of_returned_weights_is_an_error(how: str) -> None:
    weights, loss = weights_and_loss("bert", "qkv")
    assert torch.isfinite(weights[1]).all()
    if how == "a loss of them":
        loss = weights[1][..., 0].sum()
    elif how == "a part of the loss":
        loss = loss + weights[1][..., 0].sum()
    elif how == "a hook":
        weights[1].register_hook(lambda grad: 2 * grad)
    else:
        torch.autograd.grad(loss, weights, retain_graph=True)
        loss = weights[1][..., 0].sum()
    reason = "BertSelfAttention: the loss depends on the weights that output_attentions returns"
    with pytest.raises(NotImplementedError, match=reason):
        loss.backward()


def test_a_scale_changed_before_the_backward_pass_has_no_effect() -> None:
    tensors, scale = drawn(**HEADS), torch.tensor(0.5, dtype=torch.float64)
    asked = {"attention_mask": None, "is_causal": False}
    out, _ = attend(torch.nn.Module(), **tensors, scaling=scale, **asked)
    again, _ = attend(torch.nn.Module(), **tensors, scaling=0.5, **asked)
    scale.fill_(7)
    for found, expected in zip(
        *(torch.autograd.grad(x.sum(), [*tensors.values()]) for x in (out, again)), strict=True
    ):
        assert torch.equal(found, expected)


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("bert", "attention_probs_dropout_prob"),
        ("distilbert", "attention_dropout"),
        ("gpt2", "attn_pdrop"),
        ("llama", "attention_dropout"),
        ("t5", "dropout_rate"),
    ],
)
def test_dropout_of_attention_is_refused_by_the_name_of_its_option(name: str, option: str) -> None:
    options = {**TEXTS, **PAIRS}[name]
    model = made(name, options | NO_DROPOUT | {option: 0.2, "dropout": 0.2})
    model.set_attn_implementation("qkv")
    inputs = words([9]) | ({"decoder_input_ids": words([5])["input_ids"]} if name == "t5" else {})
    model(**inputs)
    way_out = rf"uses dropout 0\.2 in training.* {option}=0\.0 in its config, or call model\.eval"
    with pytest.raises(NotImplementedError, match=way_out):
        model.train()(**inputs)
    model = made(name, options | {option: 0.0}).train()
    model.set_attn_implementation("qkv")
    model(**inputs)

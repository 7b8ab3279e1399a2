"""Tests of torch's transforms, such as torch.func.grad, applied to functions that run qkv.

Each transform gives correct results or raises an error.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.func import functional_call, functionalize, grad, hessian, jacrev, jvp, vjp, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from qkv.integrations.transformers import attend, register

from .models import double
from .test_integration import ENCODERS, TEXTS, made, words

pytestmark = [
    pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),  # torch reads it itself
]
EAGER = 'load the model with attn_implementation="eager"'


@pytest.fixture(autouse=True)
def _registered() -> None:
    register()


def drawn(*shape: int) -> Any:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def attention(query: Any) -> Any:
    """Compute self-attention of a tensor, (B, H, T, d) -> (B, T, H, d), as models call it."""
    function = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS["qkv"]
    return function(torch.nn.Module(), query, query, query, None, is_causal=False)[0]


def number(query: Any) -> Any:
    return attention(query).pow(2).sum()


def formula(query: Any) -> Any:
    weights = (query @ query.mT / query.shape[-1] ** 0.5).softmax(-1)
    return (weights @ query).transpose(-3, -2).pow(2).sum()


@pytest.mark.parametrize("of", ["an input", "a parameter"])
@pytest.mark.parametrize("how", ["grad", "backward"])
def test_a_gradient_of_a_gradient_is_an_error(of: str, how: str) -> None:
    x, weight = drawn(2, 3, 5, 4).requires_grad_(), drawn(4, 4).requires_grad_()
    leaf = x if of == "an input" else weight
    first, expected = (
        torch.autograd.grad(function(x @ weight) + x.pow(3).sum(), leaf, create_graph=True)[0]
        for function in (number, formula)
    )
    torch.testing.assert_close(first, expected, rtol=0, atol=1e-12)
    again = first.pow(2).sum()
    ways = {"grad": lambda: torch.autograd.grad(again, leaf), "backward": again.backward}
    with pytest.raises(NotImplementedError, match=f"qkv cannot differentiate twice: {EAGER}"):
        ways[how]()


def test_a_gradient_without_create_graph_requires_no_grad() -> None:
    x = drawn(2, 3, 5, 4).requires_grad_()
    [first] = torch.autograd.grad(number(x), x)
    assert not first.requires_grad
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.autograd.grad(first.pow(2).sum(), x)


@pytest.mark.parametrize("function", ["hessian", "hvp"])
def test_second_derivatives_of_autograd_are_an_error(function: str) -> None:
    x = drawn(1, 2, 3, 4)
    more = (x,) if function == "hvp" else ()
    with pytest.raises(NotImplementedError, match="cannot differentiate twice"):
        getattr(torch.autograd.functional, function)(number, x, *more)


@pytest.mark.parametrize("of", ["inputs", "parameters"])
@pytest.mark.parametrize("name", ["bert", "gpt_oss", "llama"])
def test_a_models_second_gradient_is_an_error(name: str, of: str) -> None:
    model = made(name, TEXTS[name], torch.float64)
    embedded = drawn(2, 7, 48).requires_grad_()
    weights = [x for n, x in model.named_parameters() if "layer" in n and x.ndim == 2]
    leaf = embedded if of == "inputs" else weights[0]
    firsts = []
    for implementation in ("eager", "qkv"):
        model.set_attn_implementation(implementation)
        with double(True):
            loss = model(inputs_embeds=embedded).last_hidden_state.pow(3).sum()
        firsts += torch.autograd.grad(loss, leaf, create_graph=True)
    torch.testing.assert_close(*firsts)
    with pytest.raises(NotImplementedError, match=f"Attention: qkv cannot diff.*: {EAGER}"):
        torch.autograd.grad(firsts[1].pow(2).sum(), leaf)


def dual(query: Any) -> Any:
    with forward_ad.dual_level():
        return attention(forward_ad.make_dual(query, query))


def dual_without_gradients(query: Any) -> Any:
    with torch.no_grad():
        return dual(query)


def dual_above(query: Any) -> Any:
    with forward_ad.dual_level():
        above = forward_ad.make_dual(query, query)
        leaf = query.clone().requires_grad_()
        return torch.autograd.grad(attention(leaf).transpose(1, 2), leaf, above)


def batched_above(query: Any) -> Any:
    leaf = query.clone().requires_grad_()
    above = drawn(4, *attention(query).shape)
    return torch.autograd.grad(attention(leaf), leaf, above, is_grads_batched=True)


def fake(query: Any) -> Any:
    with FakeTensorMode() as mode:
        return attention(mode.from_tensor(query))


class Wrapped(torch.nn.Module):
    def forward(self, query: Any) -> Any:
        return attention(query)


TRANSFORMED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "func.grad": (grad(number), "torch.func"),
    "func.grad twice": (grad(lambda q: grad(number)(q).pow(2).sum()), "torch.func"),
    "func.vmap": (vmap(number), "torch.vmap"),
    "vmap": (torch.vmap(number), "torch.vmap"),
    "vmap of grad": (vmap(grad(number)), "torch.func"),
    "func.jvp": (lambda q: jvp(number, (q,), (q,)), "torch.func"),
    "func.vjp": (lambda q: vjp(number, q), "torch.func"),
    "func.jacrev": (jacrev(number), "torch.func"),
    "func.hessian": (hessian(number), "torch.func"),
    "functionalize": (functionalize(number), "torch.func"),
    "a batch of gradients": (batched_above, "torch.vmap"),
    "forward mode": (dual, "forward-mode differentiation cannot see"),
    "forward mode, no grad": (dual_without_gradients, "forward-mode differentiation cannot see"),
    "forward over reverse": (dual_above, "forward-mode differentiation cannot see"),
    "make_fx": (lambda q: make_fx(number)(q), "torch.fx cannot trace"),
    "a fake tensor": (fake, "no numbers can be read from a FakeTensor by"),
    "export": (lambda q: torch.export.export(Wrapped(), (q,)), "torch.export, .* cannot trace"),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_transforms_of_a_function_are_refused_by_name(name: str) -> None:
    transformed, message = TRANSFORMED[name]
    with pytest.raises(NotImplementedError, match=f"Module: .*{message}.* qkv: {EAGER}"):
        transformed(drawn(2, 3, 5, 4))


@pytest.mark.parametrize("how", ["export", "compile"])
def test_full_graph_capture_is_an_error_with_a_reason(how: str) -> None:
    query = drawn(2, 3, 5, 4)
    ways = {
        "export": lambda: torch.export.export(Wrapped(), (query,), strict=True),
        "compile": lambda: torch.compile(attention, fullgraph=True, backend="eager")(query),
    }
    with pytest.raises(torch._dynamo.exc.Unsupported, match="qkv computes outside torch's graph"):
        ways[how]()


def test_a_compiled_function_gives_the_same_values_and_gradients() -> None:
    query = drawn(2, 3, 5, 4)
    found = torch.compile(number, backend="eager")(query)
    torch.testing.assert_close(found, formula(query), rtol=0, atol=1e-12)
    leaf, other = query.clone().requires_grad_(), query.clone().requires_grad_()
    torch.compile(number, backend="aot_eager")(leaf).backward()
    formula(other).backward()
    torch.testing.assert_close(leaf.grad, other.grad, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("func.grad", "torch.func"),
        ("vmap", "torch.vmap"),
        ("export", "torch.export"),
        ("fake tensors", "FakeTensor"),
    ],
)
def test_a_model_is_refused_too(how: str, message: str) -> None:
    model = made("bert", ENCODERS["bert"], torch.float64)
    model.set_attn_implementation("qkv")
    inputs = words([9, 4])

    def loss(parameters: Any) -> Any:
        return functional_call(model, parameters, kwargs=inputs).last_hidden_state.sum()

    def one(ids: Any, mask: Any) -> Any:
        return model(ids[None], mask[None]).last_hidden_state

    def faked() -> None:
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            model(**{name: mode.from_tensor(x) for name, x in inputs.items()})

    ways = {
        "func.grad": lambda: grad(loss)(dict(model.named_parameters())),
        "vmap": lambda: vmap(one)(*inputs.values()),
        "export": lambda: torch.export.export(model, (), inputs),
        "fake tensors": faked,
    }
    with pytest.raises(NotImplementedError, match=f"BertSelfAttention: .*{message}"):
        ways[how]()


def test_plain_tensors_are_computed_under_forward_ad() -> None:
    query = drawn(2, 3, 5, 4)
    out, _ = attend(torch.nn.Module(), query, query, query, None, is_causal=False)
    with forward_ad.dual_level():
        again, _ = attend(torch.nn.Module(), query, query, query, None, is_causal=False)
    torch.testing.assert_close(again, out, rtol=0, atol=0)

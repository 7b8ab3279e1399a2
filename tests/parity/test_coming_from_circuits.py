"""Tests of rows 41 to 59 of docs/coming-from.md: edges, neurons, features, files and pictures."""

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from .coming_from import HEADS, LAYERS, D, Difference, Theirs, near, row
from .test_coming_from import share, weights
from .test_coming_from_changes import changed, margin, swept

SIZE = D // HEADS
SENDER, RECEIVER = (0, 2), (1, 1)  # a head, and a head whose queries read its output


@pytest.mark.parametrize("number", range(41, 60))
def test_row(theirs: Theirs, number: int) -> None:
    theirs.hold(number)


def written(theirs: Theirs, text: str) -> torch.Tensor:
    """Return the sender's contribution to the residual stream, (T, D)."""
    layer, head = SENDER
    with torch.no_grad():
        z = theirs.seen("z", text=text)["z", layer][0, :, head]
        return z @ theirs.decoder.transformer.h[layer].attn.c_proj.weight[head * SIZE :][:SIZE]


def queries(theirs: Theirs, resid: torch.Tensor) -> torch.Tensor:
    """Return the receiver's queries (T, d) for a residual stream (T, D)."""
    layer, head = RECEIVER
    block = theirs.decoder.transformer.h[layer]
    return block.attn.c_attn(block.ln_1(resid))[:, head * SIZE :][:, :SIZE]


@row(41)
def along_one_path(theirs: Theirs) -> Any:
    layer, head = RECEIVER
    delta = written(theirs, theirs.clean) - written(theirs, theirs.corrupted)
    with torch.no_grad():
        run = theirs.seen("resid_pre", text=theirs.corrupted)
        new = queries(theirs, run["resid_pre", layer][0] + delta)
    logits = changed(theirs, theirs.corrupted, "q", layer, lambda q: q[0, :, head].copy_(new))
    return Difference(margin(theirs, logits), margin(theirs, run["logits", 0]))


@row(42)
def along_one_path_to_first_order(theirs: Theirs) -> Any:
    """Multiply a gradient of the metric by the change of the sender's contribution.

    The gradient is taken with respect to the residual stream that the receiver reads. It includes
    only the path through the receiver's queries.
    """
    layer, head = RECEIVER
    run = theirs.seen("q", "resid_pre", text=theirs.corrupted)
    margin(theirs, run["logits", 0]).backward()
    slopes = run["q", layer].grad
    resid = run["resid_pre", layer][0].detach().requires_grad_()
    (back,) = torch.autograd.grad(queries(theirs, resid), resid, slopes[0, :, head])
    return (back * (written(theirs, theirs.clean) - written(theirs, theirs.corrupted))).sum()


@row(43)
def patched_by_head_and_position(theirs: Theirs) -> Any:
    with torch.no_grad():
        clean = theirs.seen("z", text=theirs.clean)
    length = clean["z", 0].shape[1]
    found = torch.zeros(LAYERS, HEADS, length)
    for layer, head, position in product(range(LAYERS), range(HEADS), range(length)):
        given = clean["z", layer][0, position, head]

        def put_in(z: torch.Tensor, at: tuple[int, int] = (position, head), x: Any = given) -> None:
            z[0][at] = x

        found[layer, head, position] = margin(
            theirs, changed(theirs, theirs.corrupted, "z", layer, put_in)
        )
    return found


@row(44)
def shares_of_neurons(theirs: Theirs) -> Any:
    with torch.no_grad():
        found = theirs.seen("mlp.post")
        return torch.stack(
            [
                share(theirs, found["mlp.post", layer][0, -1, :, None] * block.mlp.c_proj.weight)
                for layer, block in enumerate(theirs.decoder.transformer.h)
            ]
        )


@row(45)
def slopes_of_a_neuron(theirs: Theirs) -> Any:
    run = theirs.seen("mlp.post", "resid_pre")
    return torch.autograd.grad(run["mlp.post", 1][0, -1, 5], run["resid_pre", 0])[0]


@row(46)
def tables(theirs: Theirs) -> Any:
    attn = theirs.decoder.transformer.h[1].attn
    found = theirs.found[46]["weights"]
    for name, bias in zip("QKV", attn.c_attn.bias.split(D), strict=True):
        np.testing.assert_array_equal(
            getattr(found, f"b_{name}"), bias.detach().reshape(HEADS, SIZE)
        )
    np.testing.assert_array_equal(found.b_O, attn.c_proj.bias.detach())
    return {
        "embedding": theirs.decoder.transformer.wte.weight,
        "unembedding": theirs.decoder.lm_head.weight.T,
    }


@row(47)
def largest_neurons(theirs: Theirs) -> Any:
    return theirs.of_texts("mlp.post", 1).amax(0).clamp(min=0)


def decoded(theirs: Theirs, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the features of vectors, and the vectors that these features decode to."""
    sae = theirs.sae
    features = torch.relu((x - sae["b_dec"]) @ sae["W_enc"] + sae["b_enc"])
    return features, features @ sae["W_dec"] + sae["b_dec"]


@row(48)
def features(theirs: Theirs) -> Any:
    with torch.no_grad():
        return decoded(theirs, theirs.seen("resid_post")["resid_post", 1])[0]


@row(49)
def spliced_in(theirs: Theirs) -> Any:
    return changed(theirs, theirs.text, "resid_post", 1, lambda x: x.copy_(decoded(theirs, x)[1]))


@row(50)
def kept(theirs: Theirs) -> Any:
    return theirs.of_texts("resid_post", 1)


@row(51)
def pictured(theirs: Theirs) -> Any:
    (drawn,) = theirs.found[51]["view"].to_dict()["results"]
    near(drawn["values"], swept(theirs, "resid_pre"), "what is drawn")
    return {"notes": []}


@row(52)
def apart(theirs: Theirs) -> Any:
    ids = theirs.ids(theirs.text)
    with torch.no_grad():
        one = theirs.seen("resid_post", ids=ids)
        other = []
        hooks = [
            block.register_forward_hook(lambda _, __, out: other.append(out))
            for block in theirs.changed.transformer.h
        ]
        theirs.changed(ids)
    for hook in hooks:
        hook.remove()
    both = ((one["resid_post", layer], other[layer]) for layer in range(LAYERS))
    return torch.stack([torch.cosine_similarity(*pair, dim=-1).mean() for pair in both])


@row(53)
def patched_both_ways(theirs: Theirs) -> Any:
    """Patch each text with activations of the other text, and return the mean of the metrics."""
    found = torch.zeros(2, LAYERS, len(theirs.ids(theirs.clean)[0]))
    texts = theirs.clean, theirs.corrupted
    for pair, (clean, corrupted) in enumerate((texts, texts[::-1])):
        with torch.no_grad():
            given = theirs.seen("resid_pre", text=clean)
        for layer, position in product(range(LAYERS), range(found.shape[2])):

            def put_in(
                x: torch.Tensor, at: int = position, y: Any = given["resid_pre", layer]
            ) -> None:
                x[:, at] = y[:, at]

            logits = changed(theirs, corrupted, "resid_pre", layer, put_in)
            found[pair, layer, position] = margin(theirs, logits)
    return found.mean(0)


@row(54)
def slopes_of_a_log_probability(theirs: Theirs) -> Any:
    run = theirs.seen("resid_post")
    chance = run["logits", 0][0, -1].log_softmax(-1)[theirs.answer]
    return torch.autograd.grad(chance, run["resid_post", 1])[0]


@row(55)
def estimated_by_head_and_position(theirs: Theirs) -> Any:
    with torch.no_grad():
        clean = theirs.seen("z", text=theirs.clean)["z", 1]
    run = theirs.seen("z", text=theirs.corrupted)
    value = margin(theirs, run["logits", 0])
    slopes = torch.autograd.grad(value, run["z", 1])[0]
    return (slopes * (clean - run["z", 1])).sum(-1)[0].T + value


@row(56)
@torch.no_grad()
def singular_values_and_norm(theirs: Theirs) -> Any:
    _, _, v, o = weights(theirs, 1)
    large = v[2].double() @ o[2].double()
    return {"values": torch.linalg.svdvals(large)[:SIZE], "norm": torch.linalg.norm(large)}


def patterns(theirs: Theirs) -> torch.Tensor:
    """Return the patterns of the page's text, (layers, heads, T, T)."""
    with torch.no_grad():
        found = theirs.seen("pattern")
    return torch.stack([found["pattern", layer][0] for layer in range(LAYERS)])


@row(57)
def on_the_previous_token_of_all_others(theirs: Theirs) -> Any:
    weight = patterns(theirs)
    weight[..., 0] = 0
    weight -= torch.diag_embed(weight.diagonal(dim1=-2, dim2=-1))
    return weight.diagonal(-1, -2, -1).sum(-1) / weight.sum((-2, -1))


@row(58)
def two_places_before(theirs: Theirs) -> Any:
    weight = patterns(theirs)
    return weight.diagonal(-2, -2, -1).sum(-1) / weight.shape[-1]


@row(59)
def most_negative(theirs: Theirs) -> Any:
    return theirs.of_texts("mlp.post", 1).amin(0).clamp(max=0)

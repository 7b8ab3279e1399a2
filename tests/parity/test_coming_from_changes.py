"""Tests of rows 21 to 40 of docs/coming-from.md: edits, heads, gradients and pictures."""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from .coming_from import HEADS, LAYERS, D, Theirs, near, row

SIZE = D // HEADS  # the size of a head


@pytest.mark.parametrize("number", range(21, 41))
def test_row(theirs: Theirs, number: int) -> None:
    theirs.hold(number)


def changed(theirs: Theirs, text: str, name: str, layer: int, change: Any) -> torch.Tensor:
    """Return the logits of a run in which `change` edits one activation in place."""

    def kept(x: torch.Tensor) -> torch.Tensor:
        change(x)
        return x

    with torch.no_grad():
        found = theirs.seen(text=text, changes={(name, layer): kept})
    return found["logits", 0]


@row(21)
def zeroed(theirs: Theirs) -> Any:
    return changed(theirs, theirs.text, "z", 1, lambda z: z[:, :, 2].zero_())


@row(22)
def averaged(theirs: Theirs) -> Any:
    """Replace each head's output by its mean over all tokens of all texts.

    Each text has its own forward pass.
    """
    mean = theirs.of_texts("z", 1).mean(0)  # (heads, d)
    return changed(theirs, theirs.clean, "z", 1, lambda x: x.copy_(mean))


@row(23)
def looking_at_all_alike(theirs: Theirs) -> Any:
    def alike(pattern: torch.Tensor) -> None:
        for query in range(pattern.shape[2]):
            pattern[0, 2, query] = 0
            pattern[0, 2, query, : query + 1] = 1 / (query + 1)

    return changed(theirs, theirs.text, "pattern", 1, alike)


def margin(theirs: Theirs, logits: torch.Tensor) -> torch.Tensor:
    """Return the metric of rows 24 to 27, a difference of logits."""
    return logits[0, -1, theirs.answer] - logits[0, -1, theirs.other]


def swept(theirs: Theirs, name: str) -> torch.Tensor:
    """Return the metrics of runs of the corrupted text, each with one patch from the clean text.

    A patch replaces the activation `name` at one position of one layer. If `name` is "z", a patch
    replaces one head at all positions.
    """
    with torch.no_grad():
        clean = theirs.seen(name, text=theirs.clean)
    axis = 2 if name == "z" else 1
    count = clean[name, 0].shape[axis]
    found = torch.zeros(LAYERS, count)
    for layer, number in product(range(LAYERS), range(count)):
        given = clean[name, layer].select(axis, number)

        def put_in(x: torch.Tensor, number: int = number, given: torch.Tensor = given) -> None:
            x.select(axis, number).copy_(given)

        logits = changed(theirs, theirs.corrupted, name, layer, put_in)
        found[layer, number] = margin(theirs, logits)
    return found


@row(24)
def patched_by_position(theirs: Theirs) -> Any:
    return swept(theirs, "resid_pre")


@row(25)
def patched_by_head(theirs: Theirs) -> Any:
    return swept(theirs, "z")


@row(26)
def patched_by_part(theirs: Theirs) -> Any:
    return torch.stack([swept(theirs, name) for name in ("resid_pre", "attn_out", "mlp_out")])


@row(27)
def patched_to_first_order(theirs: Theirs) -> Any:
    with torch.no_grad():
        clean = theirs.seen("z", text=theirs.clean)
    run = theirs.seen("z", text=theirs.corrupted)
    low = margin(theirs, run["logits", 0])
    low.backward()
    each = [(clean["z", layer] - run["z", layer]) * run["z", layer].grad for layer in range(LAYERS)]
    return low + torch.stack(each).sum((1, 2, 4))


@row(28)
def steered(theirs: Theirs) -> Any:
    with torch.no_grad():
        one, other = (
            theirs.seen("resid_post", text=text)["resid_post", 1][0, -1]
            for text in (theirs.clean, theirs.corrupted)
        )
    return changed(theirs, theirs.text, "resid_post", 1, lambda x: x.add_(4 * (one - other)))


@row(29)
def knocked_out(theirs: Theirs) -> Any:
    def cut(scores: torch.Tensor) -> None:
        scores[0, 2, -1, 1] = -torch.inf

    return changed(theirs, theirs.text, "attn_scores", 1, cut)


@row(30)
def swapped(theirs: Theirs) -> Any:
    """Replace the embedding at position 1: run the model with another token's id there."""
    ids = theirs.ids(theirs.text)
    ids[0, 1] = theirs.answer
    with torch.no_grad():
        return theirs.decoder(ids).logits


@row(31)
def interchanged(theirs: Theirs) -> Any:
    with torch.no_grad():
        clean = theirs.seen("resid_post", text=theirs.clean)["resid_post", 1]
    return changed(
        theirs, theirs.corrupted, "resid_post", 1, lambda x: x[:, -1].copy_(clean[:, -1])
    )


def slopes(theirs: Theirs, embeds: torch.Tensor) -> torch.Tensor:
    """Return the gradient of the answer's logit with respect to embeddings (1, T, D)."""
    embeds = embeds.detach().requires_grad_()
    logit = theirs.decoder(inputs_embeds=embeds).logits[0, -1, theirs.answer]
    (found,) = torch.autograd.grad(logit, embeds)
    return found


@row(32)
def saliency(theirs: Theirs) -> Any:
    embeds = theirs.decoder.transformer.wte(theirs.ids(theirs.text))
    return slopes(theirs, embeds).square().sum(-1).sqrt()


@row(33)
def integrated(theirs: Theirs) -> Any:
    table = theirs.decoder.transformer.wte.weight.detach()
    end, start = table[theirs.ids(theirs.text)[0]], table[theirs.ids("a")[0, :1]]
    mean = torch.zeros(end.shape, dtype=torch.float64)
    for node, weight in zip(*np.polynomial.legendre.leggauss(200), strict=True):
        place = start + (end - start) * (1 + node) / 2
        mean += slopes(theirs, place[None].float())[0] * weight / 2
    return (end - start) * mean


def test_integrated_gradients_are_complete(theirs: Theirs) -> None:
    ids = theirs.ids(theirs.text)
    blank = torch.full_like(ids, int(theirs.ids("a")[0, 0]))
    with torch.no_grad():
        high, low = (theirs.decoder(x).logits[0, -1, theirs.answer] for x in (ids, blank))
    assert abs(theirs.found[33]["shares"].sum() - float(high - low)) < 1e-3 * abs(float(high - low))


@row(34)
def slopes_times_activations(theirs: Theirs) -> Any:
    run = theirs.seen("z")
    run["logits", 0][0, -1, theirs.answer].backward()
    each = [run["z", layer] * run["z", layer].grad for layer in range(LAYERS)]
    return torch.stack(each).sum((1, 2, 4))


@row(35)
def scores(theirs: Theirs) -> Any:
    """Return the weight on previous, same and induction keys, averaged over queries."""
    ids = theirs.ids(theirs.text)
    with torch.no_grad():
        run = theirs.seen("pattern")
    weights = torch.stack([run["pattern", layer][0] for layer in range(LAYERS)])
    tokens = ids[0].tolist()
    counts: dict[str, Callable[[int, int], bool]] = {
        "previous": lambda query, key: key == query - 1,
        "same": lambda query, key: key < query and tokens[key] == tokens[query],
        "induction": lambda query, key: 0 < key <= query and tokens[key - 1] == tokens[query],
    }
    again = sum(token in tokens[:place] for place, token in enumerate(tokens))
    assert 0 < again < len(tokens)
    found = {}
    for name, counted in counts.items():
        total = torch.zeros(LAYERS, HEADS)
        for query, key in product(range(len(tokens)), repeat=2):
            if counted(query, key):
                total += weights[:, :, query, key]
        found[name] = total / (again if name == "induction" else len(tokens))
    return found


@row(36)
def compositions(theirs: Theirs) -> Any:
    def heads(layer: int) -> dict[str, torch.Tensor]:
        attn = theirs.decoder.transformer.h[layer].attn
        q, k, v = (x.unflatten(1, (HEADS, SIZE)) for x in attn.c_attn.weight.detach().chunk(3, 1))
        out = attn.c_proj.weight.detach().unflatten(0, (HEADS, SIZE))
        qk = torch.einsum("dhi,ehi->hde", q, k)
        return {"q": qk, "k": qk.mT, "v": torch.einsum("dhi,hie->hde", v, out)}

    every = [heads(layer) for layer in range(LAYERS)]
    found = {kind: torch.zeros(LAYERS, HEADS, LAYERS, HEADS) for kind in "qkv"}
    for kind, one, h, m, n in product(
        "qkv", range(LAYERS), range(HEADS), range(LAYERS), range(HEADS)
    ):
        if m > one:
            writes, reads = every[one]["v"][h], every[m][kind][n]
            found[kind][one, h, m, n] = (writes @ reads).norm() / (writes.norm() * reads.norm())
    return found


def attentions(theirs: Theirs, text: str) -> Any:
    """Return the encoder's hidden states and attention weights for a text."""
    with torch.no_grad():
        ids = theirs.encoder_ids(text)
        return theirs.encoder(ids, output_attentions=True, output_hidden_states=True)


@row(37)
def rolled_out(theirs: Theirs) -> Any:
    layers = [weights[0].mean(0) for weights in attentions(theirs, theirs.text).attentions]
    mixed = [(weights + torch.eye(len(weights))) / 2 for weights in layers]
    return mixed[2] @ mixed[1] @ mixed[0]


@row(38)
def drawn(theirs: Theirs) -> Any:
    words = theirs.encoder_tokenizer.convert_ids_to_tokens(theirs.encoder_ids(theirs.text)[0])
    weights = attentions(theirs, theirs.text).attentions[1][0, 2]
    return {"tokens": words, "keys": words, "weights": weights}


@row(39)
def compared(theirs: Theirs) -> Any:
    """Compare *king* in two texts, in both at position 2, after [CLS] and *the*."""
    one, other = (
        torch.stack(attentions(theirs, text).hidden_states)[:, 0, 2]
        for text in (theirs.clean, theirs.text)
    )
    return {"similarity": torch.cosine_similarity(one, other)}


def test_the_view_has_the_attention_weights_of_both_texts(theirs: Theirs) -> None:
    view = theirs.found[39]["view"]
    for side, text in zip(view.sides, (theirs.clean, theirs.text), strict=True):
        run = attentions(theirs, text)
        near(side.weights, run.attentions[1][0, 2, 2], "weights of the word")
        every = np.array(side.heads.weights)  # (layers, heads, T, T)
        near(every, torch.cat(run.attentions), "weights of all heads")


@row(40)
def texts_where_the_head_looks_hardest(theirs: Theirs) -> Any:
    """Sort the texts by the head's largest weight on a key after the first token."""
    weights = []
    for text in theirs.texts:
        with torch.no_grad():
            run = theirs.seen("pattern", text=text)
        weights.append(float(run["pattern", 1][0, 2, :, 1:].max()))
    order = np.argsort(weights)[::-1][:3]
    values = [one.value for one in theirs.found[40]["scan"].examples("strongest", 1, 2)]
    near(values, np.array(weights)[order], "the largest weights")
    return [theirs.texts[number] for number in order]

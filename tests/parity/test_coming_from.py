"""Tests of rows 1 to 20 of docs/coming-from.md: runs, activations, logits and weights."""

from typing import Any
from unittest.mock import patch

import pytest
import torch

from qkv.layers import Block

from .coming_from import HEADS, LAYERS, D, Difference, Theirs, near, row

SIZE = D // HEADS


@pytest.mark.parametrize("number", range(1, 21))
@torch.no_grad()
def test_row(theirs: Theirs, number: int) -> None:
    theirs.hold(number)


@torch.no_grad()
def test_a_text_that_begins_with_the_bos_token(theirs: Theirs) -> None:
    ids = torch.cat([torch.tensor([[0]]), theirs.ids(theirs.text)], 1)
    model, text = theirs.names["model"], theirs.names["bos"] + theirs.text
    assert theirs.names["with_bos"].ids.tolist() == ids[0].tolist()
    near(model.trace(text, logits=True)["logits"], theirs.decoder(ids).logits, "logits")


def test_an_answer_is_one_token_of_a_decoder_and_of_an_encoder(theirs: Theirs) -> None:
    one_token, names = theirs.names["one_token"], theirs.names
    assert one_token("his") == theirs.ids("his")[0, 0] == theirs.answer
    with patch.dict(names, model=names["encoder"]):
        assert one_token("his") == theirs.encoder_ids("his")[0, 1]
        with pytest.raises(ValueError, match="too many values"):
            one_token("his crown")


@row(1)
def run(theirs: Theirs) -> Any:
    names = ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out", "mlp.pre", "mlp.post")
    found: dict[Any, Any] = theirs.seen(*names, *"qkvz", "attn_scores", "pattern")
    return found | {"logits": found.pop(("logits", 0))}


@row(2)
def weights_of_a_head(theirs: Theirs) -> Any:
    return theirs.seen("pattern")["pattern", 1][0, 2]


@row(3)
def stream(theirs: Theirs) -> Any:
    found = theirs.seen("resid_post")
    return torch.stack([found["resid_post", layer] for layer in range(LAYERS)])


@row(4)
def projections(theirs: Theirs) -> Any:
    found = theirs.seen(*"qkv")
    return {name: found[name, 1] for name in "qkv"}


@row(5)
def scores_and_neurons(theirs: Theirs) -> Any:
    found = theirs.seen("attn_scores", "mlp.post")
    return {"scores": found["attn_scores", 1], "neurons": found["mlp.post", 1]}


@row(6)
def parts_of_heads(theirs: Theirs) -> Any:
    return results(theirs)[:, :, -1].flatten(0, 1)


@row(7)
def some_activations(theirs: Theirs) -> Any:
    found: dict[Any, Any] = theirs.seen("z")
    del found["logits", 0]
    assert theirs.found[7]["some"].names() == [
        f"blocks.{layer}.attn.hook_z" for layer in range(LAYERS)
    ]
    return found


@row(8)
def one_of_several(theirs: Theirs) -> Any:
    return theirs.seen("resid_post", text=theirs.texts[2])["resid_post", 1]


@row(9)
def mean_over_texts(theirs: Theirs) -> Any:
    return theirs.of_texts("resid_post", 1).mean(0)


@row(10)
def from_a_layer_on(theirs: Theirs) -> Any:
    return theirs.seen()["logits", 0]


def test_no_layer_runs_twice(theirs: Theirs) -> None:
    """In row 10, the first line of code runs layer 0, and the second line runs all later layers."""
    names, ran, run = theirs.names, [], Block.run
    layers = names["model"].layers

    def counted(layer: Block, *given: Any, **options: Any) -> Any:
        ran.append(next(n for n, one in enumerate(layers) if one is layer))
        return run(layer, *given, **options)

    with patch.object(Block, "run", counted):
        exec(theirs.rows[10].ours, dict(names))
    assert ran == [0, 1, 2]


@row(11)
def written(theirs: Theirs) -> Any:
    ids = begin = theirs.ids(theirs.text)
    for _ in range(8):
        logits = theirs.seen(ids=ids, changes={("attn_out", 1): torch.zeros_like})["logits", 0]
        ids = torch.cat([ids, logits[:, -1:].argmax(-1)], 1)
    assert 0 not in ids  # no end token
    return theirs.tokenizer.decode(ids[0, begin.shape[1] :])


@row(12)
def tokens(theirs: Theirs) -> Any:
    ids = theirs.ids(theirs.text)[0].tolist()
    words = theirs.tokenizer.convert_ids_to_tokens(ids)
    assert ids.count(theirs.answer) == 2
    return {"words": words, "position": len(ids) - 1 - ids[::-1].index(theirs.answer)}


@row(13)
def likeliest(theirs: Theirs) -> Any:
    probabilities, ids = theirs.seen()["logits", 0][0, -1].softmax(-1).topk(5)
    tokens = theirs.tokenizer.convert_ids_to_tokens(ids.tolist())
    words = tuple(
        token[1:] if token.startswith("Ġ") else f"##{token}" if token.isalpha() else token
        for token in tokens
    )
    return {"words": words, "probabilities": probabilities}


@row(14)
def difference(theirs: Theirs) -> Any:
    logits = theirs.seen()["logits", 0][0, -1]
    return Difference(logits[theirs.answer], logits[theirs.other])


@row(15)
def losses(theirs: Theirs) -> Any:
    logits, ids = theirs.seen()["logits", 0][0], theirs.ids(theirs.text)[0]
    return torch.nn.functional.cross_entropy(logits[:-1], ids[1:], reduction="none")


@row(16)
def lens(theirs: Theirs) -> Any:
    found, norm = theirs.seen("resid_post", "resid_pre"), theirs.decoder.transformer.ln_f
    each = [found["resid_pre", 0], *(found["resid_post", layer] for layer in range(LAYERS))]
    return torch.cat([theirs.decoder.lm_head(norm(resid)) for resid in each])


@row(17)
def shares(theirs: Theirs) -> Any:
    found = theirs.seen("resid_pre", "mlp_out")
    blocks = theirs.decoder.transformer.h
    up = theirs.decoder.lm_head.weight
    bias = theirs.decoder.transformer.ln_f.bias
    return {
        "embed": share(theirs, found["resid_pre", 0][0, -1]),
        "heads": share_of_heads(theirs),
        "mlp": torch.stack(
            [share(theirs, found["mlp_out", layer][0, -1]) for layer in range(LAYERS)]
        ),
        "bias": Difference(
            bias @ up[theirs.answer]
            + sum(share(theirs, block.attn.c_proj.bias) for block in blocks),
            bias @ up[theirs.other],
        ),
    }


@row(18)
def share_of_heads(theirs: Theirs) -> Any:
    return share(theirs, results(theirs)[:, :, -1])


@row(19)
def circuits(theirs: Theirs) -> Any:
    q, k, v, o = weights(theirs, 1)
    held = theirs.found[19]["weights"]
    for name, weight in zip(("W_Q", "W_K", "W_V", "W_O"), (q, k, v, o), strict=True):
        assert (getattr(held, name) == weight.numpy()).all()
    return {"qk": q[2] @ k[2].T, "ov": v[2] @ o[2]}


@row(20)
def copying(theirs: Theirs) -> Any:
    embed = theirs.decoder.transformer.wte.weight.double()
    found = torch.zeros(LAYERS, HEADS, dtype=torch.float64)
    for layer in range(LAYERS):
        _, _, v, o = (weight.double() for weight in weights(theirs, layer))
        for head in range(HEADS):
            values = torch.linalg.eigvals(embed @ v[head] @ o[head] @ embed.T)
            found[layer, head] = values.sum().real / values.abs().sum()
    return found


def weights(theirs: Theirs, layer: int) -> list[torch.Tensor]:
    """Return W_Q, W_K, W_V (Hq, D, d) and W_O (Hq, d, D) of a layer."""
    attn = theirs.decoder.transformer.h[layer].attn
    parts = [
        part.unflatten(1, (HEADS, SIZE)).transpose(0, 1) for part in attn.c_attn.weight.split(D, 1)
    ]
    return [*parts, attn.c_proj.weight.unflatten(0, (HEADS, SIZE))]


def results(theirs: Theirs) -> torch.Tensor:
    """Return each head's contribution to the residual stream, (layers, Hq, T, D)."""
    found = theirs.seen("z")
    return torch.stack(
        [
            found["z", layer][0].transpose(0, 1) @ weights(theirs, layer)[3]
            for layer in range(LAYERS)
        ]
    )


def share(theirs: Theirs, part: torch.Tensor) -> torch.Tensor:
    """Return each part's share of the logit difference, for parts (..., D) of the last vector.

    The scale of the last norm is held fixed.
    """
    norm, up = theirs.decoder.transformer.ln_f, theirs.decoder.lm_head.weight
    last = theirs.seen("resid_post")["resid_post", LAYERS - 1][0, -1]
    scale = (last.var(unbiased=False) + norm.eps).sqrt()
    centred = part - part.mean(-1, keepdim=True)
    return centred / scale * norm.weight @ (up[theirs.answer] - up[theirs.other])

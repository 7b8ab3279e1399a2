"""Tests of edits against torch hooks in transformers, for each family and activation."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from .hooks import edited
from .models import Pair, double, images_of, made

V = 97
SIZES: dict[str, Any] = {
    "vocab_size": V,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 40,
}
GROUPED = {**SIZES, "num_key_value_heads": 2, "head_dim": 6, "pad_token_id": 0}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": (
        "GPT2LMHeadModel",
        {"vocab_size": V, "n_embd": 24, "n_head": 4, "n_layer": 3, "n_inner": 40},
    ),
    "llama": ("LlamaForCausalLM", GROUPED),
    "gemma2": ("Gemma2ForCausalLM", {**GROUPED, "sliding_window": 6, "query_pre_attn_scalar": 6}),
    "bert": ("BertForMaskedLM", SIZES),
    "t5": (
        "T5ForConditionalGeneration",
        {
            **{"vocab_size": V, "d_model": 24, "num_heads": 4, "d_kv": 6, "d_ff": 40},
            **{"num_layers": 3, "num_decoder_layers": 3, "decoder_start_token_id": 3},
            **{"eos_token_id": None, "pad_token_id": 0},
        },
    ),
    "vit": (
        "ViTForImageClassification",
        {
            **{"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4},
            **{"intermediate_size": 40, "image_size": 12, "patch_size": 4},
        },
    ),
}
PLACES = (
    *("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out"),
    *("q", "k", "v", "z", "pattern", "attn_scores", "mlp.pre", "mlp.post"),
)
CROSSED = (
    *("resid_mid_cross", "cross_attn_out"),
    *(f"cross_attn.{name}" for name in ("q", "k", "v", "z", "pattern", "attn_scores")),
)
TYPES = [torch.float32, torch.float64]
LENGTHS = [9, 5]
LAYER = 1


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, torch.dtype], Pair]:
    """Return a function that makes each random model once."""
    known: dict[tuple[str, torch.dtype], Pair] = {}

    def pair(family: str, dtype: torch.dtype) -> Pair:
        if (family, dtype) not in known:
            kind, config = FAMILIES[family]
            found = made(tmp_path_factory.mktemp(family), kind, config, dtype)
            found.bound = 1e-10 if found.is_double else 1e-5
            known[family, dtype] = found
        return known[family, dtype]

    return pair


def texts_of(seed: int = 0, lengths: list[int] = LENGTHS) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.integers(4, V, length) for length in lengths]


def padded(texts: list[Any]) -> tuple[Any, Any]:
    longest = max(map(len, texts))
    ids, mask = np.zeros((2, len(texts), longest), np.int64)
    for row, text in enumerate(texts):
        ids[row, : len(text)], mask[row, : len(text)] = text, 1
    return ids, mask


def ours(pair: Pair, family: str, **options: Any) -> list[Any]:
    """Return the logits of each text without padding, with all texts run in one batch."""
    if family == "vit":
        return [*pair.ours(images_of(pair, 2), **options).logits]
    ids, mask = padded(texts_of())
    if family == "t5":
        found = pair.ours(ids, mask, *padded(texts_of(1, [4, 7])), **options).logits
        return [found[0, :4], found[1, :7]]
    found = pair.ours(ids, mask, **options).logits
    return [found[row, :length] for row, length in enumerate(LENGTHS)]


def theirs(pair: Pair, family: str, changes: Any, side: str = "") -> list[Any]:
    """Return transformers' logits of each text, run alone; `changes(text)` are its hooks."""
    found = []
    with torch.no_grad(), double(pair.is_double):
        for number in range(2):
            with edited(pair.theirs, family, changes(number), side):
                if family == "vit":
                    given = {"pixel_values": torch.tensor(images_of(pair, 2))[[number]]}
                else:
                    given = {"input_ids": torch.tensor(texts_of()[number])[None]}
                if family == "t5":
                    written = texts_of(1, [4, 7])[number]
                    given["decoder_input_ids"] = torch.tensor(written)[None]
                found.append(pair.theirs(**given).logits[0])
    return found


def heads_first(name: str) -> bool:
    return name.endswith(("pattern", "attn_scores"))


def scaled(x: Any) -> Any:
    """Scale and shift an array of NumPy or of torch."""
    return x * 0.5 + 0.25


def bent(x: Any) -> Any:
    """Change an array of NumPy or of torch so that no norm undoes the change."""
    return x * 0.5 + 0.4 * abs(x)


def whole(name: str) -> Any:
    """Return a change of a whole activation."""
    return scaled if heads_first(name) else bent


def one_position(x: Any) -> Any:
    x[:, 2] = x[:, 2] * -1.5 + 0.5
    return x


def one_head(x: Any) -> Any:
    x[:, :, 1] = x[:, :, 1] * -0.5
    return x


def one_query(x: Any) -> Any:
    x[:, :, 2, 1] = x[:, :, 2, 1] * 0.25 - 0.5
    return x


def one_head_s(x: Any) -> Any:
    x[:, 1] = x[:, 1] * 0.5
    return x


def functions(name: str) -> dict[str, Any]:
    if heads_first(name):
        return {"a function": scaled, "one position": one_query, "one head": one_head_s}
    found = {"a function": bent, "one position": one_position}
    return found | ({"one head": one_head} if name.rpartition(".")[2] in "qkvz" else {})


def asked(name: str, layer: int, side: str) -> Any:
    """Return the name that indexes a trace."""
    if not side:
        return name, layer
    hook = name.split(".")
    part = ".".join([*hook[:-1], f"hook_{hook[-1]}"])
    part = f"attn.{part}" if name in ("q", "k", "v", "z", "pattern", "attn_scores") else part
    return f"{side}.{layer}.{part}"


def sizes(family: str, side: str, name: str) -> list[tuple[int, int]]:
    """Return the numbers of queries and keys of each text in this activation."""
    if family == "vit":
        return [(10, 10)] * 2
    read, written = LENGTHS, [4, 7]
    own = written if side == "decoder" else read
    other = read if name.startswith("cross_attn.") else own
    return [*zip(own, other, strict=True)]


def shape_of(name: str, queries: int, keys: int, family: str) -> tuple[int, ...]:
    last = name.rpartition(".")[2]
    if heads_first(name):
        return (4, queries, keys)
    if last in ("k", "v"):
        return (keys, 2 if family in ("llama", "gemma2") else 4, 6)
    if last in ("q", "z"):
        return (queries, 4, 6)
    return (queries, 40 if name.startswith("mlp.") else 24)


CASES = [(family, "", name) for family in FAMILIES if family != "t5" for name in PLACES]
CASES += [("t5", side, name) for side in ("encoder", "decoder") for name in PLACES]
CASES += [("t5", "decoder", name) for name in CROSSED]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(("family", "side", "name"), CASES)
def test_edits_of_each_activation(
    pairs: Any, family: str, side: str, name: str, dtype: torch.dtype
) -> None:
    """In texts of unequal lengths, edits by functions and by an array agree with torch hooks.

    The functions change the whole activation, one position or one head.
    """
    pair = pairs(family, dtype)
    where, plain = asked(name, LAYER, side), ours(pair, family)
    for what, function in functions(name).items():
        found = ours(pair, family, edit={where: function})
        expected = theirs(pair, family, lambda _, f=function: {(name, LAYER): f}, side)
        for number, row in enumerate(expected):
            pair.near(found[number], row, f"{what}, text {number}")
            assert np.abs(found[number] - plain[number]).max() > 1e-3, what
    lengths = sizes(family, side, name)
    queries, keys = (max(one) for one in zip(*lengths, strict=True))
    kind = np.float64 if pair.is_double else np.float32
    array = np.random.default_rng(5).standard_normal((2, *shape_of(name, queries, keys, family)))
    array = np.abs(array.astype(kind)) / 4 if name.endswith("pattern") else array.astype(kind)
    found = ours(pair, family, edit={where: array})

    def of_text(number: int) -> dict[tuple[str, int], Any]:
        cut = shape_of(name, *lengths[number], family)
        own = torch.tensor(array[number][tuple(map(slice, cut))])[None]
        return {(name, LAYER): lambda _: own}

    for number, row in enumerate(theirs(pair, family, of_text, side)):
        pair.near(found[number], row, f"an array, text {number}")


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_mean_ablation_averages_over_all_tokens_of_all_texts(
    pairs: Any, family: str, dtype: torch.dtype
) -> None:
    pair, side = pairs(family, dtype), "encoder" if family == "t5" else ""
    seen: dict[int, list[Any]] = {0: [], 2: []}

    def look(layer: int) -> Any:
        def at(x: Any) -> Any:
            seen[layer].append(x[0].clone())
            return x

        return at

    theirs(pair, family, lambda _: {("z", 0): look(0), ("z", 2): look(2)}, side)
    means = {layer: torch.cat(rows).mean(0) for layer, rows in seen.items()}  # (Hq, d)
    vector = np.linspace(-1, 1, 6)

    def first(x: Any) -> Any:
        x[:, :, 3] = means[0][3]
        x[:, :, 0] = torch.tensor(vector)
        return x

    def last(x: Any) -> Any:
        x[:] = means[2]
        return x

    found = ours(pair, family, ablate={(0, 3): "mean", (0, 0): vector, (-1, None): "mean"})
    expected = theirs(pair, family, lambda _: {("z", 0): first, ("z", 2): last}, side)
    for number, row in enumerate(expected):
        pair.near(found[number], row, f"text {number}")


COUNT = 20
DECODERS = ["gpt2", "llama", "gemma2"]


def greedy(pair: Pair, family: str, prompts: list[Any], changes: Any, side: str = "") -> Any:
    """Return the tokens that transformers generates with its cache, one prompt at a time."""
    ends = {"eos_token_id": None, "pad_token_id": 0}
    with edited(pair.theirs, family, changes, side):
        return [pair.greedy(ids[None], COUNT, **ends)[0] for ids in prompts]


def with_ids(pair: Pair, prompts: list[Any], **options: Any) -> list[list[int]]:
    pair.ours.eos_ids = frozenset()  # no end token stops a text early
    given = [prompt.tolist() for prompt in prompts]
    return [one.ids for one in pair.ours.generate(given, max_new_tokens=COUNT, **options)]


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("family", DECODERS)
def test_twenty_tokens_with_an_edit(pairs: Any, family: str, name: str) -> None:
    pair, prompts = pairs(family, torch.float64), texts_of(7, [8, 3])
    found = with_ids(pair, prompts, edit={(name, LAYER): whole(name)})
    assert found == greedy(pair, family, prompts, {(name, LAYER): whole(name)})


@pytest.mark.parametrize("family", DECODERS)
def test_twenty_tokens_with_two_edits_or_an_ablated_head(pairs: Any, family: str) -> None:
    pair, prompts = pairs(family, torch.float64), texts_of(8, [6, 6])
    plain = with_ids(pair, prompts)
    array = np.random.default_rng(3).standard_normal((1, 6, 24))

    def prompt_alone(x: Any) -> Any:
        return torch.tensor(array) if x.shape[1] == 6 else x

    changes = {("resid_pre", 0): prompt_alone, ("z", 2): one_head}
    found = with_ids(pair, prompts, edit={("resid_pre", 0): array, ("z", 2): one_head})
    assert found == greedy(pair, family, prompts, changes)
    assert found != plain

    def none(x: Any) -> Any:
        x[:, :, 1] = 0
        return x

    found = with_ids(pair, prompts, ablate=[(0, 1)])
    assert found == greedy(pair, family, prompts, {("z", 0): none})
    assert found != plain


@pytest.mark.parametrize("family", DECODERS)
def test_twenty_tokens_with_a_masked_token_and_masked_edges(pairs: Any, family: str) -> None:
    """If a token and two edges are masked, generation agrees with transformers' logits.

    The queries of both edges are new tokens.
    """
    pair, prompts = pairs(family, torch.float64), texts_of(9, [8, 5])
    found = with_ids(pair, prompts, hide=[2, (10, 7, 1), (11, 9)])
    assert found != with_ids(pair, prompts)

    def hidden(layer: int) -> Any:
        def at(x: Any) -> Any:
            for query, key in [(None, 2), (11, 9), *[(10, 7)] * (layer == 1)]:
                row = slice(None) if query is None else slice(query, query + 1)
                x[:, :, row, key : key + 1] = -torch.inf
            return x

        return at

    changes = {("attn_scores", layer): hidden(layer) for layer in range(3)}
    with torch.no_grad(), double(True), edited(pair.theirs, family, changes):
        for prompt, new in zip(prompts, found, strict=True):
            ids = [*prompt.tolist(), *new]
            logits = pair.theirs(torch.tensor(ids[:-1])[None], use_cache=False).logits[0]
            assert logits.argmax(-1)[len(prompt) - 1 :].tolist() == new


T5_PLACES = [("encoder", name) for name in ("resid_mid", "z", "attn_scores", "mlp.pre")]
T5_PLACES += [("decoder", name) for name in ("resid_post", "v", "pattern", "mlp.post")]
T5_PLACES += [("decoder", name) for name in CROSSED]


@pytest.mark.parametrize(("side", "name"), T5_PLACES)
def test_twenty_tokens_of_an_encoder_decoder(pairs: Any, side: str, name: str) -> None:
    pair, prompts = pairs("t5", torch.float64), texts_of(7, [8, 3])
    found = with_ids(pair, prompts, edit={asked(name, LAYER, side): whole(name)})
    assert found == greedy(pair, "t5", prompts, {(name, LAYER): whole(name)}, side)

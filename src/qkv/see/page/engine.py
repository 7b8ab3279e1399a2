"""A model inside a page: what its script computes with, and the door that others ask at."""
# What assets/engine/engine.js reads, as JSON in a script of its own that is never run:
#
#   "name": str, "exact": whether the packed parameters are the model's as they are,
#   "sizes": {"layers", "heads", "dim", "vocabulary", "most": tokens, "eps": of the norms},
#   "parameters": {our name: packed, of linear layers (out, in): rows of int8 with a float16 scale
#                  each, where they are the numbers of a matrix, and else float16},
#   "tokenizer": the tokenizer.json
#
# assets/engine/door.js says what a page may ask: globalThis.qkv.

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from qkv.arrays import Array
from qkv.models.files.int8 import Rows, exact_rows
from qkv.models.network.design import Design
from qkv.models.network.head import Head
from qkv.see.page import packing
from qkv.see.page.about import about_model
from qkv.see.page.html import bundle, script, script_json

if TYPE_CHECKING:
    from qkv.models import Model

MOST = 16_000_000  # bytes of a page
ROOM = 500_000  # bytes of it that are not the model
_PLAIN = ("single_word", "lstrip", "rstrip", "normalized")  # of an added token, all off


def need_engine(model: Model) -> None:
    """An error, that of `engine_payload`, if a page cannot compute with a model."""
    _checked(model)


def _checked(model: Model) -> dict[str, tuple[Array, Rows | None]]:
    """The parameters as the script reads them, and as rows of int8 where they are such.

    Raises:
        ValueError: see `engine_payload`.
    """
    for why in (*_reasons(model), *_reasons_of_tokenizer(model)):
        raise ValueError(
            f"play: {model.name} {why}: a page computes a BERT with a head over words, whose "
            "tokenizer is a WordPiece as BERT has it: give such a model"
        )
    parameters = {name: (array, exact_rows(array)) for name, array in _laid_out(model.parameters)}
    _check_size(model, parameters)
    return parameters


def engine_payload(model: Model) -> dict[str, Any]:
    """A model as a page computes with it.

    Raises:
        ValueError: it is not a BERT with a head over words and a WordPiece tokenizer, float16 does
            not reach its parameters, or the page would be over 16 MB.

    >>> import qkv
    >>> engine_payload(qkv.load())["sizes"]["layers"]
    4
    """
    parameters = _checked(model)
    design = model.design
    assert isinstance(design, Design)
    assert model.tokenizer is not None
    return {
        "name": model.name,
        "exact": all(_is_half(array) or rows for array, rows in parameters.values()),
        "sizes": {
            "layers": len(design.layers),
            "heads": design.layers[0].num_heads,
            "dim": design.dim,
            "vocabulary": design.vocabulary,
            "most": model.max_seq_length,
            "eps": design.eps,
        },
        "parameters": {
            name: packing.pack_rows(*rows) if rows else packing.pack_halves(array)
            for name, (array, rows) in parameters.items()
        },
        "tokenizer": model.tokenizer.rules,
    }


def engine_part(payload: Mapping[str, Any]) -> str:
    """The model and its script as a part of a page, whose policy is `WITH_WORKER` of html.py."""
    compute = f"function compute() {{\n{bundle('worker.js')}}}"
    call = 'page.openDoor(compute, document.getElementById("qkv-model"));'
    return (
        f'<script type="application/json" id="qkv-model">{script_json(payload)}</script>\n'
        f"{script(compute, bundle('door.js'), call)}"
    )


def _reasons(model: Model) -> Iterator[str]:
    """Why a page cannot compute a model, as far as its network goes."""
    kind, design = model.config.get("model_type"), model.design
    if kind != "bert" or not isinstance(design, Design):
        yield f"is of the family {kind}"
        return
    known = Head(design.vocabulary, bias=True, dense=True, activation="gelu", norm=True)
    if design.head is None or replace(design.head, tied=False) != known:
        yield "has no head over words, or another than BERT's"
    if design.activation != "gelu":
        yield f"has the activation {design.activation}, not gelu"
    for name, array in model.parameters.items():
        if not np.isfinite(array).all() or np.abs(array).max() > np.finfo(np.float16).max:
            yield f"has numbers in {name} that float16 does not hold"


def _reasons_of_tokenizer(model: Model) -> Iterator[str]:
    """The same, as far as its tokenizer goes."""
    if model.tokenizer is None:
        yield "has no tokenizer"
        return
    rules = model.tokenizer.rules
    for part, kind in (
        ("normalizer", "BertNormalizer"),
        ("pre_tokenizer", "BertPreTokenizer"),
        ("model", "WordPiece"),
        ("post_processor", "TemplateProcessing"),
    ):
        found = (rules[part] or {}).get("type")
        if found != kind:
            yield f"has the {part} {found}, not {kind}"
    around = (rules["post_processor"] or {}).get("special_tokens", {})
    if any(put["tokens"] != [name] for name, put in around.items()):
        yield "puts other tokens around a text than it names"
    if any(token[flag] for token in rules["added_tokens"] for flag in _PLAIN):
        yield "has added tokens that are more than what they spell"
    if model.prepared("A") != "A":
        yield "has texts in lower case before they reach its tokenizer"


def _check_size(model: Model, parameters: Mapping[str, tuple[Array, Rows | None]]) -> None:
    """An error if the page of a model would be too large."""
    count = sum(
        array.size + 2 * len(array) if rows else 2 * array.size
        for array, rows in parameters.values()
    )
    tokenizer = len(script_json(model.tokenizer.rules)) if model.tokenizer else 0
    about = len(about_model(model).encode())
    size = count * 4 // 3 + tokenizer + about + ROOM  # in base64
    if size > MOST:
        raise ValueError(
            f"play: a page with {model.name} inside would have {size / 1e6:.1f} MB, and a page has "
            f"at most {MOST / 1e6:g} MB: give a smaller model"
        )


def _laid_out(parameters: Mapping[str, Array]) -> Iterator[tuple[str, Array]]:
    """Each parameter as the script reads it: what makes one number of a result side by side."""
    for name, array in parameters.items():
        yield name, array.T if name.endswith("_proj.weight") else array


def _is_half(array: Array) -> bool:
    return bool((array.astype(np.float16).astype(array.dtype) == array).all())

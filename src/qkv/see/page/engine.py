"""A model inside a page: the data for the script that runs the model."""

import re
import tomllib
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.resources import files
from typing import Any

import numpy as np

from qkv._argument_errors import value_error
from qkv.embed.rotary import rotary_speeds
from qkv.layers import Rotary
from qkv.models import Model
from qkv.models.network import Dynamic, LongRope
from qkv.models.network.design import Attention, Design
from qkv.models.run.truncation import callers
from qkv.ops import exact_rows
from qkv.see.page.html import bundle, script, script_json
from qkv.see.page.payload import pack_halves, pack_rows
from qkv.see.steps.step import ACTIVATION_ROWS
from qkv.text.tokenizer import Tokenizer

# The data for assets/engine/model.js, as JSON in a script element that never runs. The file
# assets/engine/api.js lists the requests that a page sends to `globalThis.qkv`.
#
#   `name` is the name of the model.
#   `exact` is true if the packed parameters are equal to the model's parameters.
#   `sizes` is an object, which is described below.
#   `design` describes how the model's family differs from other families (see `_design`).
#   `parameters` maps qkv's names to packed arrays. The weights of linear layers are (out, in). If
#   int8 numbers and one float16 scale can express a row exactly, the row is packed in this way. Any
#   other row is packed as float16.
#   `tokenizer` holds the contents of tokenizer.json.
#
# The object `sizes` has these entries.
#
#   `layers`, `heads`, `kv_heads`, `dim` and `vocabulary` are counts.
#   `size` is the size of a head's queries.
#   `most` is the maximum number of tokens in a text, or null.
#   `eps` is the epsilon of the norms.
#   `mask` is the mask token, or null.
#   `next` is true if the model predicts the next token.
#   `bert` is true if the layers have the same steps as BERT's layers.
#   `scales` lists a pair [string, number] for each layer. The number is the factor of the scores.
#   If a server runs the model (see server.js), the string names the activation that the edit
#   "scale" multiplies. Otherwise, the string is empty.


# A page with more than LARGE characters causes a warning. MAX_CHARS is the maximum length of a
# string in a browser.
LARGE, MAX_CHARS = 64_000_000, 500_000_000


def need_engine(model: Model) -> None:
    """Raise an error if a page cannot run a model; the message begins with `call`.

    Raises:
        ValueError: a page cannot run the model; `engine_payload` lists the possible reasons.
    """
    for why in _reasons(model):
        raise value_error(
            f"{model.name} {why}: a page can run a decoder, or an encoder that guesses "
            "masked words, if the page supports all parts of the model; "
            f"`qkv serve --model {model.name}` shows this page for any model"
        )
    least = sum(array.size for array in model.parameters.values())  # In bytes.
    _describe_size(model, least * 4 // 3)  # In base64.


def engine_payload(model: Model) -> dict[str, Any]:
    """Pack a model for a page that runs it.

    If the page will be large or ignores rules of generation_config.json, issue a warning whose
    message begins with `call`.

    Raises:
        ValueError: the model is neither a decoder nor an encoder with a language-model head; the
            page does not support the model's tokenizer or another part of the model; a parameter is
            outside the range of float16; or a browser cannot load so many parameters.

    >>> import qkv
    >>> engine_payload(qkv.load())["sizes"]["layers"]
    4
    """
    need_engine(model)
    design = model.design
    assert isinstance(design, Design)
    assert model.tokenizer is not None
    # the script expects linear weights as (out, in), so that each sum reads adjacent numbers
    laid_out = {
        name: array.T if name.endswith("_proj.weight") else array
        for name, array in model.parameters.items()
    }
    parameters = {name: (array, exact_rows(array)) for name, array in laid_out.items()}
    first = design.layers[0]
    packed = {
        name: pack_rows(*rows) if rows else pack_halves(array)
        for name, (array, rows) in parameters.items()
    }
    size = sum(len(array["b64"]) for array in packed.values())
    described = _describe_size(model, size)
    if size > LARGE:
        warnings.warn(f"{described}, which takes long to open", UserWarning, stacklevel=callers())
    if model.penalties.rules:
        warnings.warn(
            f"the page ignores {', '.join(model.penalties.rules)} of {model.name}'s "
            "generation_config.json, so the page may write other texts than model.generate",
            UserWarning,
            stacklevel=callers(),
        )
    return {
        "name": model.name,
        "exact": all(
            rows or np.array_equal(array.astype(np.float16).astype(array.dtype), array)
            for array, rows in parameters.values()
        ),
        "sizes": {
            "layers": len(design.layers),
            "heads": first.num_heads,
            "kv_heads": first.num_kv_heads,
            "size": first.head_size,
            "dim": design.dim,
            "vocabulary": design.vocabulary,
            "most": model.max_seq_length,
            "eps": design.eps,
            "mask": model.mask,
            "next": model.generates,
            "bert": _is_bert(design),
            "scales": [["", _attends(layer, [])["scale"]] for layer in design.layers],
        },
        "design": _design(model, design),
        "parameters": packed,
        "tokenizer": model.tokenizer.rules,
    }


def _design(model: Model, design: Design) -> dict[str, Any]:
    """Describe the model's family as a `Design` (see assets/engine/model.js)."""
    rotaries = list(
        dict.fromkeys(layer.rotary for layer in design.layers if layer.rotary is not None)
    )
    head = design.head
    assert head is not None
    scale = np.array(design.embed_scale, model.embedding.table.dtype)  # rounded as in the model
    return {
        "layers": [_attends(layer, rotaries) for layer in design.layers],
        "rotaries": [_rotary(rotary, design.layers[0].head_size) for rotary in rotaries],
        "activation": design.activation,
        "norms": design.norms,
        "parallel": design.parallel,
        "rms": design.rms,
        "offset": design.norm_offset,
        "embed": {
            "scale": float(scale),
            "first": design.first_position,
            "padding": design.padding,
            "projects_first": design.projects_first,
        },
        "head": {"activation": head.activation, "scale": head.scale, "softcap": head.softcap},
        "ends": sorted(model.eos_ids) if model.generates else [],
    }


def _is_bert(design: Design) -> bool:
    """Return whether a page can show the parameters beside each step of a layer."""
    first = design.layers[0]
    plain = replace(
        Design(design.vocabulary, design.dim, design.hidden, "gelu", design.eps, design.layers),
        max_seq_length=design.max_seq_length,
        positions=design.positions,
        token_types=design.token_types,
        embed_norm=True,
        norms="after",
        final_norm=False,
        head=design.head,
    )
    same = design == plain and bool(design.positions and design.token_types)
    return same and first == Attention(first.num_heads, first.num_heads, first.head_size)


def _attends(layer: Attention, rotaries: list[Rotary]) -> dict[str, Any]:
    options = layer.options
    return {
        "causal": bool(options.get("is_causal")),
        "window": options.get("window"),
        "scale": options.get("scale") or layer.head_size**-0.5,
        "softcap": options.get("softcap"),
        "rotary": rotaries.index(layer.rotary) if layer.rotary in rotaries else None,
    }


def _rotary(rotary: Rotary, size: int) -> dict[str, Any]:
    """Describe rotary positions as a `Rotary` (see assets/engine/model.js)."""
    dims, scaling = rotary.dims or size, rotary.scaling
    described: dict[str, Any] = {"dims": dims, "interleaved": rotary.interleaved, "scale": 1.0}
    if scaling is None or isinstance(scaling, Dynamic):
        described["speeds"] = rotary_speeds(rotary.base, dims).tolist()
        if scaling is not None:
            described["stretched"] = {"limit": scaling.limit, "factor": scaling.factor}
        return described
    speeds, described["scale"] = scaling.speeds(rotary.base, dims, 1)
    described["speeds"] = speeds.tolist()
    if isinstance(scaling, LongRope):
        longer, _ = scaling.speeds(rotary.base, dims, scaling.limit + 1)
        described["longer"] = {"limit": scaling.limit, "speeds": longer.tolist()}
    return described


def engine_part(*payloads: Mapping[str, Any]) -> str:
    """Write the HTML of the engine: its script, and one model or two (an encoder and a decoder).

    The page needs the content security policy `WITH_WORKER` of html.py.
    """
    compute = f"function compute() {{\n{bundle('worker.js')}}}"
    call = 'page.openApi(compute, document.querySelectorAll("script[data-side]"));'
    models = "".join(
        f'<script type="application/json" data-side="{side_of(payload)}">{script_json(payload)}'
        "</script>\n"
        for payload in payloads
    )
    return f"{models}{script(compute, bundle('api.js'), call)}"


def side_of(payload: Mapping[str, Any]) -> str:
    """Return "decoder" if the packed model (see `engine_payload`) is a decoder, else "encoder"."""
    return "decoder" if payload["sizes"]["next"] else "encoder"


def _reasons(model: Model) -> Iterator[str]:
    """Yield a clause for each reason why a page cannot run a model."""
    design = model.design
    if not isinstance(design, Design):
        yield f"is of the family {model.config.get('model_type')}"
        return
    head, layers = design.head, design.layers
    if head is None or head.pool is not None or head.classes or not head.projects:
        yield "has no language-model head"
    others = {
        "experts": design.experts is not None,
        "biases by distance": design.buckets is not None
        or design.disentangled is not None
        or any(layer.alibi for layer in layers),
        "clipped queries": any(layer.clip is not None for layer in layers),
        "another norm for each head": any(layer.qk_norm == "each" for layer in layers),
        "sinks": any(layer.sinks for layer in layers),
        "a convolution": design.conv is not None,
        "cross-attention": design.cross,
        "layers that share parameters": list(design.same_as) != sorted(set(design.same_as)),
        "layer scales": design.layer_scale or design.residual_scale != 1,
        "norms without weights": not design.norm_weight,
        "no MLPs": not design.hidden,
        "no norms": design.norms == "none",
        "another vocabulary for its output": head is not None and head.outputs != design.vocabulary,
        "layers of different sizes": len(
            {(n.num_heads, n.num_kv_heads, n.head_size) for n in layers}
        )
        > 1,
    }
    yield from (f"has {part}" for part, there in others.items() if there)
    for name in {design.activation, head and head.activation} - {None, *ACTIVATION_ROWS}:
        yield f"has the activation {name}"
    for name, array in model.parameters.items():
        if not np.isfinite(array).all() or np.abs(array).max() > np.finfo(np.float16).max:
            yield f"has numbers in {name} that float16 does not hold"
    if model.tokenizer is None:
        yield "has no tokenizer"
    elif model.tokenizer.rows is not None:
        yield "has tokens without a row in the token table"
    elif model.tokenizer.inner.encode_special_tokens or model.tokenizer.cuts_left:
        yield "splits special tokens of texts, or truncates texts on the left"
    else:
        yield from reasons_of_tokenizer(model.tokenizer)


def _describe_size(model: Model, size: int) -> str:
    """Return a clause that gives the size, in MB, of a page with `size` characters.

    Raises:
        ValueError: a browser cannot load a page of this size.
    """
    described = f"a page that contains {model.name} would be {size / 1e6:,.0f} MB"
    if size > MAX_CHARS:
        raise value_error(
            f"{described}, but a browser can load at most {MAX_CHARS / 1e6:g} MB: "
            f"`qkv serve --model {model.name}` shows this page and runs the model"
        )
    return described


_KINDS = tomllib.loads(files("qkv.see.page").joinpath("tokenizer_parts.toml").read_text("utf-8"))
_INSIDE = _KINDS.pop("inside")
_BYTES = [bytes([byte]).decode("latin-1") for byte in range(256)]
_SHOWN = {byte for byte in _BYTES if re.match("[!-~¡-¬®-ÿ]", byte)}  # unchanged in tokens
_LEVELS = _SHOWN | {chr(256 + i) for i in range(256 - len(_SHOWN))}
_FALLBACKS = {f"<0x{byte:02X}>" for byte in range(256)}

# The supported subset of Oniguruma's patterns: characters, groups, lookaround, quantifiers, and
# character classes. A class inside a class is not supported, and neither are anchors, names,
# references and possessive quantifiers.
_PROPERTY = r"\\[pP]\{(?:[LMNPSZC][a-z]?|Alphabetic|Han|Hiragana|Katakana|Hangul|Thai|Arabic)\}"
_MARK = r"\\[rntfvsSdDwW]|\\u[\da-fA-F]{4}|\\[^\w\s]"
_CLASS = rf"\[\^?(?:(?!\\W)(?:{_PROPERTY}|{_MARK})|[^\\\[\]&]|&(?!&))+\]"
_TIMES = r"(?:[*+?]|\{\d+(?:,\d*)?\})\??(?![*+?{])"
_FOLDED = r"\(\?i:(?![^)]*(?i:ss|st|f[fil]))(?:\[[A-Za-z]+\]|['A-Za-z|])+\)"  # "ss" can match ß
_ONE = rf"{_FOLDED}|\)|{_PROPERTY}|{_MARK}|{_CLASS}|[^\\\[\]()|*+?{{}}^$]"
_PATTERN = re.compile(rf"(?:(?:{_ONE})(?:{_TIMES})?|\(\?(?:[:=!]|<[=!])|\((?!\?)|\|)*")


def reasons_of_tokenizer(tokenizer: Tokenizer) -> Iterator[str]:
    """Yield a clause for each reason why a page cannot run this tokenizer.

    >>> from qkv.text import WordTokenizer
    >>> list(reasons_of_tokenizer(WordTokenizer("the cat sat")))[-1]
    'has the model WordLevel'
    """
    rules = tokenizer.rules
    model, vocabulary = rules["model"], rules["model"]["vocab"]
    for part, kinds in _KINDS.items():
        for step in _steps(part, rules[part]):
            if step["type"] not in kinds:
                yield f"has the {part} {step['type']}"
            yield from _reasons_of_pattern(part, step)
    yield from _reasons_around(tokenizer, rules["post_processor"])
    if model["type"] == "BPE":
        yield from _reasons_of_bpe(rules)
    elif model["type"] == "WordPiece" and model["unk_token"] not in vocabulary:
        yield f"has the unknown token {_short(model['unk_token'])} outside of its vocabulary"


def _steps(part: str, rules: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    """List the steps of a normalizer, or of another part of a tokenizer, in order."""
    if rules is None:
        return
    if rules["type"] != "Sequence":
        yield rules
        return
    for step in rules[_INSIDE[part]]:
        yield from _steps(part, step)


def _reasons_of_pattern(part: str, step: Mapping[str, Any]) -> Iterator[str]:
    pattern = step["pattern"].get("Regex") if "pattern" in step else None
    if pattern is None:
        return
    if not _PATTERN.fullmatch(pattern):
        yield f"has a {part} with the pattern {_short(pattern)}"
    if "$" in step.get("content", ""):
        yield f"has a {part} that inserts the matched groups of its pattern"


def _reasons_around(tokenizer: Tokenizer, rules: Mapping[str, Any] | None) -> Iterator[str]:
    steps = list(_steps("post_processor", rules))
    framed = False
    for step in steps:
        if framed and step.get("trim_offsets"):
            yield "trims blanks after it has put tokens around a text"
        framed = framed or step["type"] != "ByteLevel"
        if step["type"] == "TemplateProcessing":
            sequences = [part["Sequence"]["id"] for part in step["single"] if "Sequence" in part]
            if sequences != ["A"]:
                yield "has a post_processor that inserts the text several times or never"
    puts = (
        "cls" in step or any("SpecialToken" in part for part in step.get("single", ()))
        for step in steps
    )
    if any(puts) and not len(tokenizer.tokenize("")):
        yield "omits the tokens that its tokenizer.json adds around a text"


def _reasons_of_bpe(rules: Mapping[str, Any]) -> Iterator[str]:
    model, vocabulary = rules["model"], rules["model"]["vocab"]
    for name in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model[name]:
            yield f"has a BPE with the {name} {_short(model[name])}"
    steps = _steps("pre_tokenizer", rules["pre_tokenizer"])
    if any(step["type"] == "ByteLevel" for step in steps) and vocabulary.keys() >= _LEVELS:
        return  # the vocabulary has a token for each byte, so any text can be tokenized
    if model["byte_fallback"]:
        if not vocabulary.keys() >= _FALLBACKS:
            yield "has a BPE that falls back on bytes, but has no token for some bytes"
    elif model["unk_token"] not in vocabulary:
        yield "has a BPE that drops unknown characters"


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:37]}...")

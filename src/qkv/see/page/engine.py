"""A model inside a page: the data for the script that runs the model."""

import re
import tomllib
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import replace
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np

from qkv._argument_errors import value_error
from qkv.arrays import Array
from qkv.embed.rotary import rotary_speeds
from qkv.layers import Rotary
from qkv.models import Model
from qkv.models.network import Dynamic, LongRope
from qkv.models.network.design import Attention, Design
from qkv.models.run.truncation import callers
from qkv.ops import exact_rows
from qkv.see.page.html import PIECES, bundle, script, script_json
from qkv.see.page.payload import pack_halves, pack_rows
from qkv.see.steps.step import ACTIVATION_ROWS
from qkv.text.tokenizer import Tokenizer

# The data for assets/engine/model.js, as JSON in a script element that never runs. The file
# assets/engine/api.js lists the requests that a page sends to `globalThis.qkv`.
#
#   `name` is the name of the model.
#   `exact` is true if the packed parameters are equal to the model's parameters, and no parameter
#   is in blocks. (Vectors are rounded to whole numbers before they are multiplied with blocks.)
#   `sizes` is an object, which is described below.
#   `design` describes how the model's family differs from other families (see `_design`).
#   `parameters` maps qkv's names to packed arrays. The weights of linear layers are (out, in). If
#   int8 numbers and one float16 scale can express a row exactly, the row is packed in this way. Any
#   other row is packed as float16.
#   `tokenizer` holds the contents of tokenizer.json.
#   `data` exists if the model comes from a GGUF file with blocks of a kind in BLOCKS. It lists the
#   bytes of the parameters in turn, and is not a part of the JSON. A parameter then is an object
#   with its `kind` and the number `size` of its values. The blocks are those of the file. Other
#   vectors are float32, and other matrices float16. The page contains such a model in pieces
#   (see `_write_pieces`), or fetches it from a file beside the page (assets/engine/download.js).
#   Its element with the attribute `data-side` holds two sizes: `bytes`, of the deflated model, and
#   `described`, of the JSON with which the model begins.
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
# MAX_DATA is the maximum number of bytes in `data`: a browser holds them twice.
MAX_DATA = 150_000_000
# The kinds of blocks that a page multiplies, and their bytes; as in assets/engine/blocks.js.
BLOCKS = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}
_PIECE = 2**19  # The characters of a piece: a browser copies a piece without a pause.
_GROUP = 64  # The largest number of characters that share a mask.
_CHANGED = (0x00, 0x0D, 0x3C)  # A browser changes NUL and CR, and "<" may end a script.


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
    if blocks := _blocks_of(model):
        _check_data(model, blocks)
        return
    least = sum(array.size for array in model.parameters.values())  # In bytes.
    _describe_size(model, least * 4 // 3)  # In base64.


def engine_payload(model: Model) -> dict[str, Any]:
    """Pack a model for a page that runs it.

    If the page will be large, or will ignore rules of generation_config.json, issue a warning that
    begins with `call`.

    Raises:
        ValueError: the model is neither a decoder nor an encoder with a language-model head; the
            page does not support the model's tokenizer or another part of the model; a parameter is
            outside the range of float16; or the model has too many parameters for a page.

    >>> import qkv
    >>> engine_payload(qkv.load())["sizes"]["layers"]
    4
    """
    need_engine(model)
    design = model.design
    assert isinstance(design, Design)
    assert model.tokenizer is not None
    first = design.layers[0]
    blocks = _blocks_of(model)
    parameters = _place(model, blocks) if blocks else _pack(model)
    if model.penalties.rules:
        warnings.warn(
            f"the page ignores {', '.join(model.penalties.rules)} of {model.name}'s "
            "generation_config.json, so its texts may differ from those of model.generate",
            UserWarning,
            stacklevel=callers(),
        )
    return {
        "name": model.name,
        **parameters,
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
        "tokenizer": model.tokenizer.rules,
    }


def _laid_out(name: str, array: Array) -> Array:
    """Return linear weights as (out, in), so that each sum of the script reads adjacent numbers."""
    return array.T if name.endswith("_proj.weight") else array


def _pack(model: Model) -> dict[str, Any]:
    """Return the entries `parameters` and `exact` of a model in float16 and int8."""
    laid_out = {name: _laid_out(name, array) for name, array in model.parameters.items()}
    parameters = {name: (array, exact_rows(array)) for name, array in laid_out.items()}
    packed = {
        name: pack_rows(*rows) if rows else pack_halves(array)
        for name, (array, rows) in parameters.items()
    }
    size = sum(len(array["b64"]) for array in packed.values())
    described = _describe_size(model, size)
    if size > LARGE:
        warnings.warn(f"{described}, which opens slowly", UserWarning, stacklevel=callers())
    exact = all(
        rows or np.array_equal(array.astype(np.float16).astype(array.dtype), array)
        for array, rows in parameters.values()
    )
    return {"exact": exact, "parameters": packed}


def _blocks_of(model: Model) -> dict[str, tuple[str, Array]]:
    """Return the parameters that a page multiplies in blocks: each kind, and the rows of bytes."""
    found = {name: model.blocks_of(name) for name in model.parameters}
    return {name: one for name, one in found.items() if one and one[0] in BLOCKS}


def _check_data(model: Model, blocks: Mapping[str, tuple[str, Array]]) -> None:
    """Raise an error if a page cannot hold a model in blocks."""
    size = sum(
        blocks[name][1].nbytes if name in blocks else 2 * array.size
        for name, array in model.parameters.items()
    )
    if size > MAX_DATA:
        raise value_error(
            f"a page that contains {model.name} would hold {size / 1e6:,.0f} MB of parameters, but "
            f"a page can hold at most {MAX_DATA / 1e6:g} MB of a model whose GGUF file has the "
            f"blocks {', '.join(BLOCKS)}: `qkv serve --model {model.name}` shows this page "
            "and runs the model"
        )


def _place(model: Model, blocks: Mapping[str, tuple[str, Array]]) -> dict[str, Any]:
    """Return the entries `parameters`, `exact` and `data` of a model in blocks."""
    placed: dict[str, Any] = {}
    data: list[Array] = []
    for name, array in model.parameters.items():
        if name in blocks:
            kind, raw = blocks[name]
        else:
            kind = "F32" if array.ndim == 1 else "F16"
            values = np.ascontiguousarray(_laid_out(name, np.asarray(array)))
            raw = values.astype("<f4" if kind == "F32" else "<f2")
        placed[name] = {"kind": kind, "size": array.size}
        data.append(raw.reshape(-1).view(np.uint8))
    return {"exact": False, "parameters": placed, "data": data}  # products round vectors


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


def engine_part(
    *payloads: Mapping[str, Any], beside: MutableMapping[str, bytes] | None = None
) -> str:
    """Write the HTML of the engine: its script, and the models (see `engine_payload`).

    The page needs the content security policy `WITH_WORKER` of html.py.

    Args:
        payloads: the models.
        beside: if given, the page does not contain the bytes of models in blocks. The function
            stores them in this mapping, keyed by the names of their files beside the page. Each
            name contains the CRC-32 of the file: a browser never reads an older file from its
            cache, and the page checks the bytes that arrive. It needs the policy `WITH_FILES`.
    """
    compute = f"function compute() {{\n{bundle('worker.js')}}}"
    call = 'page.openApi(compute, document.querySelectorAll("script[data-side]"));'
    models, pieces = list[str](), list[str]()
    sides = sides_of((payload["name"], payload["sizes"]["next"]) for payload in payloads)
    for side, payload in zip(map(escape, sides), payloads, strict=True):
        kept, mark = payload, ""
        if "data" in payload:
            kept, packed = deflate_model(payload)
            if beside is None:
                mark = " data-pieces"
                pieces += [
                    f'{PIECES}="{side}">{piece}</script><script>qkv.receivePiece()</script>\n'
                    for piece in _write_pieces(packed)
                ]
            else:
                name = re.sub(r"[^A-Za-z0-9-]+", "-", payload["name"])
                file = f"{name}-{zlib.crc32(packed):08x}.bin"
                mark, beside[file] = f' data-weights="{file}"', packed
        models.append(
            f'<script type="application/json" data-side="{side}"{mark}>{script_json(kept)}'
            "</script>\n"
        )
    return "".join([*models, script(compute, bundle("api.js"), call), "\n", *pieces])


def deflate_model(payload: Mapping[str, Any]) -> tuple[dict[str, int], bytes]:
    """Return the sizes of a packed model in blocks, and its deflated bytes.

    The bytes begin with the model's JSON. The bytes of blocks are transposed: the first byte of
    each block, then the second byte of each block, and so on. Bytes at the same position in their
    blocks are similar, so this order compresses better.
    """
    described = {name: value for name, value in payload.items() if name != "data"}
    text = script_json(described).encode()
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    parts = [squeeze.compress(text), squeeze.flush(zlib.Z_SYNC_FLUSH)]
    # nothing repeats in blocks, but some bytes are frequent
    squeeze = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS, 7, zlib.Z_HUFFMAN_ONLY)
    for about, raw in zip(payload["parameters"].values(), payload["data"], strict=True):
        size = BLOCKS.get(about["kind"], 1)
        parts.append(squeeze.compress(raw.reshape(-1, size).T.tobytes()))
    packed = b"".join([*parts, squeeze.flush()])
    return {"bytes": len(packed), "described": len(text)}, packed


def _write_pieces(packed: bytes) -> Iterator[str]:
    """Write bytes as pieces of text whose characters a browser does not change.

    Each character encodes two bytes. A mask of five bits changes some of the bits, so that no
    character is a surrogate or is changed by a browser. The characters form groups: the first
    character holds the number of the others (high 11 bits) and their mask. `bytesIn` of
    incoming.js reads the pieces.

    >>> [f"{ord(c):04x}" for c in "".join(_write_pieces(bytes([1, 0, 0, 0xD8])))]
    ['0041', '0801', 'd000']
    """
    units = np.frombuffer(packed + bytes(len(packed) % 2), "<u2")
    for start in range(0, len(units), _PIECE):
        yield "".join(_groups(units[start : start + _PIECE], _GROUP))


def _groups(units: Array, size: int) -> Iterator[str]:
    """Write groups of `size` 16-bit units; halve a group if no mask suits it."""
    whole = len(units) // size * size
    rows = units[:whole].reshape(-1, size)
    high, low = (rows >> 11).astype(np.uint32), rows & 0x7FF
    one = np.uint32(1)
    # a bit for each mask: it makes a surrogate, or a character that a browser changes
    wrong = one << (high ^ 0b11011) | np.where(np.isin(low, _CHANGED), one << high, 0)
    wrong = np.bitwise_or.reduce(wrong, axis=1)
    masks = np.log2(np.maximum(~wrong & (wrong + one), one)).astype("<u2")  # the lowest zero
    text = np.column_stack([size << 5 | masks, rows ^ (masks << 11)[:, None]]).astype("<u2")
    last = 0
    for lost in [*np.flatnonzero(wrong == ~np.uint32(0)), len(rows)]:
        yield text[last:lost].tobytes().decode("utf-16-le")
        rest = rows[lost] if lost < len(rows) else units[whole:]
        if len(rest):
            yield from _groups(rest, size // 2)
        last = lost + 1


def sides_of(models: Iterable[tuple[str, bool]]) -> list[str]:
    """Name the models of a page, each given as its name and whether it predicts the next token.

    >>> sides_of([("books", False), ("books-decoder", True), ("smollm2", True)])
    ['encoder', 'decoder', 'smollm2']
    """
    sides: list[str] = []
    for name, generates in models:
        kind = "decoder" if generates else "encoder"
        sides.append(name if kind in sides else kind)
    return sides


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
        "a different norm for each head": any(layer.qk_norm == "each" for layer in layers),
        "sinks": any(layer.sinks for layer in layers),
        "a convolution": design.conv is not None,
        "cross-attention": design.cross,
        "layers that share parameters": list(design.same_as) != sorted(set(design.same_as)),
        "layer scales": design.layer_scale or design.residual_scale != 1,
        "norms without weights": not design.norm_weight,
        "no MLPs": not design.hidden,
        "no norms": design.norms == "none",
        "a different output vocabulary": head is not None and head.outputs != design.vocabulary,
        "layers of different sizes": len(
            {(n.num_heads, n.num_kv_heads, n.head_size) for n in layers}
        )
        > 1,
    }
    yield from (f"has {part}" for part, there in others.items() if there)
    for name in {design.activation, head and head.activation} - {None, *ACTIVATION_ROWS}:
        yield f"has the activation {name}"
    for name, array in model.parameters.items():
        if not np.abs(np.asarray(array)).max() <= np.finfo(np.float16).max:  # or NaN
            yield f"has numbers in {name} that float16 cannot hold"
    if model.tokenizer is None:
        yield "has no tokenizer"
    elif model.tokenizer.rows is not None:
        yield "has tokens without a row in the token table"
    elif model.tokenizer.inner.encode_special_tokens or model.tokenizer.cuts_left:
        yield "splits special tokens in texts, or truncates texts on the left"
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
_SHOWN = {byte for byte in _BYTES if re.match("[!-~¡-¬®-ÿ]", byte)}  # tokens show these
_LEVELS = _SHOWN | {chr(256 + i) for i in range(256 - len(_SHOWN))}
# The letters of bytes of control characters, and of characters from U+40000: a byte-level
# vocabulary may lack them. A tokenizer without an unknown token then drops these bytes.
_RARE = {chr(256 + byte) for byte in range(32) if byte not in b"\t\n\r"}
_RARE |= {chr(byte) for byte in (0xC0, 0xC1, *range(0xF1, 0x100))}
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
        yield f"has the unknown token {_short(model['unk_token'])} outside its vocabulary"


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
    if any(step["type"] == "ByteLevel" for step in steps) and vocabulary.keys() >= _LEVELS - _RARE:
        return  # the vocabulary has a token for each byte, except for bytes of texts that are rare
    if model["byte_fallback"]:
        if not vocabulary.keys() >= _FALLBACKS:
            yield "has a BPE that falls back on bytes, but has no token for some bytes"
    elif model["unk_token"] not in vocabulary:
        yield "has a BPE that drops unknown characters"


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:37]}...")

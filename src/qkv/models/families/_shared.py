"""Read the TOML files of the model families, and build a design from common config keys."""

import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from qkv.models.families._registry import register
from qkv.models.files.config import Config
from qkv.models.files.names import Describe, Family, Rename, fused
from qkv.models.network import Dynamic
from qkv.models.network.design import Attention


def read_families(file: str, designs: Mapping[str, Describe], **renames: Rename) -> list[Family]:
    """Register the families in a TOML file, and return them; each `model_type` has a table.

    A table may contain the attributes of `Family` and the keys that are listed below. A table
    whose name begins with `_` is not a family, but a base that other tables extend.

    Keys:
        like: the name of another table, whose entries this table inherits. A list in this table is
            appended to the inherited list. Any other entry replaces the inherited entry with the
            same key.
        defaults: the values for keys missing in a config, as in transformers.
        spellings: maps each key to its names in this family, usual name first. If the family does
            not use the key, the list of names is empty.
        names: maps qkv's name of each part to the part's name in the model's files.
        block: maps qkv's name of each part of a block to the suffix of the part's name in
            the files.
        layer: the beginning of a block's names in the files; `*` stands for the block's number.
        fused: maps each tensor that holds several parts of a block to qkv's names of these parts.
        heads: for heads other than the language-model head, maps the kind of head to the names
            of its parts.

    Args:
        file: the name of a TOML file in this folder.
        designs: for each family, the function that turns a config into a design.
        renames: functions for families whose parameter names depend on the config. Such a function
            has two arguments: the parameter names from the family's table, and a config. It returns
            the names for this config.
    """
    text = Path(__file__).with_name(file).read_text(encoding="utf-8")
    tables: dict[str, dict[str, Any]] = {}
    for name, table in tomllib.loads(text).items():
        tables[name] = _extend_table(tables[table.pop("like")] if "like" in table else {}, table)
    families = {name for name in tables if not name.startswith("_")}
    assert families == designs.keys() >= renames.keys(), (file, families ^ designs.keys())
    read = []
    for name, design in designs.items():
        fields = tables[name]
        layer, heads = fields.pop("layer", ""), fields.pop("heads", {})
        block = {f"blocks.*.{ours}": layer + end for ours, end in fields.pop("block", {}).items()}
        parts = fields.pop("names", {}) | block
        for tensor, ours in fields.pop("fused", {}).items():
            parts |= fused(layer + tensor, *(f"blocks.*.{part}" for part in ours))
        fields |= {key: tuple(value) for key, value in fields.items() if isinstance(value, list)}
        fields["heads"] = {kind: dict(_flat(table, "head.")) for kind, table in heads.items()}
        read.append(register(name, design, parts, rename=renames.get(name), **fields))
    return read


def _extend_table(base: Mapping[str, Any], table: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of the table `base`, updated with the entries of `table`."""
    extended = dict(base)
    for key, value in table.items():
        if isinstance(value, list):
            value = [*base.get(key, ()), *value]
        elif isinstance(value, dict):
            value = base.get(key, {}) | (dict(_flat(value)) if key in ("names", "block") else value)
        extended[key] = value
    return extended


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield each string in nested tables, with its path of keys, such as "attn.q_proj"."""
    for key, value in table.items():
        if isinstance(value, str):
            yield f"{prefix}{key}", value
        else:
            yield from _flat(value, f"{prefix}{key}.")


def stack(config: Config, **preset: Any) -> dict[str, Any]:
    """Return the fields of a design, from the config keys that most families have.

    Designs with rotary positions have no position table; other designs have one.

    Args:
        config: the model's config.
        preset: the fields that the family sets. If all layers have the same attention, `layers` may
            be a single `Attention`.
    """
    fields = dict(preset)
    if "layers" not in fields:
        _, heads, size = config.heads()
        fields["layers"] = Attention(heads, heads, size)
    if isinstance(fields["layers"], Attention):
        fields["layers"] = (fields["layers"],) * config.layers()
    rotaries = [layer.rotary for layer in fields["layers"] if layer.rotary is not None]
    readers: dict[str, Callable[[], Any]] = {
        "vocabulary": lambda: config.size("vocab_size"),
        "dim": lambda: config.size("hidden_size"),
        "hidden": lambda: config.size("intermediate_size"),
        "activation": lambda: config.activation("hidden_act"),
        "eps": lambda: config.positive("layer_norm_eps"),
        "max_seq_length": lambda: config.size("max_position_embeddings"),
    }
    fields |= {name: read() for name, read in readers.items() if name not in fields}
    fields.setdefault("positions", 0 if rotaries else fields["max_seq_length"] or 0)
    if "max_seq_length" not in preset and any(isinstance(one.scaling, Dynamic) for one in rotaries):
        fields["max_seq_length"] = None  # With dynamic scaling, a text may have any length.
    return fields

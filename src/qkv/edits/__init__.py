"""Edits of a run, given as JSON records, Python functions or arrays."""

from qkv.edits._records import (
    Ablate,
    Edit,
    Edits,
    Field,
    Hide,
    Record,
    edits_of,
    operations,
    schema,
)

__all__ = ["Ablate", "Edit", "Edits", "Field", "Hide", "Record", "edits_of", "operations", "schema"]

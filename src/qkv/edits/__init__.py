"""What a run does differently: plain records, and what is written only in Python."""

from qkv.edits.records import Ablate, Edit, Edits, Field, Hide, Record, edits_of, operations, schema

__all__ = [
    "Ablate",
    "Edit",
    "Edits",
    "Field",
    "Hide",
    "Record",
    "edits_of",
    "operations",
    "schema",
]

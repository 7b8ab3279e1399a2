"""What a run does differently: plain records, and what is written only in Python."""

from qkv.edits.given import Ablate, Edit, Edits, Hide, Record, edits_of
from qkv.edits.schema import Field, operations, schema

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

"""Edits of a run: JSON records, Python functions and arrays."""

from qkv.edits.records import Ablate, Edit, Edits, Field, Hide, Record, edits_of, operations, schema

__all__ = ["Ablate", "Edit", "Edits", "Field", "Hide", "Record", "edits_of", "operations", "schema"]

"""Edits of a run: plain records, and functions and arrays of Python."""

from qkv.edits.records import Ablate, Edit, Edits, Field, Hide, Record, edits_of, operations, schema

__all__ = ["Ablate", "Edit", "Edits", "Field", "Hide", "Record", "edits_of", "operations", "schema"]

"""Conformance: judge every feature of an attention function, and explain the errors."""

from qkv.marking.conformance.card import conform
from qkv.marking.conformance.report import Report

__all__ = ["Report", "conform"]

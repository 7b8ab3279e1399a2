"""Conformance: is anybody's attention right in every feature, and if not, what went wrong?"""

from qkv.marking.conformance.card import conform
from qkv.marking.conformance.report import Report

__all__ = ["Report", "conform"]

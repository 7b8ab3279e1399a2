"""Conformance: judge every feature of an attention function, and explain the errors."""

"""A head step by step: each step has a formula, a line of NumPy and its numbers."""

"""One head step by step: each with its formula, its line of NumPy and its numbers."""

"""Vectors of sentences: encode, rank, compare."""

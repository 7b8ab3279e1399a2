"""Encode texts as vectors, compare the vectors, and rank texts."""

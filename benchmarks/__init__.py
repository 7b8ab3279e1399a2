"""Measurements of each claim of speed, one file per claim: `python -m benchmarks --help`."""

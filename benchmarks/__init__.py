"""Measure each claim about speed, with one file per claim: `python -m benchmarks --help`."""

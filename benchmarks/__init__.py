"""What the kernel is said to reach, measured: one file per claim; `python -m benchmarks --help`."""

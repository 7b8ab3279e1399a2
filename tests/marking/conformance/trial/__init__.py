"""Planted kernels, defective and correct, which `qkv conform` must judge."""

"""Blind trials of `qkv conform`: their writers had not seen the list of known defects."""

"""A blind trial of `qkv conform`: kernels whose writer has not seen the judge's list of defects."""

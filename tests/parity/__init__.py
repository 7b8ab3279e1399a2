"""Tests that compare qkv with torch, transformers and other libraries: `make parity`."""

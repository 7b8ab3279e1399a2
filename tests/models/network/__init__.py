"""Tests of what is in `qkv.models.network`."""

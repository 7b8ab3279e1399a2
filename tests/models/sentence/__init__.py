"""Tests of `qkv.models.sentence`."""

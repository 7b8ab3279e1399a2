"""Tests of `qkv.models.run`."""

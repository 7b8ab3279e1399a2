"""Tests of `qkv.models.network`."""

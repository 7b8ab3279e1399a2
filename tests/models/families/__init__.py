"""Tests of `qkv.models.families`."""

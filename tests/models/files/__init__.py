"""Tests of `qkv.models.files`."""

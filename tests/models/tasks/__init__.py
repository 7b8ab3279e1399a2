"""Tests of `qkv.models.tasks`."""

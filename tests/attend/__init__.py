"""Tests that compare qkv.attend with an implementation in plain loops."""

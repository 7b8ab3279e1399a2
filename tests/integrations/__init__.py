"""Tests of qkv inside the models of other libraries."""

"""Tests of what layers compute: forward and backward."""

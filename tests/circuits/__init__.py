"""Tests of the tools that researchers use to study models."""

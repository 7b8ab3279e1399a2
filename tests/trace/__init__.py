"""Tests of what a trace is."""

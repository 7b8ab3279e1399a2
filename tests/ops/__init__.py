"""Tests of the operations of layers, forward and backward."""

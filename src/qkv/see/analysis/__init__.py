"""Analysis of attention heads: numbers and sentences about the tokens that a head attends to."""

"""Analysis of attention heads: the tokens they attend to, in numbers and in words."""

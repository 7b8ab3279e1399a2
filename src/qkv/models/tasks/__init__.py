"""What a model does with texts: encode, generate, trace, leave parts out."""

"""The tasks of a model: predict, generate, trace, and compute gradients."""

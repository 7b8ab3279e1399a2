"""Linear layers, norms, activations, the loss and AdamW: forward pass beside backward pass."""

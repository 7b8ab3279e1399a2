"""Linear layers, norms, activations and the loss, each with its gradients, and AdamW."""

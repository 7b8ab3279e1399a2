"""Forward and backward passes of linear layers, norms, activations and the loss, and AdamW."""

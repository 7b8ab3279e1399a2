"""The task `self-attention-class`: a layer in which every head has weights of its own."""

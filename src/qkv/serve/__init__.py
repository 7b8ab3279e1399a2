"""An HTTP server that shares one model, and computes simultaneous requests in one batch."""

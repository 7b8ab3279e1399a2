"""One model for many users: an HTTP server that computes simultaneous requests together."""

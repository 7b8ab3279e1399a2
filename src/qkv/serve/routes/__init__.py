"""The routes, one per file: the body of the request, the answer, and the computation."""

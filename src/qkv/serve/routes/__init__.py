"""The routes. Each file has one route: its request body, its answer, and its computation."""

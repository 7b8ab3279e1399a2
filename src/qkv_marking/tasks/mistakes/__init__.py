"""Mistakes that occur in several tasks. Each mistake replaces a step of a correct computation."""

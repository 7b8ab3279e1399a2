"""Mistakes that several tasks share. Each mistake replaces a step of a right computation."""

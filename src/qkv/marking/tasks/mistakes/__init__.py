"""Mistakes that several tasks share: each replaces a step of a right computation."""

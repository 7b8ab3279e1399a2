"""Panels and their drawing: in a terminal, as SVG, and as PNG."""

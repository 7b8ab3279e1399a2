"""How panels look: in a terminal, as SVG, as a matplotlib figure; one set of colours."""

"""A run of texts: ids, layout, edits, masks."""

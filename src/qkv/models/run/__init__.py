"""Prepare and edit a run: ids, layout, edits and masks."""

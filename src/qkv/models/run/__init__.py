"""Prepare and edit a run: ids, layout, edits and masks."""

from qkv.models.run._edit_ops import is_plain, scale_in, shape_of

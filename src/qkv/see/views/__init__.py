"""The views, with one file per view."""

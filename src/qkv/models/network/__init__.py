"""The networks of models, independent of files."""

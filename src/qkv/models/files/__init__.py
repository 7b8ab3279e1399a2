"""Find, check, read and write the folders of models."""

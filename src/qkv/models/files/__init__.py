"""What a folder of a model holds: found, checked and read."""

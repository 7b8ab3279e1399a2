"""The parts of models: arithmetic without files."""

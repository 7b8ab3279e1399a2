"""What models are built of: arithmetic that knows nothing of files."""

"""What is shown: a file for each view."""

"""What heads look at, in numbers and in words."""

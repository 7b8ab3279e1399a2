"""The tasks of lesson 12: write stories, train a decoder, and find its induction head."""

"""Data to learn from: made here from known probabilities."""

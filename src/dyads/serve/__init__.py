"""Serving: a trained model over HTTP, and the page that explores it."""

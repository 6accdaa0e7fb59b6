"""Keeps jobs: predictions whose client does not wait, and asks for the result later."""

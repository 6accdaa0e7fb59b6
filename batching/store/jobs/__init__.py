"""Keeps jobs: predictions whose client does not wait, and fetches the result later."""

"""Runs models in Python, and files that need no code: decodes rows, and encodes outputs."""

"""Models in Python, and files that need no code: rows are decoded, run and encoded here."""

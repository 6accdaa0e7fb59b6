"""Tells receivers on the web what became of their jobs."""

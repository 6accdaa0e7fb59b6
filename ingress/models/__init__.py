"""Registers models and waits for their workers; at start, too."""

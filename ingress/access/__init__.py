"""Decides which client may pass: keys and certificates."""

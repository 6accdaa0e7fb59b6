"""Decides which client may pass, counts the answers and writes the access log."""

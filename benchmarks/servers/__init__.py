"""Servers as child processes, of which nothing is left over."""

"""Holds the commands of `ferry`, one per file."""

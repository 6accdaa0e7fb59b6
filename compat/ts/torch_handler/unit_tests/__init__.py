"""Helpers that tests of handlers import."""

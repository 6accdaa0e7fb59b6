"""Keeps the metrics of handlers."""

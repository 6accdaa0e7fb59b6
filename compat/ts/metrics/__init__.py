"""The metrics of handlers."""

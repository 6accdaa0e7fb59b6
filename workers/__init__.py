"""Processes, devices, handlers. Knows nothing about HTTP."""

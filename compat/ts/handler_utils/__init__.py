"""Helps handlers with timing, imports and micro-batching."""

"""Timing, imports and micro-batching for handlers."""

"""Describes registered models: their parameters, their versions, and the state of their workers."""

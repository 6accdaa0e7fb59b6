"""Handlers that archives name instead of bringing their own."""

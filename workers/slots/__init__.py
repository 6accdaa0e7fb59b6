"""Keeps one worker process alive per slot."""

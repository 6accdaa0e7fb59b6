"""Answers predictions: the way from a path and a body to an answer."""

"""Answers predictions: the service that every door shares, and its doors for HTTP."""

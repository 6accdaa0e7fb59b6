"""Submits requests, cancels them, and takes their replies to the clients that wait."""

"""Sends the same requests to two servers and compares what they answer, for `ferry shadow`."""

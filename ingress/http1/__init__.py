"""Speaks HTTP/1.1 and nothing else."""

"""Runs a whole server in one process tree: Redis, an ingress and a node."""

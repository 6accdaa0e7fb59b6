"""Finds the Redis server that holds the keys, behind sentinels or in a cluster."""

"""The only folder that speaks Redis. One `.lua` per verb; its header is its contract."""

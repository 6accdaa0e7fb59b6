"""Holds one Lua script per verb of the queue, and loads them."""

"""Keeps single connections to Redis: held by one caller, and given up when they are lost."""

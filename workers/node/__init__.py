"""Turns what the registry wants into running workers, and tells the registry who is alive."""

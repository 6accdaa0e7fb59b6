"""Turns what the registry wants into running workers, and beats for them."""

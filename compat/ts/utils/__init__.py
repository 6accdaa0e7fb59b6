"""Helps handlers with classes and labels."""

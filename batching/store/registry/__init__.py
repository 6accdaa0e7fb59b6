"""Keeps what is registered, and the control jobs of registering."""

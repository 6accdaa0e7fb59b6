"""Keeps what is registered, and the control jobs for registering."""

"""Fetches archives, checks them, unpacks them and installs their packages."""

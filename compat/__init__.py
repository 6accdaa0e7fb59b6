"""Packages that old handlers import. A worker alone puts this folder on its own path."""

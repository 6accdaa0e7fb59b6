"""Packages that old handlers import. A worker puts this folder on its own path; nothing else does."""

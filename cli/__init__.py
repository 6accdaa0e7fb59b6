"""The `ferry` command."""

"""The same model for servers that take no archives: one file each, run in its environment."""

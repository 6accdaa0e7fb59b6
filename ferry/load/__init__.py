"""Sends load to a server and reports what it did, for `ferry bench`."""

"""Moved to `batching.backoff`; this is for the module that still names the old place."""

from batching.backoff import Backoff

__all__ = ["Backoff"]

"""Moved to `batching.store.outage`; this is for the modules that still name the old place."""

from batching.store.outage import Outage

__all__ = ["Outage"]

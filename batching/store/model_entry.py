"""Moved to `batching.model_entry`; this is for the module that still names the old place."""

from batching.model_entry import ModelEntry, check_names, existing

__all__ = ["ModelEntry", "check_names", "existing"]

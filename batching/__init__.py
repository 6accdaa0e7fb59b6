"""The core: what a request is, how it waits, how a batch forms. No HTTP, no torch."""

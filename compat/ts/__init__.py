"""The `ts` package that TorchServe handlers import, as far as they use it.

Worker processes find it on their own path; it is never installed as a top-level `ts`.
"""

# The TorchServe release whose handler API this is.
__version__ = "0.12.0"

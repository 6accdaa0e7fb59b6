"""Names the TorchServe release whose handler API this is."""

__version__ = "0.12.0"

"""Serves HTTP in TorchServe's dialect. Knows nothing of devices and handlers."""

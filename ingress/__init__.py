"""HTTP in, HTTP out. Knows TorchServe's REST dialect, nothing about devices."""

"""What the `server` image does that a host does not: TorchServe's entry point, and platforms."""

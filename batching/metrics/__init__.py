"""Names and carries the measurements that TorchServe's handlers and logs know."""

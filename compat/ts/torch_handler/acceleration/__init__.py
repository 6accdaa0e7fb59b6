"""Makes TorchServe's image handlers faster at equal answers."""

"""The echo model: one handler file that TorchServe and torchferry serve alike."""

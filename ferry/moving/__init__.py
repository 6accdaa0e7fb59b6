"""Says what a TorchServe becomes here, row by row, for `ferry doctor`."""

"""Finds what the machine has: devices, a torch that is safe."""

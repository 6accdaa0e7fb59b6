"""Finds what the machine has: cores, devices, a torch that is safe."""

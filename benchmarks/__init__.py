"""Measurements, each one command; how to run them and read them: benchmarks/README.md."""

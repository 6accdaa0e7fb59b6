"""The first five minutes beside other servers: `python -m benchmarks.first_model`."""

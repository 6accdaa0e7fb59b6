"""Runs in a worker process: gathers a batch, runs the handler, replies."""

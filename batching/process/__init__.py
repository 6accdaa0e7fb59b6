"""Runs processes: children, siblings, threads, signals, logs and restarts."""

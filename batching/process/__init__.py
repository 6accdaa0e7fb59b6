"""Runs processes: children, threads, signals, logs and restarts."""

"""Asks a running server for predictions and jobs, from Python.

What to send, what to make of the answer and when to try again is written once, in `flows`; the two
clients only carry it out, blocking or not. Its names are those of `import ferry`.
"""

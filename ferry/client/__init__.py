"""Asks a running server for predictions and jobs, from Python.

What to send, what to make of the answer and when to try again is written once, in `flows`; the two
clients only carry it out, blocking or not. Its names are those of `import ferry`.
"""

# From the environment and not from an option: every user of a machine can read its command lines.
TOKEN_VARIABLE = "FERRY_TOKEN"  # noqa: S105 - its name

"""Handlers that compute nothing, for what a server itself costs. They run in TorchServe, too."""

import itertools
import time

_NUMBERS = itertools.count(1)


def echo(data, context):
    """Answers with the bodies as they came, and with nothing to the call made at load."""
    return [row["body"] for row in data or ()]


def label(data, context):
    """Answers with length and last byte of each body, which only a whole body has."""
    return [f"{len(row['body'])} {row['body'][-1]}" for row in data or ()]


def nap(data, context):
    """Takes as long as the longest request says, in ms, and echoes."""
    bodies = [bytes(row["body"]) for row in data or ()]
    if longest_ms := max(map(float, bodies), default=0.0):
        time.sleep(longest_ms / 1000)
    return bodies


def count(data, context):
    """Takes as long as the longest request says, and answers how many batches there have been."""
    return [str(next(_NUMBERS))] * len(nap(data, context)) if data else []

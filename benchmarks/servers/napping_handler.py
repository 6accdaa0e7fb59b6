"""Takes as long as its longest request says, in ms, computes nothing and echoes."""

import time


def handle(data, context):  # noqa: ANN001, ANN201 - the signature is TorchServe's
    """Returns the bodies of the rows as they came; an empty list for the call made at load."""
    bodies = [bytes(row["body"]) for row in data or ()]
    longest_ms = max(map(float, bodies), default=0.0)
    if longest_ms > 0:
        time.sleep(longest_ms / 1000)
    return bodies

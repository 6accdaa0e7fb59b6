"""Prepares a batch, then has the one device of all workers to itself; computes nothing."""

import fcntl
import time


def handle(data, context):  # noqa: ANN001, ANN201 - the signature is TorchServe's
    """Returns the bodies of the rows, which say the ms to prepare and on the device."""
    bodies = [bytes(row["body"]) for row in data or ()]
    if bodies:
        prepare_ms, device_ms = map(float, bodies[0].split())
        time.sleep(prepare_ms / 1000)
        # All workers of a model on a host have the same folder.
        with open(__file__) as device:  # noqa: PTH123
            fcntl.flock(device, fcntl.LOCK_EX)
            time.sleep(device_ms / 1000)
    return bodies

"""Bytes that tell whose they are. Used by clients, and archived beside `patterned_handler.py`."""

from hashlib import blake2b

# What is mixed up in buffers moves by powers of two; in a pattern of this length, that shows.
PERIOD_BYTES = 61


def pattern(name, kind, size_bytes):
    """Returns bytes that no other request has, and no other part of this one."""
    block = blake2b(f"{kind} {name}".encode(), digest_size=PERIOD_BYTES).digest()
    return (block * (size_bytes // PERIOD_BYTES + 1))[:size_bytes]

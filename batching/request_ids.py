"""Makes request ids: UUID4s from the kernel's random source, many per system call."""

import os

_AT_ONCE = 256
_made: list[str] = []  # pop and extend are atomic, so any thread may ask


def fresh_request_id() -> str:
    """Returns a new UUID4 as text: 122 random bits that cannot be guessed.

    A client's x-request-id is never used as an id. Do not call this after a fork.
    """
    while True:
        try:
            return _made.pop()
        except IndexError:
            _made.extend(_uuid4s(os.urandom(16 * _AT_ONCE).hex()))


def _uuid4s(digits: str) -> list[str]:
    ids = []
    for start in range(0, len(digits), 32):
        h = digits[start : start + 32]
        variant = "89ab"[int(h[16], 16) & 3]
        ids.append(f"{h[:8]}-{h[8:12]}-4{h[13:16]}-{variant}{h[17:20]}-{h[20:]}")
    return ids

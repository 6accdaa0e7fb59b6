"""How often a JPEG goes over its pixels: each scan takes time, however few bytes it has."""

import re

# Encoders write some ten. Each takes up to 50 ms at the default limit of pixels.
MOST_SCANS = 50

_START_OF_SCAN = b"\xff\xda"
_END_OF_IMAGE = b"\xff\xd9"
# Of a segment that has a length, as libjpeg finds it. D0 to D8 have none; what is below C0 libjpeg
# skips, and reads no length, when it looks for a restart; FF only fills.
_MARKER = re.compile(rb"\xff[^\x00-\xbf\xd0-\xd8\xff]")


def has_too_many_scans(content: bytes | bytearray) -> bool:
    """Whether a JPEG has more than `MOST_SCANS`; thumbnails, and what follows its end, not counted.

    For what is no JPEG the answer means nothing.
    """
    # No fewer than there are, and quickly counted.
    if content.count(_START_OF_SCAN) <= MOST_SCANS:
        return False
    scans, start = 0, 0
    while scans <= MOST_SCANS and (marker := _MARKER.search(content, start)):
        if marker[0] == _END_OF_IMAGE:
            return False
        scans += marker[0] == _START_OF_SCAN
        # The two bytes of a length count themselves.
        length_bytes = int.from_bytes(content[marker.end() : marker.end() + 2], "big")
        start = marker.end() + max(length_bytes, 2)
    return scans > MOST_SCANS

"""How large a zip's directory is, before `zipfile` reads all of it.

Source: PKWARE APPNOTE 6.3.10, 4.3.14 to 4.3.16 (end of central directory records).
"""

from pathlib import Path

from batching.errors import InvalidModel

_END, _END64, _LOCATOR = b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07"
_END_BYTES, _END64_BYTES, _LOCATOR_BYTES = 22, 56, 20
_TAIL_BYTES = _END64_BYTES + _LOCATOR_BYTES + _END_BYTES + 65_535  # the last is the comment


def zip_directory_bytes(path: Path) -> int:
    """Returns the size of the directory that `zipfile` will read.

    0 for what is no zip, as it will say.

    Raises:
        InvalidModel: the zip's records contradict each other, so that readers disagree.
    """
    with path.open("rb") as stream:
        begin = max(0, stream.seek(0, 2) - _TAIL_BYTES)
        stream.seek(begin)
        tail = stream.read()
    end = _find_end(tail)
    if end < 0:
        return 0
    # The zip64 record and its locator come right before the plain record.
    end64 = end - _LOCATOR_BYTES - _END64_BYTES
    if end64 < 0 or not tail.startswith(_LOCATOR, end64 + _END64_BYTES):
        return int.from_bytes(tail[end + 12 : end + 16], "little")
    stated = int.from_bytes(tail[end - 12 : end - 4], "little")
    if not tail.startswith(_END64, end64) or stated != begin + end64:
        raise InvalidModel(f"{path.name} has its directory elsewhere than it says.")
    return int.from_bytes(tail[end64 + 40 : end64 + 48], "little")


def _find_end(tail: bytes) -> int:
    """Returns where the plain record begins, looked for as `zipfile` does.

    Without a comment it is the last thing in the file; a search from the end would take a field
    of it that reads the same for its beginning.
    """
    end = len(tail) - _END_BYTES
    if end >= 0 and tail.startswith(_END, end) and tail.endswith(b"\0\0"):
        return end
    return tail.rfind(_END)

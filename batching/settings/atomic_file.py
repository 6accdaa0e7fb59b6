"""Writes files that appear whole or not at all."""

import os
import tempfile
from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Writes the text so that no reader ever sees half of it; only the owner may read the file.

    Raises:
        OSError: the file cannot be written. It is as it was, and no other file is left.
    """
    # In the same folder, because a rename cannot leave a file system. mkstemp makes it 0600.
    number, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    unfinished = Path(name)
    try:
        with os.fdopen(number, "w", encoding="utf-8") as stream:
            stream.write(text)
        unfinished.replace(path)
    except BaseException:
        # Each attempt has another name, and a full disk brings many attempts.
        unfinished.unlink(missing_ok=True)
        raise

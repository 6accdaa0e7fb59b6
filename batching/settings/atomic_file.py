"""Files that appear whole or not at all."""

import os
import tempfile
from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Writes the text so that no reader ever sees half of it; only the owner may read the file.

    Raises:
        OSError: it cannot be written; it is as it was, and nothing else lies beside it.
    """
    # Beside it, because a rename cannot leave a file system. mkstemp makes it 0600.
    number, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    unfinished = Path(name)
    try:
        with os.fdopen(number, "w", encoding="utf-8") as stream:
            stream.write(text)
        unfinished.replace(path)
    except BaseException:
        # Nobody else would: each attempt has another name, and a full disk brings many attempts.
        unfinished.unlink(missing_ok=True)
        raise

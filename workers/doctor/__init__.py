"""Examines an archive before it is deployed; nothing of the archive is executed."""

import sys
from pathlib import Path

import compat

# As in a worker process, where handlers find the package `ts`.
_COMPAT_DIR = str(Path(compat.__file__).parent)
if _COMPAT_DIR not in sys.path:
    sys.path.append(_COMPAT_DIR)

"""Examines an archive before it is deployed; nothing of the archive is executed."""

import sys

from workers.machine import ts_folder

# As in a worker process, where handlers find the package `ts`.
_COMPAT_DIR = str(ts_folder())
if _COMPAT_DIR not in sys.path:
    sys.path.append(_COMPAT_DIR)

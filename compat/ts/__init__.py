"""Has the part of TorchServe's package `ts` that handlers import.

Worker processes find it on their own path; it is never installed as a top-level `ts`.
"""

from ts import left_out
from ts.version import __version__

__all__ = ["__version__"]

left_out.install()

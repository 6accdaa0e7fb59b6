"""Has the part of TorchServe's package `ts` that handlers import.

Worker processes find it on their own path; it is never installed as a top-level `ts`.
"""

import sys

from ts.module_finder import ModuleFinder

__version__ = "0.12.0"  # of the TorchServe whose handler API this is

sys.meta_path.insert(0, ModuleFinder())

"""`python -m workers`: a node with its settings from the environment."""

import sys

from batching.process.part import run_part
from workers.node.node import run

if __name__ == "__main__":
    sys.exit(run_part(run))

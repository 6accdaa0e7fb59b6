"""`python -m ingress`: an ingress with its settings from the environment."""

import sys

from batching.process.part import run_part
from ingress.server import run

if __name__ == "__main__":
    sys.exit(run_part(run))

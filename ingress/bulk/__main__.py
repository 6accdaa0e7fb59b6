"""`python -m ingress.bulk`: the feeder with its settings from the environment."""

import sys

from batching.process.entry_point import run_part
from ingress.bulk.feeder import run

if __name__ == "__main__":
    sys.exit(run_part(run))

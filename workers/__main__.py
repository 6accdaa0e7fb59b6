"""`python -m workers`: a node, with its settings from the environment."""

import sys

from batching.settings import Settings
from workers.node import run

sys.exit(run(Settings.load()[0]))

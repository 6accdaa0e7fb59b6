import sys
from pathlib import Path

# As in a worker process: `import ts` finds compat/ts.
sys.path.insert(0, str(Path(__file__).parents[2] / "compat"))

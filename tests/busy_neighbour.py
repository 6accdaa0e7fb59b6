"""Keeps one core busy half of the time while a command runs, as another tenant of a machine would.

python -m tests.busy_neighbour make test
"""

import subprocess
import sys
import time

SLICE_S = 0.05


def main() -> int:
    with subprocess.Popen(sys.argv[1:]) as command:
        while command.poll() is None:
            end = time.perf_counter() + SLICE_S
            while time.perf_counter() < end:
                pass
            time.sleep(SLICE_S)
    return command.returncode


if __name__ == "__main__":
    sys.exit(main())

"""The bare loop as a process that stands where a server stands in a comparison."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Self

from benchmarks.load import BenchmarkError, LoadReport
from benchmarks.records import ROOT
from benchmarks.servers import Job
from workers.worker_environment import ALLOCATOR

COMPAT = ROOT / "compat"


class BareLoop:
    """Each run is a process of its own; between runs there is none."""

    name = "bare loop"
    version = ""

    def __init__(self, job: Job, photo: Path) -> None:
        self._job = job
        self._photo = photo

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is left of a run."""

    def measure(self, seconds: float) -> LoadReport:
        """What the loop did in that many seconds, after it has loaded the model.

        Raises:
            BenchmarkError: the model cannot be loaded, or failed.
        """
        words = (self._job.own_archive, self._photo, self._job.batch_size, seconds)
        # A worker's environment, as far as it matters for speed.
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(self._job.threads))
        run = subprocess.run(
            [sys.executable, "-P", "-m", "benchmarks.bare_loop", *map(str, words)],
            env=ALLOCATOR | os.environ | threads | {"PYTHONPATH": f"{COMPAT}{os.pathsep}{ROOT}"},
            capture_output=True,
            text=True,
            check=False,
        )
        if run.returncode != 0:
            raise BenchmarkError(f"the bare loop failed:\n{run.stderr[-3000:]}")
        return LoadReport(**json.loads(run.stdout.splitlines()[-1]))

"""The bare loop as a process that stands where a server stands in a comparison."""

import json
import os
from pathlib import Path
from typing import Self

from benchmarks.measuring.load import LoadReport
from benchmarks.servers.child import run_module
from benchmarks.servers.server import Job
from workers.slots.worker_process import ALLOCATOR


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
        """Ends the process of a run."""

    def measure(self, seconds: float) -> LoadReport:
        """Measures the loop for that many seconds, after it has loaded the model.

        Raises:
            BenchmarkError: the model cannot be loaded, or failed.
        """
        words = (self._job.own_archive, self._photo, self._job.batch_size, seconds)
        # A worker's environment, as far as it matters for speed.
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(self._job.threads))
        environment = ALLOCATOR | os.environ | threads
        return LoadReport(**json.loads(run_module("bare_loop", *words, environment=environment)))

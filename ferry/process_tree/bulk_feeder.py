"""Starts the process that runs batches of bulk files, where there is a folder for them."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from batching.process.readiness import Launch
from batching.settings.settings import Settings
from ferry.process_tree.log_files import LogFiles
from ferry.process_tree.part_process import PartProcess
from ferry.process_tree.ready_pipe import ReadyPipe
from ferry.process_tree.supervisor import Part, Supervisor

_NAME = "bulk"


@dataclass(frozen=True, slots=True)
class BulkFeeder:
    """Starts the feeder; there is none without a folder."""

    process: PartProcess | None

    def parts(self, stop_share: float) -> list[Part]:
        """Returns what the supervisor starts."""
        return [] if self.process is None else [Part(_NAME, self.process.start, stop_share)]

    def start(self, supervisor: Supervisor) -> None:
        """Starts it; does not wait."""
        if self.process is not None:
            supervisor.start(_NAME)

    def wait(self, supervisor: Supervisor) -> None:
        """Waits until it is ready.

        Raises:
            StartFailed: its folder cannot be used.
        """
        if self.process is not None:
            supervisor.wait_until(self.process.ready.poll, self.process.ready.read_fd)


@contextlib.contextmanager
def prepared_feeder(
    settings: Settings, launch: Launch, logs: LogFiles | None = None
) -> Iterator[BulkFeeder]:
    """Opens the pipe of the feeder, which is not started yet."""
    if settings.data_dir is None:
        yield BulkFeeder(None)
        return
    with contextlib.closing(ReadyPipe()) as ready:
        yield BulkFeeder(PartProcess("ingress.bulk", settings, ready, launch, logs))

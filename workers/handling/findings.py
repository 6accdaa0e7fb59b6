"""Keeps measurements of models on this machine in work_dir/findings.json, for later loads."""

import json
import logging
import os
import platform
from collections.abc import Callable
from pathlib import Path

import msgspec

from batching.settings.files import write_atomically

log = logging.getLogger(__name__)

FILE = "findings.json"
MOST_FINDINGS = 256
MOST_BYTES = 2**20
_PROCESSORS = Path("/proc/cpuinfo")
_NAMES = ("model name", "CPU part")  # ARM has numbers for names


class Findings:
    """Answers questions about one archive that take long to measure.

    If the file cannot be read or written, or holds anything else, things are measured again. When
    two workers write at the same moment, one finding may be lost.
    """

    def __init__(self, work_dir: Path, archive_sha256: str) -> None:
        self._path = work_dir / FILE
        self._archive_sha256 = archive_sha256

    def recall(self, question: str, measure: Callable[[], bool | None]) -> bool | None:
        """Returns the answer of an earlier load, or else of `measure`; does not keep None.

        Args:
            question: names all that the answer depends on, besides archive and processor.
            measure: finds the answer; returns None if it could not.
        """
        key = f"{self._archive_sha256} {question} on={_machine()}"
        if (known := self._read().get(key)) is not None:
            log.info("measured at an earlier load answer=%s file=%s", known, self._path)
            return known
        if (answer := measure()) is not None:
            self._keep(key, answer)
        return answer

    def _read(self) -> dict[str, bool]:
        try:
            with self._path.open("rb") as stream:
                return msgspec.json.decode(stream.read(MOST_BYTES), type=dict[str, bool])
        except (OSError, ValueError, msgspec.DecodeError):
            return {}

    def _keep(self, key: str, answer: bool) -> None:
        # Read once more: measuring takes long, and other workers write meanwhile.
        kept = [*self._read().items(), (key, answer)]
        try:
            write_atomically(self._path, json.dumps(dict(kept[-MOST_FINDINGS:]), indent=0))
        except OSError as error:
            log.warning("measured again at the next load, as it was not kept: %s", error)


def _machine() -> str:
    """Returns the processors and their number: nodes of several machines may share a folder."""
    try:
        lines = _PROCESSORS.read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        lines = []
    names = {line.partition(":")[2].strip() for line in lines if line.startswith(_NAMES)}
    return f"{os.cpu_count()} x {', '.join(sorted(names)) or platform.processor()}"

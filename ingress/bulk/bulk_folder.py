"""The folder of bulk work: files, batches and wishes to cancel, shared by ingresses and feeder.

bulk/lock                  held by the one feeder
bulk/files/ID.jsonl        the lines
bulk/files/ID.json         their record; a file without one is not finished, and not shown
bulk/batches/ID.json       the record of a batch, written by the feeder once it is created
bulk/batches/ID.cancel     empty: a client wants it cancelled
"""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from batching.settings.files import write_atomically
from ingress.bulk.bulk_errors import BatchNotFound, FileNotFound
from ingress.bulk.bulk_records import BATCH_ID, FILE_ID, Batch, BulkFile

log = logging.getLogger(__name__)

_Record = TypeVar("_Record", Batch, BulkFile)


class BulkFolder:
    """Reads and writes the records; no state of its own."""

    def __init__(self, data_dir: Path) -> None:
        self.path = data_dir / "bulk"
        self._files = self.path / "files"
        self._batches = self.path / "batches"

    def create(self) -> None:
        """Makes the folders, which only this user can read.

        Raises:
            OSError: that cannot be.
        """
        for folder in (self._files, self._batches):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    @property
    def changed_ns(self) -> int:
        """Returns another number after each change of a batch or wish to cancel one."""
        return self._batches.stat().st_mtime_ns

    def lines_path(self, file_id: str) -> Path:
        return self._files / f"{file_id}.jsonl"

    def save_file(self, file: BulkFile) -> None:
        """Shows the file, whose lines are written."""
        write_atomically(self._files / f"{file.file_id}.json", _text(file))

    def file(self, file_id: str) -> BulkFile:
        """Returns the record of a file.

        Raises:
            FileNotFound: there is none of this id.
        """
        known = FILE_ID.fullmatch(file_id) and _read(self._files / f"{file_id}.json", BulkFile)
        if not known:
            raise FileNotFound(f"File not found: {file_id[:64]}")
        return known

    def files(self) -> list[BulkFile]:
        """Returns all files, newest first."""
        return _newest_first(self._files, BulkFile)

    def delete_file(self, file_id: str) -> None:
        # The record first: what has none is not shown, and deleted some time.
        (self._files / f"{file_id}.json").unlink(missing_ok=True)
        self.lines_path(file_id).unlink(missing_ok=True)

    def unshown_files(self) -> Iterator[Path]:
        """Yields files of lines that have no record."""
        for path in self._files.glob("*.jsonl"):
            if not path.with_suffix(".json").exists():
                yield path

    def save_batch(self, batch: Batch) -> None:
        write_atomically(self._batches / f"{batch.batch_id}.json", _text(batch))

    def batch(self, batch_id: str) -> Batch:
        """Returns the record of a batch.

        Raises:
            BatchNotFound: there is none of this id.
        """
        known = BATCH_ID.fullmatch(batch_id) and _read(self._batches / f"{batch_id}.json", Batch)
        if not known:
            raise BatchNotFound(f"Batch not found: {batch_id[:64]}")
        return known

    def batches(self) -> list[Batch]:
        """Returns all batches, newest first."""
        return _newest_first(self._batches, Batch)

    def batch_ids(self) -> set[str]:
        """Returns the ids of all batches, whose records may be unreadable."""
        return {path.stem for path in self._batches.glob("*.json")}

    def delete_batch(self, batch_id: str) -> None:
        (self._batches / f"{batch_id}.json").unlink(missing_ok=True)
        self._cancel_path(batch_id).unlink(missing_ok=True)

    def ask_to_cancel(self, batch_id: str) -> None:
        self._cancel_path(batch_id).touch(mode=0o600)

    def is_to_cancel(self, batch_id: str) -> bool:
        return self._cancel_path(batch_id).exists()

    def _cancel_path(self, batch_id: str) -> Path:
        return self._batches / f"{batch_id}.cancel"


def _text(record: Batch | BulkFile) -> str:
    return msgspec.json.encode(record).decode()


def _newest_first(folder: Path, kind: type[_Record]) -> list[_Record]:
    paths = sorted(folder.glob("*.json"))  # those of one second by id
    known = [record for path in paths if (record := _read(path, kind)) is not None]
    return sorted(known, key=lambda record: record.created_at)[::-1]


def _read(path: Path, kind: type[_Record]) -> _Record | None:
    with contextlib.suppress(FileNotFoundError):
        try:
            return msgspec.json.decode(path.read_bytes(), type=kind)
        except msgspec.DecodeError as error:
            log.error("unreadable record %s: %s", path, error)
    return None

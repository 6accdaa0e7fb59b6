"""Keeps all files and batches in a folder, with a record of each as JSON.

lock                  held by the one process that uses the folder
files/ID.jsonl        the lines
files/ID.json         their record; a file without one is not finished, and not shown
batches/ID.json       the record of a batch, written by the feeder once it is created
batches/ID.cancel     empty: a client wants it cancelled

A record is the document that clients see. Times are Unix seconds.
"""

import contextlib
import datetime
import fcntl
import json
import logging
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, TypeAlias

log = logging.getLogger(__name__)

Record: TypeAlias = dict[str, Any]

KEPT_S = 30 * 86_400  # of files by default, and of a batch's record after its end
FINAL = frozenset({"completed", "failed", "expired", "cancelled"})
_UNSHOWN_KEPT_S = 86_400
_COPY_BYTES = 1024 * 1024
_ID = re.compile(r"(?:batch_|file-)[0-9a-f]{32}(?:-output|-errors)?")


class Refused(Exception):
    """Refuses a request, in TorchServe's form."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.document = {"code": status, "type": kind, "message": message}


class BulkFolder:
    """Reads and writes lines and records; keeps no state of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files = path / "files"
        self._batches = path / "batches"

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Makes the folders, which only this user can read, and keeps other processes out.

        Raises:
            OSError: the folder cannot be used, or another process uses it.
        """
        for folder in (self._files, self._batches):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self.path / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise OSError(f"another ferry-bulk uses {self.path}") from error
            yield

    def lines_path(self, file_id: str) -> Path:
        return self._files / f"{file_id}.jsonl"

    def add_file(self, content: IO[bytes], filename: str, ttl_s: int) -> Record:
        """Writes the lines of a file; returns its record."""
        file_id = f"file-{secrets.token_hex(16)}"
        path = self.lines_path(file_id)
        try:
            with path.open("xb") as stream:
                shutil.copyfileobj(content, stream, _COPY_BYTES)
                stream.flush()
                os.fsync(stream.fileno())
            return self.show_file(file_id, filename, "batch", ttl_s)
        except BaseException:
            path.unlink()
            raise

    def show_file(self, file_id: str, filename: str, purpose: str, ttl_s: int) -> Record:
        """Lets clients see a file whose lines are written; returns its record."""
        created = now_s()
        record = {
            "id": file_id,
            "object": "file",
            "bytes": self.lines_path(file_id).stat().st_size,
            "created_at": created,
            "expires_at": created + ttl_s,
            "filename": filename,
            "purpose": purpose,
            "status": "processed",
        }
        _write(self._files / f"{file_id}.json", record)
        return record

    def file(self, file_id: str) -> Record:
        return _known(self._files, file_id, "File")

    def files(self) -> list[Record]:
        return _newest_first(self._files)

    def delete_file(self, file_id: str) -> None:
        # The record first: lines without a record are not shown, and are swept later.
        (self._files / f"{file_id}.json").unlink(missing_ok=True)
        self.lines_path(file_id).unlink(missing_ok=True)

    def save_batch(self, batch: Record) -> None:
        _write(self._batches / f"{batch['id']}.json", batch)

    def batch(self, batch_id: str) -> Record:
        return _known(self._batches, batch_id, "Batch")

    def batches(self) -> list[Record]:
        return _newest_first(self._batches)

    def batch_ids(self) -> set[str]:
        """Returns the ids of all batches, including those with unreadable records."""
        return {path.stem for path in self._batches.glob("*.json")}

    def ask_to_cancel(self, batch_id: str) -> None:
        (self._batches / f"{batch_id}.cancel").touch(mode=0o600)

    def is_to_cancel(self, batch_id: str) -> bool:
        return (self._batches / f"{batch_id}.cancel").exists()

    def sweep(self) -> None:
        """Deletes files whose time is over, and batches that ended long ago."""
        now = now_s()
        used: set[str] = set()
        for batch in self.batches():
            if batch["status"] not in FINAL:
                used |= {batch["input_file_id"], *output_ids(batch)}
            elif (batch[f"{batch['status']}_at"] or now) + KEPT_S <= now:
                (self._batches / f"{batch['id']}.json").unlink(missing_ok=True)
                (self._batches / f"{batch['id']}.cancel").unlink(missing_ok=True)
        for file in self.files():
            if file["expires_at"] <= now and file["id"] not in used:
                self.delete_file(file["id"])
                log.info("deleted file %s", file["id"])
        for path in self._files.glob("*.jsonl"):
            is_shown = path.stem in used or path.with_suffix(".json").exists()
            # Without a record it is being written, or this process was killed meanwhile.
            if not is_shown and path.stat().st_mtime < now - _UNSHOWN_KEPT_S:
                path.unlink(missing_ok=True)


def entering(batch: Record, status: str, **changes: Any) -> Record:
    """Returns the batch with this status, entered now."""
    return {**batch, "status": status, f"{status}_at": now_s(), **changes}


def output_ids(batch: Record) -> tuple[str, str]:
    """Returns the ids of a batch's output and error files, which may not exist yet."""
    name = batch["id"].removeprefix("batch_")
    return f"file-{name}-output", f"file-{name}-errors"


def now_s() -> int:
    return int(datetime.datetime.now(datetime.UTC).timestamp())


def _write(path: Path, record: Record) -> None:
    """Writes a record so that no reader ever sees half of it."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.stem}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            json.dump(record, stream)
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).replace(path)
    except BaseException:
        # On a full disk each of many attempts would leave a file.
        Path(name).unlink(missing_ok=True)
        raise


def _read(path: Path) -> Record | None:
    with contextlib.suppress(FileNotFoundError):
        try:
            record: Record = json.loads(path.read_bytes())
            return record
        except ValueError as error:
            log.error("unreadable record %s: %s", path, error)
    return None


def _known(folder: Path, record_id: str, kind: str) -> Record:
    """Returns the record of this id; raises Refused if there is none."""
    if _ID.fullmatch(record_id) and (record := _read(folder / f"{record_id}.json")):
        return record
    raise Refused(404, f"{kind}NotFoundException", f"{kind} not found: {record_id[:64]}")


def _newest_first(folder: Path) -> list[Record]:
    records = filter(None, map(_read, folder.glob("*.json")))
    return sorted(records, key=lambda record: (record["created_at"], record["id"]), reverse=True)

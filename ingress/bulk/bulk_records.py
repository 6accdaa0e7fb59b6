"""What is kept of a file and of a batch, as JSON beside the files. Times are Unix seconds."""

import datetime
import re
import secrets
from enum import StrEnum
from typing import Any

import msgspec

_ID_BITS_HEX = 16
FILE_ID = re.compile(r"file-[0-9a-f]{32}(?:-output|-errors)?")
BATCH_ID = re.compile(r"batch_[0-9a-f]{32}")


class BatchStatus(StrEnum):
    """Where a batch is; the last four are final."""

    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return self in {
            BatchStatus.COMPLETED,
            BatchStatus.FAILED,
            BatchStatus.EXPIRED,
            BatchStatus.CANCELLED,
        }


class BulkFile(msgspec.Struct, frozen=True):
    """One file: an input that was uploaded, or the output of a batch."""

    file_id: str
    size_bytes: int
    created_at: int
    filename: str
    purpose: str
    expires_at: int

    def document(self) -> dict[str, Any]:
        """Returns what clients see."""
        return {
            "id": self.file_id,
            "object": "file",
            "bytes": self.size_bytes,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
        }


class Counts(msgspec.Struct, frozen=True):
    """Counts the lines of a batch: all, those in its output file, and those in its error file."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class Batch(msgspec.Struct, frozen=True, omit_defaults=True):
    """One batch. Only the feeder writes it after it was created.

    `moments` is when it came to which status; `output_ttl_s` for how long its files are kept.
    """

    batch_id: str
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: int
    expires_at: int
    output_ttl_s: int
    metadata: dict[str, str] | None = None
    status: BatchStatus = BatchStatus.VALIDATING
    counts: Counts = Counts()
    moments: dict[str, int] = {}
    output_file_id: str | None = None
    error_file_id: str | None = None
    error: str = ""

    @property
    def output_id(self) -> str:
        """Returns the id that its output file has once there is one."""
        return f"file-{self.batch_id.removeprefix('batch_')}-output"

    @property
    def errors_id(self) -> str:
        """Returns the id that its error file has once there is one."""
        return f"file-{self.batch_id.removeprefix('batch_')}-errors"

    def entering(self, status: BatchStatus) -> "Batch":
        """Returns the batch in this status from now on."""
        moments = {**self.moments, status.value: now_s()}
        return msgspec.structs.replace(self, status=status, moments=moments)

    def document(self, *, is_cancelling: bool = False) -> dict[str, Any]:
        """Returns what clients see.

        Args:
            is_cancelling: whether a client has asked to cancel it.
        """
        status = self.status
        if is_cancelling and not status.is_final:
            status = BatchStatus.CANCELLING
        error = {"code": "invalid_input", "message": self.error, "line": None, "param": None}
        moments = {f"{one}_at": self.moments.get(one) for one in BatchStatus if one != "validating"}
        return {
            "id": self.batch_id,
            "object": "batch",
            "endpoint": self.endpoint,
            "errors": {"object": "list", "data": [error]} if self.error else None,
            "input_file_id": self.input_file_id,
            "completion_window": self.completion_window,
            "status": status.value,
            "output_file_id": self.output_file_id,
            "error_file_id": self.error_file_id,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            **moments,
            "request_counts": msgspec.structs.asdict(self.counts),
            "metadata": self.metadata,
        }


def new_file_id() -> str:
    return f"file-{secrets.token_hex(_ID_BITS_HEX)}"


def new_batch_id() -> str:
    return f"batch_{secrets.token_hex(_ID_BITS_HEX)}"


def now_s() -> int:
    return int(datetime.datetime.now(datetime.UTC).timestamp())

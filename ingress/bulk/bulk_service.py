"""What clients may do with files and batches. Knows no HTTP; reads and writes the folder only."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO, TypeVar

from batching.errors import BadRequest
from ingress.bulk.bulk_errors import FileInUse
from ingress.bulk.bulk_folder import BulkFolder
from ingress.bulk.bulk_records import Batch, BulkFile, new_batch_id, new_file_id, now_s

KEPT_S = 30 * 86_400  # a file that says nothing else
_SHORTEST_S, _LONGEST_S = 3_600, 30 * 86_400
_WINDOW = re.compile(r"([1-9]\d{0,3})([hd])")
_UNIT_S = {"h": 3_600, "d": 86_400}
_ENDPOINT = re.compile(r"/predictions(?:/[^/\s]+){0,2}")
_MOST_METADATA, _LONGEST_KEY, _LONGEST_VALUE = 16, 64, 512

_T = TypeVar("_T")


class Upload:
    """A file that is being written; it is shown once `finish` was called."""

    def __init__(self, folder: BulkFolder, filename: str, ttl_s: int = KEPT_S) -> None:
        self._folder = folder
        self._file_id = new_file_id()
        self._filename = filename
        self._ttl_s = ttl_s
        self.path = folder.lines_path(self._file_id)

    def open(self) -> BinaryIO:
        """Opens the file for its bytes.

        Raises:
            OSError: that cannot be.
        """
        stream = self.path.open("w+b")
        self.path.chmod(0o600)
        return stream

    def finish(self, ttl_s: int | None = None) -> BulkFile:
        """Shows the file, which is whole and on the disk."""
        created = now_s()
        expires = created + (ttl_s or self._ttl_s)
        size_bytes = self.path.stat().st_size
        file = BulkFile(self._file_id, size_bytes, created, self._filename, "batch", expires)
        self._folder.save_file(file)
        return file

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)


class BulkService:
    """Creates, shows and ends files and batches."""

    def __init__(self, folder: BulkFolder) -> None:
        self.folder = folder

    def delete_file(self, file_id: str) -> None:
        """Deletes a file that no batch still reads.

        Raises:
            FileNotFound: there is none of this id.
            FileInUse: a batch reads it.
        """
        self.folder.file(file_id)
        for batch in self.folder.batches():
            if batch.input_file_id == file_id and not batch.status.is_final:
                raise FileInUse(f"{batch.batch_id} reads this file. Cancel it first.")
        self.folder.delete_file(file_id)

    def create_batch(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Creates a batch, which the feeder finds.

        Raises:
            BadRequest: a value that cannot be.
            FileNotFound: there is no such input.
        """
        file_id = asked.get("input_file_id")
        if not isinstance(file_id, str):
            raise BadRequest("input_file_id must be the id of a file.")
        file = self.folder.file(file_id)
        if file.purpose != "batch":
            raise BadRequest("input_file_id must be of a file with purpose batch.")
        endpoint = asked.get("endpoint")
        if not isinstance(endpoint, str) or not _ENDPOINT.fullmatch(endpoint):
            raise BadRequest("endpoint must be /predictions, or /predictions/NAME[/VERSION].")
        window, created = asked.get("completion_window", "24h"), now_s()
        batch = Batch(
            batch_id=new_batch_id(),
            endpoint=endpoint,
            input_file_id=file_id,
            completion_window=window,
            created_at=created,
            expires_at=created + read_window_s(window),
            output_ttl_s=read_expiry_s(asked.get("output_expires_after")) or KEPT_S,
            metadata=_read_metadata(asked.get("metadata")),
        )
        self.folder.save_batch(batch)
        return batch.document()

    def show_batch(self, batch_id: str) -> dict[str, Any]:
        """Returns the document of a batch.

        Raises:
            BatchNotFound: there is none of this id.
        """
        return self._document(self.folder.batch(batch_id))

    def cancel_batch(self, batch_id: str) -> dict[str, Any]:
        """Has the feeder cancel a batch; one that has ended stays as it is.

        Raises:
            BatchNotFound: there is none of this id.
        """
        batch = self.folder.batch(batch_id)
        if not batch.status.is_final:
            self.folder.ask_to_cancel(batch_id)
        return self._document(batch)

    def list_batches(self, limit: int, after: str) -> dict[str, Any]:
        batches = self.folder.batches()
        return _page(batches, self._document, lambda one: one.batch_id, limit, after)

    def list_files(self, limit: int, after: str, purpose: str) -> dict[str, Any]:
        files = [file for file in self.folder.files() if purpose in {"", file.purpose}]
        return _page(files, BulkFile.document, lambda one: one.file_id, limit, after)

    def _document(self, batch: Batch) -> dict[str, Any]:
        return batch.document(is_cancelling=self.folder.is_to_cancel(batch.batch_id))


def read_window_s(text: Any) -> int:
    """Returns how long a batch may take.

    Raises:
        BadRequest: it is no such time.
    """
    found = _WINDOW.fullmatch(text) if isinstance(text, str) else None
    window_s = int(found[1]) * _UNIT_S[found[2]] if found else 0
    if not 0 < window_s <= _LONGEST_S:
        raise BadRequest("completion_window must be hours or days, as 24h or 7d; at most 30d.")
    return window_s


def read_expiry_s(asked: Any) -> int | None:
    """Returns for how long files are to be kept, None if that is not said.

    Raises:
        BadRequest: it is no such time.
    """
    if asked is None:
        return None
    asked = asked if isinstance(asked, dict) else {}
    anchor, seconds = asked.get("anchor"), asked.get("seconds", 0)
    is_whole = isinstance(seconds, int) and not isinstance(seconds, bool)
    if anchor != "created_at" or not is_whole or not _SHORTEST_S <= seconds <= _LONGEST_S:
        raise BadRequest(
            'The time that files are kept must be {"anchor": "created_at", "seconds": n}, with n '
            f"from {_SHORTEST_S} to {_LONGEST_S}."
        )
    return int(seconds)


def _read_metadata(asked: Any) -> dict[str, str] | None:
    if asked is None:
        return None
    is_fit = (
        isinstance(asked, dict)
        and len(asked) <= _MOST_METADATA
        and all(len(key) <= _LONGEST_KEY for key in asked)
        and all(isinstance(one, str) and len(one) <= _LONGEST_VALUE for one in asked.values())
    )
    if not is_fit:
        raise BadRequest("metadata must be at most 16 texts of up to 512 characters, by name.")
    return dict(asked)


def _page(
    found: Sequence[_T],
    show: Callable[[_T], dict[str, Any]],
    name: Callable[[_T], str],
    limit: int,
    after: str,
) -> dict[str, Any]:
    """Returns a page of a list as OpenAI's clients read it.

    Raises:
        BadRequest: `after` is the id of none, or no longer.
    """
    names = [name(one) for one in found]
    if after and after not in names:
        raise BadRequest(f"after must be an id of the list: {after[:64]}. Begin again without it.")
    start = names.index(after) + 1 if after else 0
    end = start + limit
    return {
        "object": "list",
        "data": [show(one) for one in found[start:end]],
        "first_id": names[start] if start < len(names) else None,
        "last_id": names[min(end, len(names)) - 1] if start < len(names) else None,
        "has_more": end < len(names),
    }

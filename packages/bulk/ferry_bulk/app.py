"""Answers clients: files and batches, as OpenAI's clients ask for them."""

import contextlib
import hmac
import json
import os
import re
import secrets
from collections.abc import Callable, Sequence
from typing import Any

import flask
from flask import Flask, Response, request
from flask.json.provider import DefaultJSONProvider
from werkzeug.exceptions import HTTPException

from ferry_bulk.folder import FINAL, KEPT_S, BulkFolder, Record, Refused, now_s

# Beside the file, a form has a few short values.
FORM_BYTES = 64 * 1024
_USUAL_PAGE, _LONGEST_PAGE = 100, 10_000
_SHORTEST_KEPT_S = 3_600
_LIMIT = re.compile(r"0*([1-9][0-9]{0,8})")
_WINDOW = re.compile(r"([1-9]\d{0,3})([hd])")
_UNIT_S = {"h": 3_600, "d": 86_400}
_ENDPOINT = re.compile(r"/predictions(?:/[^/\s]+){0,2}")
_MOST_METADATA, _LONGEST_KEY, _LONGEST_VALUE = 16, 64, 512
_HARMLESS_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class BulkApp(Flask):
    """Serves files and batches; clients have to send the token, if there is one."""

    def __init__(self, folder: BulkFolder, *, max_file_bytes: int, token: str = "") -> None:
        super().__init__(__name__)
        self._folder = folder
        self._max_file_bytes = max_file_bytes
        self._token = token
        self.config["MAX_FORM_MEMORY_SIZE"] = 4 * FORM_BYTES  # what is read at a time counts, too
        self.config["MAX_FORM_PARTS"] = 20
        self.json = DefaultJSONProvider(self)
        self.json.compact = self.json.sort_keys = False
        self.url_map.strict_slashes = False
        for route, view in (
            ("GET /ping", lambda: {"status": "Healthy"}),
            ("POST /v1/files", self._upload),
            ("GET /v1/files", self._list_files),
            ("GET /v1/files/<file_id>", folder.file),
            ("DELETE /v1/files/<file_id>", self._delete_file),
            ("GET /v1/files/<file_id>/content", self._download),
            ("POST /v1/batches", self._create_batch),
            ("GET /v1/batches", lambda: _page(folder.batches(), self._shown)),
            (
                "GET /v1/batches/<batch_id>",
                lambda batch_id: self._shown(folder.batch(batch_id)),
            ),
            ("POST /v1/batches/<batch_id>/cancel", self._cancel_batch),
        ):
            method, path = route.split()
            self.add_url_rule(path, route, view, methods=[method])
        self.before_request(self._admit)
        self.register_error_handler(Refused, lambda error: (error.document, error.status))
        self.register_error_handler(HTTPException, _refused_by_flask)
        self.register_error_handler(OSError, _refused_by_disk)

    def _admit(self) -> None:
        """Refuses clients without the token, and web pages that would change something."""
        # Loopback needs no token, but any page in a browser on this machine can post to it.
        # Browsers send `Origin`; curl and SDKs do not.
        if request.method not in _HARMLESS_METHODS and request.headers.get("Origin"):
            raise Refused(403, "IllegalArgumentException", "Web pages may not change files.")
        sent = request.headers.get("Authorization", "").removeprefix("Bearer ").strip()
        is_known = hmac.compare_digest(sent.encode(), self._token.encode())
        if self._token and not is_known and request.path != "/ping":
            message = "Token authorization failed. Send Authorization: Bearer TOKEN."
            raise Refused(401, "InvalidKeyException", message)

    def _upload(self) -> Record:
        if request.mimetype != "multipart/form-data":
            raise _bad("A file is sent as multipart/form-data.")
        message = f"A file may have {self._max_file_bytes} bytes (--max-file-size)."
        too_large = Refused(413, "FileTooLargeException", message)
        if (request.content_length or 0) > self._max_file_bytes + FORM_BYTES:
            raise too_large
        form, uploads = request.form, [*request.files.listvalues()]
        if sum(map(len, uploads)) != 1:
            raise _bad(f"The form has {'more than one' if uploads else 'no'} file.")
        if form.get("purpose") != "batch":
            raise _bad("purpose must be batch.")
        expiry: Record = {
            name[len("expires_after[") : -1]: value
            for name, value in form.items()
            if name.startswith("expires_after[")
        }
        with contextlib.suppress(ValueError, KeyError):
            expiry["seconds"] = json.loads(expiry["seconds"])
        ttl_s = read_expiry_s(expiry or None)
        [[upload]] = uploads
        if upload.stream.seek(0, os.SEEK_END) > self._max_file_bytes:
            raise too_large
        upload.stream.seek(0)
        return self._folder.add_file(upload.stream, (upload.filename or "")[:255], ttl_s)

    def _list_files(self) -> Record:
        purpose = request.args.get("purpose", "")
        files = [file for file in self._folder.files() if purpose in {"", file["purpose"]}]
        return _page(files, lambda file: file)

    def _delete_file(self, file_id: str) -> Record:
        self._folder.file(file_id)
        for batch in self._folder.batches():
            if batch["input_file_id"] == file_id and batch["status"] not in FINAL:
                message = f"{batch['id']} reads this file. Cancel it first."
                raise Refused(409, "FileInUseException", message)
        self._folder.delete_file(file_id)
        return {"id": file_id, "object": "file", "deleted": True}

    def _download(self, file_id: str) -> Response:
        self._folder.file(file_id)
        path = self._folder.lines_path(file_id).absolute()
        return flask.send_file(path, mimetype="application/jsonl", max_age=0)

    def _create_batch(self) -> Record:
        asked = request.get_json(silent=True, force=True)
        if not isinstance(asked, dict):
            raise _bad("The request body is not a JSON object.")
        file_id, endpoint = asked.get("input_file_id"), asked.get("endpoint")
        if not isinstance(file_id, str):
            raise _bad("input_file_id must be the id of a file.")
        if self._folder.file(file_id)["purpose"] != "batch":
            raise _bad("input_file_id must be of a file with purpose batch.")
        if not isinstance(endpoint, str) or not _ENDPOINT.fullmatch(endpoint):
            raise _bad("endpoint must be /predictions, or /predictions/NAME[/VERSION].")
        window, created = asked.get("completion_window", "24h"), now_s()
        times = ("in_progress", "finalizing", "completed", "failed", "expired")
        batch = {
            "id": f"batch_{secrets.token_hex(16)}",
            "object": "batch",
            "endpoint": endpoint,
            "errors": None,
            "input_file_id": file_id,
            "completion_window": window,
            "status": "validating",
            "output_file_id": None,
            "error_file_id": None,
            "created_at": created,
            "expires_at": created + read_window_s(window),
            **{f"{status}_at": None for status in (*times, "cancelling", "cancelled")},
            "request_counts": {"total": 0, "completed": 0, "failed": 0},
            "metadata": read_metadata(asked.get("metadata")),
            "output_expires_after": {
                "anchor": "created_at",
                "seconds": read_expiry_s(asked.get("output_expires_after")),
            },
        }
        self._folder.save_batch(batch)
        return batch

    def _cancel_batch(self, batch_id: str) -> Record:
        """Has the feeder cancel the batch, unless it has ended."""
        batch = self._folder.batch(batch_id)
        if batch["status"] not in FINAL:
            self._folder.ask_to_cancel(batch_id)
        return self._shown(batch)

    def _shown(self, batch: Record) -> Record:
        is_cancelling = batch["status"] not in FINAL and self._folder.is_to_cancel(batch["id"])
        return {**batch, "status": "cancelling"} if is_cancelling else batch


def read_window_s(text: Any) -> int:
    """Returns how long a batch may take, in seconds: `24h` or `7d`."""
    window = _WINDOW.fullmatch(text) if isinstance(text, str) else None
    window_s = int(window[1]) * _UNIT_S[window[2]] if window else 0
    if not 0 < window_s <= KEPT_S:
        raise _bad("completion_window must be hours or days, as 24h or 7d; at most 30d.")
    return window_s


def read_expiry_s(asked: Any) -> int:
    """Returns for how many seconds files are kept."""
    if asked is None:
        return KEPT_S
    asked = asked if isinstance(asked, dict) else {}
    anchor, seconds = asked.get("anchor"), asked.get("seconds")
    is_right = anchor == "created_at" and type(seconds) is int
    if not is_right or not _SHORTEST_KEPT_S <= seconds <= KEPT_S:
        raise _bad(
            'The time that files are kept must be {"anchor": "created_at", "seconds": n}, with n '
            f"from {_SHORTEST_KEPT_S} to {KEPT_S}."
        )
    return int(seconds)


def read_metadata(asked: Any) -> dict[str, str] | None:
    """Returns the texts that a client keeps with its batch."""
    if asked is None:
        return None
    is_fit = (
        isinstance(asked, dict)
        and len(asked) <= _MOST_METADATA
        and all(len(key) <= _LONGEST_KEY for key in asked)
        and all(isinstance(it, str) and len(it) <= _LONGEST_VALUE for it in asked.values())
    )
    if not is_fit:
        raise _bad("metadata must be at most 16 texts of up to 512 characters, by name.")
    return dict(asked)


def _page(records: Sequence[Record], show: Callable[[Record], Record]) -> Record:
    limit_text, after = request.args.get("limit", ""), request.args.get("after", "")
    limit = _LIMIT.fullmatch(limit_text or str(_USUAL_PAGE))
    if limit is None:
        raise _bad(
            f"limit must be a whole number, 1 or more; a page has {_USUAL_PAGE} entries without "
            f"it, and {_LONGEST_PAGE:,} at most."
        )
    names = [record["id"] for record in records]
    if after and after not in names:
        raise _bad(f"after must be an id of the list: {after[:64]}. Begin again without it.")
    start = names.index(after) + 1 if after else 0
    end = start + min(int(limit[1]), _LONGEST_PAGE)
    return {
        "object": "list",
        "data": [show(record) for record in records[start:end]],
        "first_id": names[start] if start < len(names) else None,
        "last_id": names[start:end][-1] if start < len(names) else None,
        "has_more": end < len(names),
    }


def _bad(message: str) -> Refused:
    return Refused(400, "BadRequestException", message)


def _refused_by_flask(error: HTTPException) -> tuple[Record, int]:
    status, kind = error.code or 500, f"{error.name.replace(' ', '')}Exception"
    return {"code": status, "type": kind, "message": error.description}, status


def _refused_by_disk(error: OSError) -> tuple[Record, int]:
    message = f"The file cannot be written: {error.strerror}."
    return {"code": 507, "type": "FileNotWrittenException", "message": message}, 507

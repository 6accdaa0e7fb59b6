"""Answers the routes of bulk work: files and batches, as OpenAI's clients ask for them."""

import contextlib
import json
import os
import re
from collections.abc import Iterator
from typing import IO, Any

from flask import Blueprint, Response, request
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.formparser import FormDataParser

from batching.errors import BadRequest, ServeError
from ingress.bulk.bulk_errors import BulkForbidden, FileNotWritten, FileTooLarge, NoDataDir
from ingress.bulk.bulk_folder import BulkFolder
from ingress.bulk.bulk_records import BulkFile
from ingress.bulk.bulk_service import BulkService, Upload, read_expiry_s
from ingress.rest.paging import read_limit
from ingress.rest.responses import PlainResponse, json_response
from ingress.rest.rules import add_routes
from ingress.rest.web_pages import refuse_web_pages
from ingress.role import Role
from ingress.services import Services
from ingress.torchserve.bulk_routes import BULK

# Beside the file, a form has a few short values.
_FORM_BYTES = 64 * 1024
_PIECE_BYTES = 1024 * 1024
_MOST_LISTED = 10_000  # of a page
_EXPIRY = re.compile(r"expires_after\[(\w+)\]")


def bulk_blueprint(services: Services, role: Role) -> Blueprint:
    """Returns the routes of bulk work, for one port."""
    settings = services.settings
    blueprint = Blueprint("bulk", __name__)

    @blueprint.before_request
    def admit() -> None:
        if role is Role.INFERENCE and not settings.bulk_with_inference_key:
            raise BulkForbidden(
                "Files and batches are on the management port. With bulk_with_inference_key=true "
                "they are here, too."
            )
        refuse_web_pages(settings.cors_allowed_origin)
        if settings.data_dir is None:
            raise NoDataDir("Files need a folder: start the server with --data-dir.")

    if settings.data_dir is not None:
        folder = BulkFolder(settings.data_dir)
        view = _BulkView(BulkService(folder), settings.bulk_max_file_size_bytes)
        add_routes(blueprint, view, BULK)
    else:
        add_routes(blueprint, _NoView(), BULK)
    return blueprint


class _NoView:
    """Stands for the view where `admit` refuses all."""

    def __getattr__(self, name: str) -> Any:
        return lambda **_: None


class _BulkView:
    def __init__(self, service: BulkService, max_file_bytes: int) -> None:
        self._service = service
        self._folder = service.folder
        self._max_file_bytes = max_file_bytes

    def upload(self) -> Response:
        if request.mimetype != "multipart/form-data":
            raise BadRequest("A file is sent as multipart/form-data.")
        limit_bytes = self._max_file_bytes + _FORM_BYTES
        if (request.content_length or 0) > limit_bytes:
            raise self._too_large()
        request.max_content_length = limit_bytes
        received = _Received(self._folder)
        try:
            with _written():
                file = self._receive(received)
        except BaseException:
            received.discard()
            raise
        finally:
            received.close()
        return json_response(file.document())

    def _receive(self, received: "_Received") -> BulkFile:
        self._folder.create()
        form = self._parse(received)
        if received.upload is None or received.stream is None:
            raise BadRequest("The form has no file.")
        if form.get("purpose") != "batch":
            raise BadRequest("purpose must be batch.")
        received.stream.flush()
        os.fsync(received.stream.fileno())
        if received.upload.path.stat().st_size > self._max_file_bytes:
            raise self._too_large()
        return received.upload.finish(read_expiry_s(_expiry(form)))

    def list_files(self) -> Response:
        purpose = request.args.get("purpose", "")
        return json_response(self._service.list_files(*_paging(), purpose))

    def show_file(self, file_id: str) -> Response:
        return json_response(self._folder.file(file_id).document())

    def delete_file(self, file_id: str) -> Response:
        self._service.delete_file(file_id)
        return json_response({"id": file_id, "object": "file", "deleted": True})

    def download(self, file_id: str) -> Response:
        self._folder.file(file_id)
        stream = self._folder.lines_path(file_id).open("rb")
        response = PlainResponse(_pieces(stream))
        response.headers["content-type"] = "application/jsonl"
        response.call_on_close(stream.close)
        return response

    def create_batch(self) -> Response:
        asked = request.get_json(silent=True, force=True)
        if not isinstance(asked, dict):
            raise BadRequest("The request body is not a JSON object.")
        with _written():
            self._folder.create()
            return json_response(self._service.create_batch(asked))

    def list_batches(self) -> Response:
        return json_response(self._service.list_batches(*_paging()))

    def show_batch(self, batch_id: str) -> Response:
        return json_response(self._service.show_batch(batch_id))

    def cancel_batch(self, batch_id: str) -> Response:
        with _written():
            return json_response(self._service.cancel_batch(batch_id))

    def _parse(self, received: "_Received") -> dict[str, str]:
        """Returns the form's values; its file is written to the disk as it arrives."""
        parser = FormDataParser(
            stream_factory=received.open,
            max_form_memory_size=_FORM_BYTES,
            max_content_length=None,
            max_form_parts=20,
            silent=False,
        )
        try:
            _, form, _ = parser.parse(
                request.stream, request.mimetype, request.content_length, request.mimetype_params
            )
        except RequestEntityTooLarge as error:
            raise self._too_large() from error
        except ValueError as error:
            raise BadRequest("The form cannot be parsed.") from error
        return form.to_dict()

    def _too_large(self) -> ServeError:
        return FileTooLarge(f"A file may have {self._max_file_bytes} bytes (bulk_max_file_size).")


class _Received:
    """Holds the file of a form while it arrives."""

    def __init__(self, folder: BulkFolder) -> None:
        self._folder = folder
        self.upload: Upload | None = None
        self.stream: IO[bytes] | None = None

    def open(
        self,
        total_content_length: int | None,
        content_type: str | None,
        filename: str | None,
        content_length: int | None = None,
    ) -> IO[bytes]:
        """Opens the place for a file's bytes: as werkzeug's `stream_factory`."""
        del total_content_length, content_type, content_length
        if self.upload is not None:
            raise BadRequest("The form has more than one file.")
        self.upload = Upload(self._folder, (filename or "")[:255])
        self.stream = self.upload.open()
        return self.stream

    def discard(self) -> None:
        if self.upload is not None:
            self.upload.discard()

    def close(self) -> None:
        if self.stream is not None:
            self.stream.close()


@contextlib.contextmanager
def _written() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = f"The file cannot be written: {error.strerror} (data_dir)."
        raise FileNotWritten(why) from error


def _expiry(form: dict[str, str]) -> dict[str, Any] | None:
    found: dict[str, Any] = {
        match[1]: value for name, value in form.items() if (match := _EXPIRY.fullmatch(name))
    }
    with contextlib.suppress(ValueError, KeyError):
        found["seconds"] = json.loads(found["seconds"])
    return found or None


def _paging() -> tuple[int, str]:
    return read_limit(request.args, _MOST_LISTED), request.args.get("after", "")


def _pieces(stream: IO[bytes]) -> Iterator[bytes]:
    while piece := stream.read(_PIECE_BYTES):
        yield piece

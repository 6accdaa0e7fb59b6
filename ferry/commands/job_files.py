"""Sends files as jobs, some at a time, and keeps what has come of them."""

import asyncio
import hashlib
import json
import mimetypes
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from ferry.api import ELSEWHERE, Api, token_hint
from ferry_client.async_client import AsyncClient
from ferry_client.calls import Options, guessed_type
from ferry_client.errors import (
    AnswerError,
    FerryError,
    NotFound,
    ServerUnreachable,
    Unauthorized,
)
from ferry_client.jobs import Prediction

# What Python's table lacks, or has several of.
_SUFFIXES = {"application/json": ".json", "text/plain": ".txt", "image/jpeg": ".jpg"}
_OTHER_SUFFIX = ".out"
_UNFINISHED = ".ferry-"


@dataclass(frozen=True, slots=True)
class SentFile:
    """Keeps what came of one file: its job, later its answer or an error; `result` is a path."""

    file: str
    job_id: str = ""
    answer: Prediction | None = None
    result: Path | None = None
    error: str = ""
    status: int | None = None

    def record(self) -> dict[str, Any]:
        """Returns what `--json` prints of a file that was not waited for, or was stored."""
        result = None if self.result is None else str(self.result)
        found = {"file": self.file, "job": self.job_id, "result": result, "error": self.error}
        return {name: value for name, value in found.items() if value}


class JobFiles:
    """Sends files to one model.

    Args:
        client: closed by the caller.
        model: the model's name.
        options: of each submit; without a content type, each file's is guessed.
        in_flight: so many files at most are under way.
        waits: for the results.
        folder: where results are written; None: they are kept in memory.
    """

    def __init__(
        self,
        client: AsyncClient,
        model: str,
        options: Options,
        *,
        in_flight: int,
        waits: bool,
        folder: Path | None,
    ) -> None:
        self._client = client
        self._model = model
        self._options = options
        self._room = asyncio.Semaphore(in_flight)
        self._waits = waits
        self._folder = folder

    async def send(
        self, files: Sequence[Path], on_end: Callable[[SentFile], None]
    ) -> list[SentFile]:
        """Sends all of them; returns what came of each, in their order.

        Raises:
            FerryError: no file can be sent: the server, the model or the token is not right.
        """
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._send(file, on_end)) for file in files]
        except ExceptionGroup as errors:
            # The others say the same, or were cancelled.
            raise errors.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _send(self, file: Path, on_end: Callable[[SentFile], None]) -> SentFile:
        async with self._room:
            try:
                sent = await self._predict(file)
            except OSError as error:
                sent = SentFile(str(file), error=f"{error.strerror or error}")
            on_end(sent)
            return sent

    async def _predict(self, file: Path) -> SentFile:
        content = await asyncio.to_thread(file.read_bytes)
        options = Options(**self._options)
        options["content_type"] = options.get("content_type") or guessed_type(file.name)
        key = idempotency_key(self._model, options, file.name, content)
        job_id = ""
        try:
            job = await self._client.submit(self._model, content, idempotency_key=key, **options)
            job_id = job.id
            del content
            if not self._waits:
                return SentFile(str(file), job_id)
            answer = await job.result()
        except FerryError as error:
            if not job_id and isinstance(error, (ServerUnreachable, Unauthorized, NotFound)):
                raise
            status = getattr(error, "status", None)
            text = getattr(error, "message", str(error))
            return SentFile(str(file), job_id, error=text, status=status)
        if self._folder is None:
            return SentFile(str(file), job_id, answer)
        path = self._folder / f"{file.name}{suffix_of(answer)}"
        await asyncio.to_thread(write_result, path, answer.content)
        return SentFile(str(file), job_id, result=path)


def idempotency_key(model: str, options: Options, file_name: str, content: bytes) -> str:
    """Returns the key with which the same file for the same model is only run once."""
    names = [model, options.get("version") or "", options.get("content_type") or "", file_name]
    digest = hashlib.sha256(json.dumps(names).encode())
    digest.update(content)
    return f"ferry-{digest.hexdigest()}"


def suffix_of(answer: Prediction) -> str:
    """Returns how the name of an answer's file ends."""
    kind = answer.content_type
    return _SUFFIXES.get(kind) or mimetypes.guess_extension(kind) or _OTHER_SUFFIX


def write_result(path: Path, content: bytes) -> None:
    """Writes the file so that it is there as a whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    # In the same folder, because a rename cannot leave a file system.
    unfinished = path.with_name(f"{_UNFINISHED}{uuid.uuid4().hex}")
    try:
        unfinished.write_bytes(content)
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def without_result(files: Iterable[Path], folder: Path) -> list[Path]:
    """Returns the files that have no result in the folder, which is made if need be.

    Raises:
        ClickException: results of two files would have one name, or lie among the files.
    """
    files = list(files)
    folder.mkdir(parents=True, exist_ok=True)
    if any(file.parent.resolve() == folder.resolve() for file in files):
        raise click.ClickException(
            f"results need a folder of their own, and {folder} has the files"
        )
    twice = [name for name, count in Counter(file.name for file in files).items() if count > 1]
    if twice:
        raise click.ClickException(f"several files are called {twice[0]}, and so would be results")
    there = {path.stem for path in folder.iterdir() if not path.name.startswith(_UNFINISHED)}
    return [file for file in files if file.name not in there]


def files_in(paths: Iterable[Path]) -> list[Path]:
    """Returns the files, and in place of each folder those that lie in it, sorted by name."""
    found: list[Path] = []
    for path in paths:
        found += sorted(filter(Path.is_file, path.iterdir())) if path.is_dir() else [path]
    return found


def complaint(error: FerryError, url: str) -> click.ClickException:
    """Returns the error as a command says it; `url` is of the inference listener."""
    if isinstance(error, AnswerError) and error.type in {"", *ELSEWHERE}:
        try:
            with Api(url) as api:
                api.answer("GET", "readyz")
        except click.ClickException as wrong:
            return wrong
    return click.ClickException(f"{error}{token_hint() if isinstance(error, Unauthorized) else ''}")

"""The files of one batch: its input, and the output and errors that grow beside it."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

from batching.protocol import Reply
from ingress.bulk.bulk_errors import DiskFailed
from ingress.bulk.bulk_folder import BulkFolder
from ingress.bulk.bulk_records import Batch, BulkFile, Counts, now_s
from ingress.bulk.input_lines import RawLine, count_lines, line_at, read_lines
from ingress.bulk.output_lines import LineSet, OutputFile, answer_line, error_line


class BatchFiles:
    """Reads the lines that are not done, and writes down those that are.

    Whatever fails raises DiskFailed. Then nothing is known of what was not synced: the files are to
    be opened again.
    """

    def __init__(self, batch: Batch, folder: BulkFolder, max_body_bytes: int) -> None:
        self._batch = batch
        self._folder = folder
        self._max_body_bytes = max_body_bytes
        self._input = folder.lines_path(batch.input_file_id)

    @property
    def has_input(self) -> bool:
        return self._input.exists()

    async def count_lines(self) -> int:
        """Returns how many lines the input has."""
        return await asyncio.to_thread(count_lines, self._input, self._max_body_bytes)

    async def open(self) -> None:
        """Opens the outputs, and finds which lines are done."""
        with _disk():
            await asyncio.to_thread(self._open)

    def _open(self) -> None:
        self._done = LineSet()
        self._output = OutputFile(self._folder.lines_path(self._batch.output_id), self._done)
        self._errors = OutputFile(self._folder.lines_path(self._batch.errors_id), self._done)

    @property
    def counts(self) -> Counts:
        return Counts(self._batch.counts.total, self._output.count, self._errors.count)

    @property
    def done_count(self) -> int:
        return self._done.count

    def undone(self) -> Iterator[RawLine]:
        """Yields the lines that are not done when they are reached, from the first one."""
        lines = read_lines(self._input, self._max_body_bytes)
        while True:
            with _disk():
                line = next(lines, None)
            if line is None:
                return
            if line.number not in self._done:
                yield line

    def read_again(self, number: int, offset_bytes: int) -> RawLine:
        with _disk():
            return line_at(self._input, number, offset_bytes, self._max_body_bytes)

    def answer(self, number: int, custom_id: str, job_id: str, reply: Reply) -> None:
        """Adds a line's answer to the output, or to the errors if it is one of failure."""
        if self._done.add(number):
            line, is_success = answer_line(self._batch.batch_id, number, custom_id, job_id, reply)
            self._add(self._output if is_success else self._errors, line)

    def refuse(self, number: int, custom_id: Any, code: str, message: str) -> None:
        """Adds a line that has no answer to the errors."""
        if self._done.add(number):
            line = error_line(self._batch.batch_id, number, custom_id, code, message)
            self._add(self._errors, line)

    def _add(self, lines: OutputFile, line: bytes) -> None:
        with _disk():
            lines.add(line)

    async def sync(self) -> None:
        """Returns when all that was added is on the disk."""
        if self._output.is_new or self._errors.is_new:
            with _disk():
                await asyncio.to_thread(self._sync)

    def _sync(self) -> None:
        self._output.sync()
        self._errors.sync()

    def show(self) -> tuple[str | None, str | None]:
        """Shows output and errors to clients; returns their ids, None for one without lines."""
        return (
            self._show(self._output, self._batch.output_id, "output"),
            self._show(self._errors, self._batch.errors_id, "errors"),
        )

    def _show(self, lines: OutputFile, file_id: str, kind: str) -> str | None:
        if not lines.count:
            return None
        created = now_s()
        name = f"{self._batch.batch_id}_{kind}.jsonl"
        expires = created + self._batch.output_ttl_s
        record = BulkFile(file_id, lines.size_bytes, created, name, "batch_output", expires)
        self._folder.save_file(record)
        return file_id

    def close(self) -> None:
        """Closes the outputs; what was not synced may be on the disk or not."""
        for lines in (self._output, self._errors):
            with contextlib.suppress(OSError):
                lines.close()


@contextlib.contextmanager
def _disk() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DiskFailed(f"data_dir: {error}") from error

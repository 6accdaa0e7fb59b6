"""Runs one batch: sends a few lines at a time to the server, and writes their answers down.

A line is done if and only if it is in the output or the error file. Each line there begins with an
id that ends in its number, so a run that starts again reads which lines are done, cuts off half a
last line, and goes on. So each line is in one of the files, once, whatever dies in between; a
handler may see a line again, as it may any job.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from http import HTTPStatus
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

from ferry_bulk.folder import BulkFolder, Record, entering, now_s, output_ids
from ferry_bulk.lines import (
    BadLine,
    InputLine,
    OutputFile,
    RawLine,
    body_to_show,
    output_line,
    parse_line,
    read_lines,
)
from ferry_bulk.model_server import ModelServer, ServerAnswer

log = logging.getLogger(__name__)

# How many bytes of one batch's lines may be under way at once.
_MOST_BYTES = 64 * 1024 * 1024
_FILE_FIELDS = ("output_file_id", "error_file_id")
_LOOK_S = 0.25
_SAVE_S = 1.0
# Results of jobs are kept for a minute, and a minute more for each second that lines take: slow
# lines, of which there are few, need not run again when this process was away.
_SHORTEST_KEPT_S, _LONGEST_KEPT_S, _KEPT_S_PER_S = 60, 3_600, 60


# A line with its answer or error; None: the batch ended before.
LineOutcome: TypeAlias = tuple[InputLine, ServerAnswer | BadLine | None]


class BatchRun:
    """Runs one batch from where it was left to its end, with `in_flight` lines at a time."""

    def __init__(
        self, batch: Record, folder: BulkFolder, server: ModelServer, in_flight: int
    ) -> None:
        self.batch = batch
        self._halted = threading.Event()
        self._folder = folder
        self._server = server
        self._in_flight = in_flight
        self._input = folder.lines_path(batch["input_file_id"])
        self._outcomes: SimpleQueue[Future[LineOutcome]] = SimpleQueue()
        self._under_way = self._under_way_bytes = 0
        self._took_s = self._saved_s = 0.0
        self._end: str | None = None

    def run(self) -> None:
        """Runs the batch to its end; after an OSError it may be run again."""
        has_input = self._input.exists()
        if has_input and self.batch["status"] == "validating":
            total = sum(1 for _ in read_lines(self._input))
            counts = {"total": total, "completed": 0, "failed": 0}
            self._save(entering(self.batch, "in_progress", request_counts=counts))
        if not has_input or not self.batch["request_counts"]["total"]:
            why = "The input file has no lines." if has_input else "The input file is gone."
            error = {"code": "invalid_input", "message": why, "line": None, "param": None}
            errors = {"object": "list", "data": [error]}
            self._save(entering(self.batch, "failed", in_progress_at=None, errors=errors))
            return
        self._done = bytearray(self.batch["request_counts"]["total"])
        with contextlib.ExitStack() as files:
            self._outputs = [
                OutputFile(self._folder.lines_path(name), self._done)
                for name in output_ids(self.batch)
            ]
            for output in self._outputs:
                files.callback(output.close)
            end = self._feed()
            if end == "expired":
                self._expire_rest()
            self._finish(end)

    def _undone(self) -> Iterator[RawLine]:
        """Yields the lines that are not done yet, in their order."""
        for number, text in read_lines(self._input):
            if not self._done[number]:
                yield number, text

    def _feed(self) -> str:
        """Has all lines run; returns how the batch ended."""
        unread = self._undone()
        with ThreadPoolExecutor(self._in_flight, self.batch["id"][:14]) as threads:
            try:
                while (end := self._look_for_end()) is None:
                    self._submit_some(unread, threads)
                    if not self._under_way:
                        return "completed"
                    self._write_down()
            finally:
                # After an error, too: no thread may wait on.
                self._halted.set()
        while self._under_way:
            self._write_down()
        return end

    def _look_for_end(self) -> str | None:
        """Returns "cancelled" or "expired" if the batch ends early; None if it goes on."""
        if self._folder.is_to_cancel(self.batch["id"]):
            if self.batch["status"] != "cancelling":
                self._save(entering(self._counted(), "cancelling"))
            self._end = "cancelled"
        elif now_s() >= self.batch["expires_at"]:
            self._end = "expired"
        return self._end

    def _submit_some(self, unread: Iterator[RawLine], threads: ThreadPoolExecutor) -> None:
        while self._under_way < self._in_flight and self._under_way_bytes < _MOST_BYTES:
            raw = next(unread, None)
            if raw is None:
                return
            try:
                line = parse_line(raw, self.batch["endpoint"])
            except BadLine as bad:
                self._refuse(raw[0], bad)
                continue
            self._under_way += 1
            self._under_way_bytes += len(line.body)
            threads.submit(self._ask, line).add_done_callback(self._outcomes.put)

    def _ask(self, line: InputLine) -> LineOutcome:
        """Returns the outcome of a line; runs in a thread of its own."""
        started_s = time.monotonic()
        kept_s = min(_LONGEST_KEPT_S, int(_SHORTEST_KEPT_S + _KEPT_S_PER_S * self._took_s))
        headers = {
            "idempotency-key": f"{self.batch['id']}-{line.number}",
            "x-request-timeout-ms": str(max(1, self.batch["expires_at"] - now_s()) * 1000),
            "x-result-ttl-s": str(kept_s),
        }
        try:
            answer, job_path = self._server.predict(line, headers, self._halted)
        except BadLine as bad:
            return line, bad
        if answer is None and job_path and self._end:
            self._server.cancel(job_path)
        self._took_s = time.monotonic() - started_s
        return line, answer

    def _write_down(self) -> None:
        """Writes down all outcomes that have come; waits up to _LOOK_S for the first."""
        with contextlib.suppress(Empty):
            self._write_one(self._outcomes.get(timeout=_LOOK_S).result())
            while True:
                self._write_one(self._outcomes.get_nowait().result())
        is_time = time.monotonic() > self._saved_s + _SAVE_S
        for output in self._outputs:
            output.flush(to_disk=is_time)
        if is_time:
            self._save(self._counted())

    def _write_one(self, outcome: LineOutcome) -> None:
        line, answer = outcome
        self._under_way -= 1
        self._under_way_bytes -= len(line.body)
        if isinstance(answer, BadLine):
            self._refuse(line.number, answer)
            return
        # The job expired together with the batch, which expires its lines itself.
        is_over = answer and answer.status == HTTPStatus.GATEWAY_TIMEOUT
        if answer is None or (is_over and now_s() >= self.batch["expires_at"]):
            return
        response = {
            "status_code": answer.status,
            "request_id": answer.headers.get("x-request-id", ""),
            **body_to_show(answer.body, answer.headers.get("content-type", "")),
        }
        is_failure = answer.status >= HTTPStatus.BAD_REQUEST
        self._add(self._outputs[is_failure], line.number, line.custom_id, response=response)

    def _refuse(self, number: int, bad: BadLine) -> None:
        self._add(self._outputs[1], number, bad.custom_id, error=bad.error)

    def _add(self, output: OutputFile, number: int, custom_id: Any, **outcome: Any) -> None:
        output.add(output_line(self.batch["id"], number, custom_id, **outcome))
        self._done[number] = 1

    def _expire_rest(self) -> None:
        for raw in self._undone():
            try:
                custom_id = parse_line(raw, self.batch["endpoint"]).custom_id
            except BadLine as bad:
                custom_id = bad.custom_id
            why = "The batch's completion_window has passed."
            self._refuse(raw[0], BadLine("batch_expired", why, custom_id))

    def _finish(self, end: str) -> None:
        for output in self._outputs:
            output.flush(to_disk=True)
        batch = self._counted()
        if end == "completed":
            batch = entering(batch, "finalizing")
            self._save(batch)
        shown = {}
        ttl_s = batch["output_expires_after"]["seconds"]
        for field, file_id, output in zip(
            _FILE_FIELDS, output_ids(batch), self._outputs, strict=True
        ):
            if output.count:
                name = f"{batch['id']}_{file_id.rpartition('-')[2]}.jsonl"
                self._folder.show_file(file_id, name, "batch_output", ttl_s)
                shown[field] = file_id
        self._save(entering(batch, end, **shown))
        log.info("batch ended: %s status=%s counts=%s", batch["id"], end, batch["request_counts"])

    def _counted(self) -> Record:
        completed, failed = (output.count for output in self._outputs)
        counts = {**self.batch["request_counts"], "completed": completed, "failed": failed}
        return {**self.batch, "request_counts": counts}

    def _save(self, batch: Record) -> None:
        self.batch = batch
        self._saved_s = time.monotonic()
        self._folder.save_batch(batch)

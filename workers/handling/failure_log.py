"""Logs a handler's exceptions: in full once, then in one line while the same one goes on."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from batching.process.logs import tail_of, text_of
from batching.protocol import Claimed
from workers.handling.tracebacks import user_traceback

QUIET_S = 10.0
# A handler that fails at more places has its tracebacks written more often.
MAX_PLACES = 64
MAX_IDS = 8

_Place = tuple[str, str, int]


@dataclass(slots=True)
class _Written:
    at_s: float
    left_out: int = 0


class FailureLog:
    """Knows the logged tracebacks. Keeps no exception: it would hold a batch's tensors."""

    def __init__(
        self,
        log: logging.Logger,
        *,
        shown_dir: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Logs whole tracebacks, or only the lines of the model's own files in `shown_dir`."""
        self._log = log
        self._shown_dir = shown_dir
        self._clock = clock
        self._written: dict[_Place, _Written] = {}

    def write(self, words: str, error: Exception) -> None:
        """Logs these words, and the traceback unless the same one was logged lately."""
        kind, file_name, line = place = _innermost(error)
        now_s = self._clock()
        last = self._written.get(place)
        if last is not None and now_s - last.at_s < QUIET_S:
            last.left_out += 1
            self._log.error("%s error=%s at=%s:%d", words, kind, file_name, line)
            return
        if len(self._written) >= MAX_PLACES:
            self._written.clear()
        self._written[place] = _Written(now_s)
        if last is not None and last.left_out:
            words = f"{words} left_out={last.left_out}"
        if self._shown_dir is not None:
            self._log.error("%s\n%s", words, user_traceback(error, self._shown_dir))
        else:
            self._log.error("%s", words, exc_info=error)


def short_ids(items: Sequence[Claimed]) -> str:
    """Returns the ids of the first few of these requests."""
    ids = [item.request_id for item in items[:MAX_IDS]]
    return ",".join([*ids, "..."] if len(items) > MAX_IDS else ids)


def sentence(error: BaseException, most_chars: int) -> str:
    """Returns the exception's kind and the beginning of its text."""
    return f"{type(error).__name__}: {text_of(error)}"[:most_chars]


def _innermost(error: Exception) -> _Place:
    last = tail_of(error.__traceback__, 1)
    where = (last.tb_frame.f_code.co_filename, last.tb_lineno) if last else ("?", 0)
    return type(error).__name__, *where

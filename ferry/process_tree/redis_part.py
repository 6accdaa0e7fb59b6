"""Starts the embedded Redis of a whole server, with the data that an earlier one has left."""

import contextlib
import time
from collections.abc import Callable

import click

from batching.settings.settings import Settings, SettingsError
from ferry.console import warn
from ferry.options import UnusableSettings
from ferry.process_tree.embedded_redis import (
    START_TIMEOUT_S,
    EmbeddedRedis,
    EmbeddedRedisError,
    find_server,
)
from ferry.process_tree.redis_data import DataFolderError, lock_data
from ferry.process_tree.supervisor import StartFailed, Supervisor

NAME = "redis"
# With the last try, a start without a Redis fails within 5 s.
_WAIT_S = 2.0


def prepared_redis(settings: Settings, maxmemory: str, fsync: str) -> EmbeddedRedis:
    """Returns a Redis that is not started, its data folder locked.

    Raises:
        ClickException: there is no server program, or `data_dir` cannot be used.
    """
    try:
        program = find_server()
        return EmbeddedRedis(program, maxmemory=maxmemory, data=lock_data(settings, fsync, warn))
    except EmbeddedRedisError as error:
        raise click.ClickException(str(error)) from error
    except DataFolderError as error:
        raise click.ClickException(f"{error}. --data-dir chooses another folder") from error


def require_redis(settings: Settings) -> None:
    """Checks that the Redis of `redis_url` answers; it may be starting at the same time.

    Raises:
        ClickException: it does not, or files for TLS cannot be used.
    """
    # Only here: a server whose Redis is new needs no client in this process.
    from batching.store.server_check import why_away  # noqa: PLC0415 - see above

    try:
        why = why_away(settings, wait_s=_WAIT_S)
    except SettingsError as error:
        raise UnusableSettings(str(error)) from error
    if why:
        hint = "Start it first, or leave --redis-url out: `ferry up` has a Redis of its own"
        raise click.ClickException(f"{why}. {hint}")


def start_redis(
    supervisor: Supervisor,
    redis: EmbeddedRedis,
    report: Callable[[str], None],
    *,
    is_forgetting: bool,
) -> None:
    """Starts the part and waits until it answers; after a long life it has much to read.

    Args:
        supervisor: of this part.
        redis: what it starts.
        report: told how far it has read, and why it ended.
        is_forgetting: whether models that it remembers are forgotten, as they are registered anew.

    Raises:
        StartFailed: it ended.
        TimeoutError: it does not answer at all.
    """
    supervisor.start(NAME)
    progress = _Progress(redis, report)
    try:
        supervisor.wait_until(progress.has_begun, timeout_s=START_TIMEOUT_S)
        supervisor.wait_until(progress.has_ended)
    except StartFailed:
        report(f"redis: {redis.last_words() or 'it said nothing'}")
        if redis.data is not None:
            report(
                f"Redis cannot go on with its data in {redis.data.folder}. To start without the "
                "jobs in there, move it away, or choose another folder with --data-dir."
            )
        raise
    if redis.remembers and is_forgetting:
        _forget_models(redis.url)


def words_of(redis: EmbeddedRedis) -> str:
    """Says which program it is, and where it keeps jobs."""
    kept = "in memory only" if redis.data is None else f"keeps jobs in {redis.data.folder.parent}"
    return f"embedded, {redis.program.origin}; {kept}"


def _forget_models(url: str) -> None:
    """Has Redis forget what is registered, and not the jobs, before any node looks."""
    # Only here, as above.
    from batching.store.clients import connect  # noqa: PLC0415
    from batching.store.registry.registry import Registry  # noqa: PLC0415

    with contextlib.closing(connect(url)) as client:
        Registry(client).forget()


class _Progress:
    """Follows a Redis that reads its file, and says now and then how far it is."""

    def __init__(
        self, redis: EmbeddedRedis, report: Callable[[str], None], every_s: float = 5.0
    ) -> None:
        self._redis = redis
        self._report = report
        self._every_s = every_s
        self._say_at_s = time.monotonic() + every_s

    def has_begun(self) -> bool:
        """Returns whether the server answers, be it only that it reads its file."""
        return self._redis.answers() or self._redis.loaded_percent() is not None

    def has_ended(self) -> bool:
        """Returns whether the server answers."""
        if self._redis.answers():
            return True
        percent = self._redis.loaded_percent()
        if percent is not None and time.monotonic() >= self._say_at_s:
            self._say_at_s = time.monotonic() + self._every_s
            self._report(f"Redis reads its data: {percent:.0f} %")
        return False

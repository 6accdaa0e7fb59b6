"""Says whether a command starts with a config.properties, by the checks of the start itself.

A start has two ways to fail, and so has the verdict: with these settings none can succeed, or a
later one may, as when another server has the port.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from batching.metrics import read_metrics_config
from batching.settings.loading import load_settings
from batching.settings.settings import Settings, SettingsError, UnusableNow
from batching.store.server_check import check_server, why_away
from ferry.moving.effects import Effect, Row
from ferry.options import UnusableSettings
from ferry.process_tree.embedded_redis import EmbeddedRedisError, find_server
from ferry.process_tree.start_checks import check_free, require_store
from ingress.access.key_file import check_keys
from ingress.listeners import certificate_of, listener_table
from workers.archives.model_files import is_writable, work_dir_of

_START = "start"
_STARTS = "starts"
_NEEDS_STORE = "starts, given --model-store FOLDER, as TorchServe: the file names none"

Check = Callable[[Settings], object]


@dataclass(frozen=True, slots=True)
class Start:
    """Says how a command starts the server.

    `defaults` are those of the command, and `complete` what it makes of the settings;
    `environment` has the variables that it will find. Of another machine (`is_here`), files, ports
    and servers are not known.
    """

    command: str = _START
    defaults: Mapping[str, Any] = field(default_factory=dict)
    complete: Callable[[Settings], Settings] = lambda settings: settings
    environment: Mapping[str, str] = field(default_factory=dict)
    needs_model_store: bool = False
    is_here: bool = True

    def settings(self, path: Path) -> Settings:
        """Returns the settings that the command reads from the file.

        Raises:
            SettingsError: it cannot use them.
        """
        return self.complete(load_settings(path, self.environment, None, self.defaults)[0])


def start_rows(path: Path, starts: Sequence[Start]) -> Iterator[Row]:
    """Yields what each command says to the file; what all say has one row."""
    findings = {start.command: list(_findings(path, start)) for start in starts}
    rows = dict.fromkeys(one for some in findings.values() for one in some)
    for effect, text in rows:
        commands = [name for name, some in findings.items() if (effect, text) in some]
        for part in [_START] if len(commands) == len(starts) else commands:
            yield Row(part, effect, text)


def _findings(path: Path, start: Start) -> Iterator[tuple[Effect, str]]:
    try:
        settings = start.settings(path)
    except SettingsError as error:
        yield Effect.CHANGE, str(error)
        return
    if complaints := list(_complaints(settings, start)):
        yield from complaints
    elif start.needs_model_store and start.is_here and settings.model_store is None:
        yield Effect.NOTE, _NEEDS_STORE
    else:
        yield Effect.SAME, _STARTS


def _complaints(settings: Settings, start: Start) -> Iterator[tuple[Effect, str]]:
    for check in _checks_here(settings) if start.is_here else (_check_listeners_elsewhere,):
        try:
            check(settings)
        except (UnusableNow, _NotNow) as error:
            yield Effect.NOTE, f"not now: {error}"
        except SettingsError as error:
            yield Effect.CHANGE, str(error)
        except click.ClickException as error:
            is_final = isinstance(error, UnusableSettings) or check is require_store
            text = error.format_message()
            yield (Effect.CHANGE, text) if is_final else (Effect.NOTE, f"not now: {text}")


def _checks_here(settings: Settings) -> Iterator[Check]:
    """Yields what the start does, in its order, short of starting anything."""
    yield require_store
    yield lambda settings: check_free(settings.addresses().values())
    yield _check_redis if settings.redis_url else _check_own_redis
    yield lambda settings: read_metrics_config(settings.metrics_config)
    yield work_dir_of
    yield _check_listeners
    yield _check_certificate
    yield check_keys


class _NotNow(Exception):
    """Tells why a start fails that may succeed later."""


def _check_redis(settings: Settings) -> None:
    if why := why_away(settings, wait_s=0.0):
        raise _NotNow(why)
    check_server(settings)


def _check_own_redis(settings: Settings) -> None:
    try:
        find_server()
    except EmbeddedRedisError as error:
        raise _NotNow(error) from error
    if (folder := settings.data_dir) is not None and not is_writable(folder):
        raise SettingsError(f"{folder} cannot be written. data_dir chooses another folder")


def _check_listeners(settings: Settings) -> None:
    for address in listener_table(settings):
        path = address.socket_path
        if path is not None and not (path.parent.is_dir() and is_writable(path.parent)):
            raise _NotNow(f"cannot listen on {address}: its folder cannot be written")


def _check_certificate(settings: Settings) -> None:
    if (certificate := certificate_of(settings)) is not None:
        certificate.open()


def _check_listeners_elsewhere(settings: Settings) -> None:
    with contextlib.suppress(UnusableNow):  # a host that only the other machine knows
        listener_table(settings)
    if settings.certificate_file is None or settings.private_key_file is None:
        certificate_of(settings)

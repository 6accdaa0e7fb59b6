"""`ferry check`: what the server makes of a config.properties, as JSON for other programs.

`ferry doctor` of torchferry-moving runs it, because only the server knows how it reads a
configuration. "must change" means that no start with these settings can succeed; a start that may
succeed later, once another server has left the port for example, is a note.
"""

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import click

from batching.errors import ServeError
from batching.metrics import read_metrics_config
from batching.models.registration import (
    WITHOUT_EFFECT,
    ModelDefaults,
    spec_from_registration,
    why_not_here,
)
from batching.models.spec import PARAMETERS, ArchiveInfo
from batching.settings.files import read_properties
from batching.settings.loading import (
    BETTER,
    ENABLE_ENVIRONMENT,
    IGNORED,
    REPLACED,
    SNAPSHOT,
    UNDERSTOOD,
    WITHOUT_VARIABLE,
    load_settings,
    why_without_effect,
)
from batching.settings.settings import (
    BY_KEY,
    DEFAULT_ALLOWED_URLS,
    SETTINGS,
    Settings,
    SettingsError,
    UnusableNow,
)
from batching.settings.snapshots import read_snapshot
from batching.settings.values import model_settings
from batching.store.server_check import check_server, why_away
from ferry.commands.torchserve import DEFAULTS, completed, torchserve
from ferry.options import UnusableSettings
from ferry.process_tree.embedded_redis import find_server
from ferry.process_tree.start_checks import check_free, require_store
from ingress.access.certificate import certificate_of
from ingress.access.tokens import open_keys
from ingress.role import listener_table
from workers.archives.staging import is_writable, work_dir_of

SAME, BETTER_HERE, NOTE, CHANGE = "same", "better", "note", "must change"
_NEEDS_STORE = "starts, given --model-store FOLDER, as TorchServe: the file names none"
_TORCHSERVE, _UP = "ferry torchserve --ts-config", "ferry up --config"


class CheckRow(NamedTuple):
    """Says what becomes of one part; the text of what must change says how."""

    part: str
    effect: str
    text: str


@click.command()
@click.argument("config", type=click.Path(path_type=Path), required=False)
@click.option(
    "--container",
    metavar="JSON",
    help="Variables of a container that is to start with it; null: a value that is not known. "
    "Files, ports and servers of this machine do not count then.",
)
def check(config: Path | None, container: str | None) -> None:
    """Print what becomes of CONFIG's keys and models, and whether a server starts with it."""
    variables = None if container is None else json.loads(container)
    try:
        properties = {} if config is None else read_properties(config)
    except SettingsError as error:
        raise click.UsageError(str(error)) from error
    rows = [*_key_rows(properties, variables or ())]
    if config is not None:
        rows += _rows_of_use(config, properties, variables)
    flags = {name: option.help or "" for option in torchserve.params for name in option.opts}
    click.echo(json.dumps({"rows": [row._asdict() for row in rows], "flags": flags}))


def _key_rows(properties: Mapping[str, str], variables: Iterable[str]) -> Iterator[CheckRow]:
    yield from map(key_row, properties)
    keys = {f"TS_{key.upper()}": key for key in IGNORED if key not in WITHOUT_VARIABLE}
    keys |= {it.ts_variable: it.key for it in SETTINGS if it.ts_variable}
    counts = properties.get(ENABLE_ENVIRONMENT, "").strip().lower() == "true"
    for variable in (it for it in variables if it.startswith("TS_")):
        if variable not in keys:
            text = "is no variable of TorchServe's, and has no effect"
            yield CheckRow(variable, NOTE, text)
        elif not counts:
            text = f"counts only if the file says {ENABLE_ENVIRONMENT}=true, as in TorchServe"
            yield CheckRow(variable, NOTE, text)
        else:
            yield key_row(keys[variable])._replace(part=variable)


def key_row(key: str) -> CheckRow:
    if key in BETTER:
        return CheckRow(key, BETTER_HERE, BETTER[key].replace("`", ""))
    if key in UNDERSTOOD:
        return CheckRow(key, SAME, BY_KEY[key].doc if key in BY_KEY else "")
    if key in REPLACED:
        return CheckRow(key, CHANGE, IGNORED[key])
    return CheckRow(key, NOTE, why_without_effect(key))


def _rows_of_use(
    config: Path, properties: Mapping[str, str], variables: Mapping[str, str | None] | None
) -> Iterator[CheckRow]:
    """Yields the rows of the file's models, and of a start with it."""
    # A variable whose value is not known is left out.
    known = {name: value for name, value in (variables or {}).items() if value is not None}
    environment: Mapping[str, str] = os.environ if variables is None else known
    allowed_urls = DEFAULT_ALLOWED_URLS
    with contextlib.suppress(SettingsError):  # the rows of the start say it
        settings = _settings(config, environment, _TORCHSERVE)
        allowed_urls = settings.allowed_urls
        for archive in settings.load_models.split(","):
            url = re.sub(r"^[\w.-]+=", "", archive.strip())
            yield from _url_rows("load_models", url, allowed_urls)
    with contextlib.suppress(ValueError):  # the rows of the start say it
        for name, versions in model_settings(properties.get("models", "")).items():
            for version, record in versions.items():
                yield from _version_rows(name, version, record, allowed_urls)
    try:
        for saved in read_snapshot(config) if SNAPSHOT in properties else []:
            name, version = saved.model_name, saved.model_version
            yield from _version_rows(name, version, saved.record, allowed_urls)
    except SettingsError as error:
        # The server starts all the same, without these models.
        yield CheckRow(SNAPSHOT, CHANGE, str(error))
    yield from _start_rows(config, environment, is_here=variables is None)


def _start_rows(
    config: Path, environment: Mapping[str, str], *, is_here: bool
) -> Iterator[CheckRow]:
    """Yields the findings of each command; a finding that all share has one row."""
    commands = (_TORCHSERVE, _UP) if is_here else (_TORCHSERVE,)
    findings: dict[tuple[str, str], list[str]] = {}
    for command in commands:
        for finding in dict.fromkeys(_start_findings(config, environment, command, is_here)):
            findings.setdefault(finding, []).append(command)
    for (effect, text), those in findings.items():
        yield CheckRow(those[0] if len(those) < len(commands) else "start", effect, text)


def _url_rows(part: str, url: str, allowed_urls: str) -> Iterator[CheckRow]:
    """Yields a row for an archive of another machine that this one would not fetch."""
    is_allowed = any(re.fullmatch(pattern.strip(), url) for pattern in allowed_urls.split(","))
    if url.startswith(("http://", "https://")) and not is_allowed:
        name = url.partition("?")[0]  # a query may be a secret
        text = f"{name} is not in allowed_urls: name it there, or copy it into the model store"
        yield CheckRow(part, CHANGE, text)


def _version_rows(
    model_name: str, version: str, record: Mapping[str, Any], allowed_urls: str
) -> Iterator[CheckRow]:
    """Yields the rows of a version whose record has the words of model-config.yaml."""
    part = f"model {model_name} {version}"
    for word, value in record.items():
        if reason := why_not_here(word, value):
            yield CheckRow(part, CHANGE, reason)
        elif word in WITHOUT_EFFECT and value:
            yield CheckRow(part, NOTE, f"{word} has no effect: {WITHOUT_EFFECT[word]}")
    url = str(record.get("modelUrl") or record.get("marName") or "")
    runtime = {"runtime": str(record["runtime"])} if record.get("runtime") else {}
    archive = ArchiveInfo(url, "", model_name, version, "", "python", None, record)
    try:
        spec_from_registration(runtime, archive, ModelDefaults())
    except ServeError as error:
        yield CheckRow(part, CHANGE, error.message)
        return
    named = [it.word for it in PARAMETERS if record.get(it.word) not in (None, "", ())]
    yield CheckRow(
        part, SAME, ", ".join(f"{word} {record[word]}" for word in named) or "the defaults"
    )
    yield from _url_rows(part, url, allowed_urls)


def _settings(config: Path, environment: Mapping[str, str], command: str) -> Settings:
    if command == _UP:
        return load_settings(config, environment)[0]
    return completed(load_settings(config, environment, None, DEFAULTS)[0])


def _start_findings(
    config: Path, environment: Mapping[str, str], command: str, is_here: bool
) -> Iterator[tuple[str, str]]:
    """Yields effect and text of what keeps the command from starting, or that it starts."""
    try:
        settings = _settings(config, environment, command)
    except SettingsError as error:
        yield CHANGE, str(error)
        return
    starts = True
    for check_start in _CHECKS if is_here else (_check_listeners_elsewhere,):
        try:
            check_start(settings)
        except SettingsError as error:
            starts = False
            is_final = not isinstance(error, UnusableNow)
            yield (CHANGE, str(error)) if is_final else (NOTE, f"not now: {error}")
        except click.ClickException as error:
            starts = False
            is_final = isinstance(error, UnusableSettings) or check_start is require_store
            text = error.format_message()
            yield (CHANGE, text) if is_final else (NOTE, f"not now: {text}")
    if starts and is_here and command == _TORCHSERVE and settings.model_store is None:
        yield NOTE, _NEEDS_STORE
    elif starts:
        yield SAME, "starts"


def _check_redis(settings: Settings) -> None:
    if not settings.redis_url:
        find_server()
        if (folder := settings.data_dir) is not None and not is_writable(folder):
            raise SettingsError(f"{folder} cannot be written. data_dir chooses another folder")
    elif why := why_away(settings, wait_s=0.0):
        raise UnusableNow(why)
    else:
        check_server(settings)


def _check_listeners(settings: Settings) -> None:
    for address in listener_table(settings):
        path = address.socket_path
        if path is not None and not (path.parent.is_dir() and is_writable(path.parent)):
            raise UnusableNow(f"cannot listen on {address}: its folder cannot be written")


def _check_certificate(settings: Settings) -> None:
    if (certificate := certificate_of(settings)) is not None:
        certificate.open()


def _check_listeners_elsewhere(settings: Settings) -> None:
    with contextlib.suppress(UnusableNow):  # a host that only the other machine knows
        listener_table(settings)
    if settings.certificate_file is None or settings.private_key_file is None:
        certificate_of(settings)


# The checks of a start, in its order; none of them starts anything.
_CHECKS: tuple[Callable[[Settings], object], ...] = (
    require_store,
    lambda settings: check_free(settings.addresses().values()),
    _check_redis,
    lambda settings: read_metrics_config(settings.metrics_config),
    work_dir_of,
    _check_listeners,
    _check_certificate,
    lambda settings: open_keys(settings, only_checked=True),
)

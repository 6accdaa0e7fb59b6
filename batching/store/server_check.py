"""Checks, when a process starts, that the queue can be trusted to this Redis."""

import contextlib
import logging
import re
import ssl
import time
from dataclasses import dataclass, replace

import redis

from batching.models.statuses import NodeStatus
from batching.protocol import WIRE_VERSION
from batching.settings.pem_files import load_authorities, load_pair
from batching.settings.redis_url import RedisUrl
from batching.settings.settings import Settings, SettingsError, UnusableNow
from batching.store import keys
from batching.store.clients import connect, store_url
from batching.store.held_connections import Client
from batching.store.records import RecordReader
from batching.store.redis_errors import AWAY
from batching.store.scripts.loader import script

log = logging.getLogger(__name__)

# BLMPOP came with 7.0.
MIN_VERSION = (7, 0)
SAFE_POLICY = "noeviction"
_TIMEOUT_S = 1.0
_RETRY_S = 0.2


def check_server(settings: Settings) -> None:
    """Checks the Redis that the settings name; logs a warning about what is doubtful.

    A server that does not answer yet is not refused: containers start in any order.

    Raises:
        SettingsError: none is named, it is too old, or files for TLS cannot be used.
        UnusableNow: nodes of another release are at work there.
    """
    if not settings.redis_url:
        raise SettingsError("redis_url is not set: which Redis? Set REDIS_URL.")
    _check_tls_files(settings)
    try:
        with _client(settings) as client:
            check_client(client)
            check_nodes(client, int(settings.dead_after_s * 1000))
    except AWAY as error:
        where = RedisUrl.parse(settings.redis_url).without_secrets()
        text = "Redis could not be checked, and this waits for it redis=%s: %s"
        log.warning(text, where, _words_of(error))


def why_away(settings: Settings, *, wait_s: float) -> str:
    """Returns why the Redis that the settings name cannot be used; empty: it answers.

    Tries again for `wait_s`, as it may start at the same time.

    Raises:
        SettingsError: files for TLS cannot be used.
    """
    _check_tls_files(settings)
    where = RedisUrl.parse(settings.redis_url).without_secrets()
    give_up_s = time.monotonic() + wait_s
    while True:
        try:
            with _client(settings) as client:
                client.ping()
            return ""
        except (redis.ResponseError, redis.BusyLoadingError):
            return ""  # it is there, be it that this user may not ask, or that it reads its file
        except AWAY as error:
            if time.monotonic() >= give_up_s:
                return f"no Redis can be used at {where}: {_words_of(error).rstrip('.')}"
        time.sleep(_RETRY_S)


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Holds what a server tells of itself. `fsync` is empty where this user may not ask for it."""

    version: str
    policy: str
    is_writing_file: bool
    has_write_failed: bool
    fsync: str = ""

    @property
    def is_too_old(self) -> bool:
        numbers = re.match(r"(\d+)\.(\d+)", self.version)
        return numbers is not None and (int(numbers[1]), int(numbers[2])) < MIN_VERSION


def facts_of(settings: Settings) -> ServerFacts:
    """Asks the Redis that the settings name.

    Raises:
        OSError: it does not answer, or refuses to tell.
        SettingsError: the URL cannot be used.
    """
    try:
        with _client(settings) as client:
            facts = _ask(client)
            with contextlib.suppress(redis.ResponseError):
                fsync = client.config_get("appendfsync").get("appendfsync")
                facts = replace(facts, fsync=str(fsync or ""))
            return facts
    except AWAY as error:
        raise OSError(_words_of(error)) from error


def _ask(client: Client) -> ServerFacts:
    info = client.info()
    return ServerFacts(
        version=str(info.get("redis_version", "")),  # Valkey names one that it is compatible with
        policy=str(info.get("maxmemory_policy", SAFE_POLICY)),
        is_writing_file=info.get("aof_enabled") == 1,
        has_write_failed=info.get("aof_last_write_status", "ok") != "ok",
    )


def _words_of(error: Exception) -> str:
    return str(error) or type(error).__name__


def _client(settings: Settings) -> contextlib.closing[Client]:
    return contextlib.closing(connect(store_url(settings), socket_timeout_s=_TIMEOUT_S))


def _check_tls_files(settings: Settings) -> None:
    # Each connection reads them; a bad file would look like a Redis that does not answer.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if settings.redis_ca_file is not None:
        load_authorities(context, settings.redis_ca_file)
    if settings.redis_cert_file is not None:
        load_pair(context, settings.redis_cert_file, settings.redis_key_file)


def check_client(client: Client) -> None:
    """Checks that the server is recent enough; logs a warning if it may evict keys.

    Raises:
        SettingsError: it is too old.
        RedisError: it does not answer, or this user may not ask.
    """
    facts = _ask(client)
    if facts.is_too_old:
        raise SettingsError(
            f"Redis {facts.version} is too old: use Redis 7.0 or later, or Valkey (redis_url)"
        )
    if facts.policy != SAFE_POLICY:
        log.warning(
            "Redis has maxmemory-policy %s and may drop requests that were accepted, and what is "
            "registered: set it to %s",
            *(facts.policy, SAFE_POLICY),
        )


def check_nodes(client: Client, dead_after_ms: int) -> None:
    """Checks that all live nodes and this release read each other's requests.

    Without this a rolling upgrade would go on to its end, and leave ingresses without nodes.

    Raises:
        UnusableNow: one does not. Killed nodes count as live for `dead_after_ms`.
        RedisError: it does not answer.
    """
    [alive] = script(client, "living")(keys=[keys.NODES], args=[dead_after_ms, "alive"])
    records = client.hmget(keys.NODE_INFO, alive) if alive else []
    # An unreadable record must not keep all processes from starting.
    nodes = RecordReader("node", NodeStatus.from_json).read(
        {name: record or b"" for name, record in zip(alive, records, strict=True)}
    )
    if others := {node.wire_version for node in nodes.values()} - {WIRE_VERSION}:
        raise UnusableNow(
            f"nodes of another release are at work on this Redis (wire version {min(others)}, here "
            f"{WIRE_VERSION}), and neither release serves the other's requests. Stop those nodes "
            'first, or use another Redis or database (redis_url): docs/operations.md, "Upgrading"'
        )

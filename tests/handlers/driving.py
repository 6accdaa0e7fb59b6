"""Asks a server all questions of the corpus, both for a recording and for a test."""

import base64
import concurrent.futures
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from tests.handlers.archives import Archive, Ask, all_archives

TIMEOUT_S = 90
# Each worker of a model with torch takes hundreds of megabytes and seconds of a core.
AT_ONCE = 6
# Headers that do not depend on the handler.
_PASSING_HEADERS = frozenset(
    {
        "cache-control",
        "connection",
        "content-length",
        "date",
        "expires",
        "pragma",
        "server",
        "transfer-encoding",
        "ts_stream_next",
        "x-content-type-options",
        "x-ferry-reason",
        "x-request-id",
    }
)

Answers = dict[str, list[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Server:
    """The URLs of the three listeners."""

    inference: str
    management: str
    metrics: str

    def scrape(self) -> list[str]:
        """Returns the lines of /metrics that the handler `measured` causes, without the host."""
        with _session() as session:
            response = session.get(f"{self.metrics}/metrics", timeout=TIMEOUT_S)
        lines = [line for line in response.text.splitlines() if "Corpus" in line]
        return [re.sub(r'Hostname="[^"]*"', 'Hostname="<host>"', line) for line in sorted(lines)]


def drive(
    server: Server,
    store: Path,
    on_archive: Callable[[str], object] = lambda _: None,
    names: Collection[str] = (),
) -> Answers:
    """Returns the answers to each ask, by `archive/ask`; those to simultaneous asks are sorted.

    `on_archive` is called with the name of each archive before its asks. `names` are those of some
    archives; without any, all are asked.
    """
    answers: Answers = {}
    archives = [archive for archive in all_archives() if not names or archive.name in names]
    for start in range(0, len(archives), AT_ONCE):
        group = archives[start : start + AT_ONCE]
        for archive in group:
            _register(server, archive, store)
        for archive in group:
            on_archive(archive.name)
            for ask in archive.asks:
                answers[f"{archive.name}/{ask.name}"] = sorted(_ask(server, archive, ask), key=str)
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            paths = [f"models/{archive.name}" for archive in group]
            list(pool.map(lambda path: _manage(server, "DELETE", path), paths))
    return answers


def _register(server: Server, archive: Archive, store: Path) -> None:
    query = {"initial_workers": 1, "synchronous": "false", **archive.query}
    _manage(server, "POST", "models", url=archive.write(store), **query)


def _manage(server: Server, method: str, path: str, **query: Any) -> None:
    with _session() as session:
        url = f"{server.management}/{path}"
        response = session.request(method, url, params=query, timeout=TIMEOUT_S)
    assert response.ok, f"{method} {path}: {response.status_code} {response.text}"


def _ask(server: Server, archive: Archive, ask: Ask) -> Iterator[dict[str, Any]]:
    base = server.management if ask.is_management else server.inference
    url = f"{base}/{ask.route.format(archive.name)}"

    def send(body: bytes) -> dict[str, Any]:
        content = {"files": ask.form} if ask.form else {"data": body or None}
        with _session() as session:
            response = session.request(
                ask.method, url, headers=dict(ask.headers), timeout=TIMEOUT_S, **content
            )
        if ask.is_management:
            return {"customizedMetadata": response.json()[0].get("customizedMetadata")}
        return _record(response)

    with concurrent.futures.ThreadPoolExecutor(len(ask.bodies)) as pool:
        yield from pool.map(send, ask.bodies)


def _session() -> requests.Session:
    session = requests.Session()
    session.trust_env = False
    session.headers.clear()
    return session


def _record(response: requests.Response) -> dict[str, Any]:
    headers = {
        name.lower(): value
        for name, value in response.headers.items()
        if name.lower() not in _PASSING_HEADERS
    }
    record: dict[str, Any] = {"status": response.status_code, "headers": headers}
    try:
        record["text"] = response.content.decode()
    except UnicodeDecodeError:
        record["base64"] = base64.b64encode(response.content).decode()
    return record

"""Downloads an archive without becoming a proxy into the local network.

Every hop is checked the same way: the URL must match the allow list, its host is resolved once,
all its addresses must be public, and the connection goes to an address that was checked. A second
question to the resolver is what DNS rebinding waits for.
"""

import logging
import re
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import httpx

from batching.addresses import is_public
from batching.errors import DownloadFailed, InternalError, ModelNotFound
from workers.archives.archive_entries import MAX_UNPACKED_BYTES
from workers.archives.download_notes import note_of, store_path, was_downloaded
from workers.archives.model_archive import inspect_archive, not_saved
from workers.archives.staging import DOWNLOAD_PREFIX

MAX_REDIRECTS = 3
MAX_DOWNLOAD_S = 900
_TIMEOUT = httpx.Timeout(30, connect=10)
_DEFAULT_PORTS = {"http": 80, "https": 443}
log = logging.getLogger(__name__)


def resolve_host(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


def _check_replaceable(url: str, target: Path, is_unused: Callable[[], bool] | None) -> None:
    is_ours = was_downloaded(url, target.parent)
    if _is_taken(target) and not (is_ours and is_unused is not None and is_unused()):
        raise InternalError(f"Model file already exists {target.name}")


def _is_taken(target: Path) -> bool:
    """Returns whether the store has this name, for a link to a disk that is away perhaps."""
    return target.is_symlink() or target.exists()


def _refusal(url: str) -> str:
    return f"Given URL {url} does not match any allowed URL(s)"


def _failed(url: str, error: Exception) -> DownloadFailed:
    """Returns the client's error; the cause is in the log only."""
    log.error("not downloaded url=%s: %s: %s", url, type(error).__name__, error)
    return DownloadFailed(f"Failed to download archive from: {url}")


class Downloader:
    """Fetches from the URLs that the operator allows.

    `resolve` and `transport` are the network; tests bring their own.
    """

    def __init__(
        self,
        allowed_urls: str,
        resolve: Callable[[str, int], list[str]] = resolve_host,
        transport: httpx.BaseTransport | None = None,
        max_bytes: int = MAX_UNPACKED_BYTES,
    ) -> None:
        patterns = [pattern.strip() for pattern in allowed_urls.split(",")]
        self._allowed = [re.compile(pattern, re.IGNORECASE) for pattern in patterns if pattern]
        self._resolve = resolve
        self._transport = transport
        self._max_bytes = max_bytes

    def fetch(
        self,
        url: str,
        model_store: Path,
        is_unused: Callable[[], bool] | None = None,
    ) -> Path:
        """Downloads and verifies the archive; a failure changes nothing in the model store.

        Arguments and errors are those of `locate_archive`.
        """
        self._check_allowed(url, url)
        target = store_path(url, model_store)
        is_there = _is_taken(target)
        _check_replaceable(url, target, is_unused)
        try:
            with tempfile.TemporaryDirectory(prefix=DOWNLOAD_PREFIX, dir=model_store) as staging:
                file = Path(staging) / target.name
                self._download(url, file)
                inspect_archive(file, url)
                # Before it is in the store: without a note it would never be replaced or removed.
                note_of(file).write_text(url, encoding="utf-8")
                # Meanwhile it may have been registered, or a file of that name put there.
                if is_there or not was_downloaded(url, model_store):
                    _check_replaceable(url, target, is_unused)
                file.rename(target)
                note_of(file).rename(note_of(target))
        except OSError as error:
            raise not_saved(url, model_store, error) from error
        return target

    def _download(self, url: str, file: Path) -> None:
        give_up_at = time.monotonic() + MAX_DOWNLOAD_S
        try:
            with self._open(url) as response, file.open("xb") as stream:
                for chunk in response.iter_raw():
                    if stream.tell() + len(chunk) > self._max_bytes:
                        raise httpx.TransportError("too large")
                    if time.monotonic() > give_up_at:
                        raise httpx.TransportError("too slow")
                    stream.write(chunk)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise _failed(url, error) from error

    @contextmanager
    def _open(self, url: str) -> Iterator[httpx.Response]:
        """Yields the response with status 200, after some redirects at most; its body is unread."""
        hop = url
        # No proxy from the environment: it would resolve the name once more.
        with httpx.Client(transport=self._transport, timeout=_TIMEOUT, trust_env=False) as client:
            for _ in range(MAX_REDIRECTS + 1):
                response = self._send(client, hop, url)
                try:
                    if response.status_code == httpx.codes.OK:
                        yield response
                        return
                    if not response.has_redirect_location:
                        raise httpx.TransportError(f"status {response.status_code}")
                    hop = urljoin(hop, response.headers["location"])
                finally:
                    response.close()
        raise httpx.TransportError("too many redirects")

    def _send(self, client: httpx.Client, hop: str, url: str) -> httpx.Response:
        self._check_allowed(hop, url)
        parts = urlsplit(hop)
        host, port = parts.hostname or "", parts.port or _DEFAULT_PORTS[parts.scheme]
        failure: httpx.TransportError = httpx.ConnectError("host does not resolve")
        for address in self._addresses(host, port, url):
            request = client.build_request(
                "GET",
                httpx.URL(hop).copy_with(host=address),
                headers={"Host": parts.netloc, "Accept-Encoding": "identity"},
                # TLS asks for the name, not the address, and checks its certificate.
                extensions={"sni_hostname": host},
            )
            try:
                return client.send(request, stream=True, follow_redirects=False)
            except httpx.ConnectError as error:
                failure = error
        raise failure

    def _addresses(self, host: str, port: int, url: str) -> list[str]:
        try:
            addresses = self._resolve(host, port)
        except (OSError, UnicodeError) as error:
            raise _failed(url, error) from error
        # One private address among public ones is enough to refuse: the resolver is not ours.
        if not all(is_public(address) for address in addresses):
            raise ModelNotFound(f"{_refusal(url)}: {host} leads to an address that is not public")
        return addresses

    def _check_allowed(self, hop: str, url: str) -> None:
        refusal = _refusal(url)
        if hop != url:  # its query may be a secret
            refusal = f"{refusal}: it redirects to {hop.partition('?')[0]}"
        # Parsers disagree about blanks, control characters, `\\` and `user@`.
        if re.search(r"[\x00-\x20\x7f\\]", hop) or not any(
            pattern.fullmatch(hop) for pattern in self._allowed
        ):
            raise ModelNotFound(refusal)
        try:
            parts = urlsplit(hop)
            is_plain = (
                parts.scheme in _DEFAULT_PORTS and parts.port != 0 and "@" not in parts.netloc
            )
        except ValueError as error:
            raise ModelNotFound(f"{refusal}: {error}") from error
        if not is_plain or not parts.hostname:
            raise ModelNotFound(refusal)

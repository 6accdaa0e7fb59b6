"""Finds the archive that a `url` parameter names; downloads it into the store if it is remote.

A download must not make a proxy into the local network of this server. Each hop's URL must match
the allow list, its host is resolved once (DNS rebinding waits for a second time), all its addresses
must be public, and the connection goes to one of them. Beside each download is a note with its URL;
no other file is ever replaced or removed.

The texts are TorchServe's. Source: torchserve 0.12, "Register a model".
"""

import contextlib
import logging
import os
import re
import socket
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urljoin, urlsplit

import httpx

from batching.addresses import is_public
from batching.errors import DownloadFailed, InternalError, ModelNotFound
from batching.settings.settings import Settings
from workers.archives.model_archive import MAX_UNPACKED_BYTES, inspect_archive, not_saved
from workers.archives.staging import DOWNLOAD_PREFIX, work_dir_of

MAX_REDIRECTS = 3
MAX_DOWNLOAD_S = 900
_TIMEOUT = httpx.Timeout(30, connect=10)
_DEFAULT_PORTS = {"http": 80, "https": 443}
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_NO_STORE = "`ferry up --model-store FOLDER` has one, and `ferry node --model-store FOLDER`"
log = logging.getLogger(__name__)


def locate_archive(
    url: str,
    settings: Settings,
    *,
    is_registered: bool = False,
    is_unused: Callable[[], bool] = lambda: False,
    downloader: "Downloader | None" = None,
) -> Path:
    """Returns the archive file or model folder in the model store; downloads a remote one.

    A client can only name what is in the store. The operator may put links there that lead
    anywhere, and name folders anywhere in `load_models`. Of a path that leads elsewhere only the
    last part counts, if the store has a file of that name. With `is_registered`, a download that is
    in the store is taken as it is, as the caller compares its SHA-256; `is_unused` returns whether
    an earlier one may be replaced.

    Raises:
        ModelNotFound: nothing there, or not for clients.
        DownloadFailed: no connection, no 200, too large or too slow.
        InvalidModel: the download is not a model archive.
        InternalError: a file of that name is in the store already, or cannot be written.
    """
    if ".." in url:
        raise ModelNotFound(f"Relative path is not allowed in url: {url}")
    if not url:
        raise ModelNotFound("empty url")
    if (store := settings.model_store) is None:
        raise _not_found("Model store has not been configured.", _NO_STORE)
    match = _SCHEME.match(url)
    if match is None:
        return _named_at_start(url, settings.load_models) or _in_store(url, store)
    if match[1].lower() == "file":
        return _file_in_store(url, store)
    if is_registered and _is_archive(known := _store_path(url, store)):
        return known
    downloader = downloader or Downloader(settings.allowed_urls)
    return downloader.fetch(url, store, work_dir_of(settings), is_unused)


# --- in the store


def _file_in_store(url: str, store: Path) -> Path:
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.netloc not in ("", "localhost") or ".." in path:
        raise ModelNotFound(_refusal(url))
    if archive := _find(path, store):
        return archive
    # To TorchServe a file URL is a download, so a missing file is a failed download.
    why = _why_not_found(path, store)
    raise DownloadFailed(f"Failed to download archive from: {url}{why}")


def _named_at_start(url: str, load_models: str) -> Path | None:
    named = {entry.strip().rpartition("=")[2] for entry in load_models.split(",")}
    with contextlib.suppress(OSError):  # below a folder that this user may not enter, say
        if url in named and "/" in url and Path(url).is_dir():
            return Path(url).absolute()
    return None


def _in_store(name: str, store: Path) -> Path:
    if archive := _find(name, store):
        return archive
    # A client may know the store by another path, such as the one outside of its container.
    if (archive := _find(PurePosixPath(name).name, store)) and archive.is_file():
        return archive
    message = f"Model not found at: {name}{_why_not_found(name, store)}"
    guess = ""
    with contextlib.suppress(OSError):  # a store that this user may not list, say
        names = [path.name for path in store.iterdir()]
        for alike in get_close_matches(name, names, n=1, cutoff=0.7):
            guess = f"Did you mean {alike}? "
    raise _not_found(message, f"{guess}It was looked for in {store}")


def _find(name: str, store: Path) -> Path | None:
    """Returns the file or folder of that name in the store, which may itself have two paths.

    The name cannot lead out of the store, as `..` was refused. Links are not resolved: their
    targets may have other names, and no suffix to tell the format by.
    """
    with contextlib.suppress(OSError, ValueError, RuntimeError):  # too long, a NUL, a loop of links
        for root in (store.absolute(), store.resolve()):
            if root in (path := root / name).parents and _is_archive(path):
                return path
    return None


def _is_archive(path: Path) -> bool:
    return path.is_file() or path.is_dir()  # to open a named pipe would block for ever


def _not_found(message: str, operators_text: str) -> ModelNotFound:
    error = ModelNotFound(message)
    error.operators_text = operators_text
    return error


def _why_not_found(name: str, store: Path) -> str:
    """Returns what the system says of a path in the store, besides that nothing is there."""
    path = store.absolute() / name
    try:
        if store.absolute() in path.parents:
            path.stat()
            return ": that is neither a file nor a folder"
    except FileNotFoundError:
        is_link = path.is_symlink()
        return ": a link is there, but not the file or folder that it leads to" if is_link else ""
    except OSError as error:
        return f": {error.strerror}"
    except ValueError:  # a NUL
        return ""
    return ""


# --- downloads in the store


def was_downloaded(url: str, store: Path | None) -> bool:
    name = _file_name(url)
    if store is None or not name:
        return False
    note = note_of(store / name)
    return note.is_file() and note.read_text(encoding="utf-8") == url


def may_share_a_file(url: str, other: str) -> bool:
    """Returns whether two `url` parameters, URLs or names, may mean one file of the store."""
    return bool(_file_name(url)) and _file_name(url) == _file_name(other)


def remove_download(url: str, store: Path) -> bool:
    if not was_downloaded(url, store):
        return False
    target = store / _file_name(url)
    target.unlink(missing_ok=True)
    note_of(target).unlink(missing_ok=True)
    return True


def note_of(target: Path) -> Path:
    return target.with_name(f".{target.name}.url")


def name_of_download(url: str) -> str:
    """Returns the file name that this URL's archive gets in the store; empty if it is local."""
    match = _SCHEME.match(url)
    with contextlib.suppress(ValueError):  # as `locate_archive` will say
        return "" if match is None or match[1].lower() == "file" else _file_name(url)
    return ""


def _store_path(url: str, store: Path) -> Path:
    if not (name := _file_name(url)):
        raise DownloadFailed(
            f"Failed to download archive from: {url}. Its path has to end in a file name of "
            "letters, digits, '.', '_' and '-'"
        )
    return store / name


def _file_name(url: str) -> str:
    """Returns the last segment of the URL's path; empty if no file here may have that name."""
    name = unquote(urlsplit(url).path.rpartition("/")[2])
    return name if _FILE_NAME.fullmatch(name) else ""


def _check_replaceable(url: str, target: Path, is_unused: Callable[[], bool]) -> None:
    # lexists: the name may belong to a link to a disk that is away.
    if os.path.lexists(target) and not (was_downloaded(url, target.parent) and is_unused()):
        raise InternalError(f"Model file already exists {target.name}")


# --- the web


def resolve_host(host: str, port: int) -> list[str]:
    entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in entries]


@dataclass(frozen=True, slots=True)
class Downloader:
    """Fetches from the URLs that the operator allows; `resolve` and `transport` are the network."""

    allowed_urls: str
    resolve: Callable[[str, int], list[str]] = resolve_host
    transport: httpx.BaseTransport | None = None
    max_bytes: int = MAX_UNPACKED_BYTES

    def fetch(self, url: str, store: Path, work_dir: Path, is_unused: Callable[[], bool]) -> Path:
        """Downloads and verifies the archive; a failure changes nothing in the model store."""
        self._check_allowed(url, url)
        target = _store_path(url, store)
        is_known = os.path.lexists(target)
        _check_replaceable(url, target, is_unused)
        try:
            with tempfile.TemporaryDirectory(prefix=DOWNLOAD_PREFIX, dir=store) as staging:
                file = Path(staging) / target.name
                self._download(url, file)
                inspect_archive(file, url, work_dir)
                # First: an archive in the store without a note would never be replaced or removed.
                note_of(file).write_text(url, encoding="utf-8")
                # Meanwhile it may have been registered, or another file may have got that name.
                if is_known or not was_downloaded(url, store):
                    _check_replaceable(url, target, is_unused)
                file.rename(target)
                note_of(file).rename(note_of(target))
        except OSError as error:
            raise not_saved(url, store, error) from error
        return target

    def _download(self, url: str, file: Path) -> None:
        """Writes what the URL leads to into a new file; follows MAX_REDIRECTS at most."""
        give_up_s = time.monotonic() + MAX_DOWNLOAD_S
        hop = url
        # No proxy from the environment: it would resolve the name once more.
        client = httpx.Client(transport=self.transport, timeout=_TIMEOUT, trust_env=False)
        try:
            with client, file.open("xb") as stream:
                for _ in range(MAX_REDIRECTS + 1):
                    with contextlib.closing(self._send(client, hop, url)) as response:
                        if response.status_code == httpx.codes.OK:
                            for chunk in response.iter_raw():
                                if stream.tell() + len(chunk) > self.max_bytes:
                                    raise httpx.TransportError("too large")
                                if time.monotonic() > give_up_s:
                                    raise httpx.TransportError("too slow")
                                stream.write(chunk)
                            return
                        if not response.has_redirect_location:
                            raise httpx.TransportError(f"status {response.status_code}")
                        hop = urljoin(hop, response.headers["location"])
            raise httpx.TransportError("too many redirects")
        except (httpx.HTTPError, httpx.InvalidURL, socket.gaierror, ValueError) as error:
            # The cause is in the log only.
            log.error("not downloaded url=%s: %s: %s", url, type(error).__name__, error)
            raise DownloadFailed(f"Failed to download archive from: {url}") from error

    def _send(self, client: httpx.Client, hop: str, url: str) -> httpx.Response:
        """Asks the hop's host at its first address that takes connections; all were checked."""
        self._check_allowed(hop, url)
        parts = urlsplit(hop)
        host = parts.hostname or ""
        addresses = self.resolve(host, parts.port or _DEFAULT_PORTS[parts.scheme])
        # One private address among public ones is enough to refuse: the resolver is not ours.
        if not all(is_public(address) for address in addresses):
            raise ModelNotFound(f"{_refusal(url)}: {host} leads to an address that is not public")
        failure: httpx.TransportError = httpx.ConnectError("host does not resolve")
        for address in addresses:
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

    def _check_allowed(self, hop: str, url: str) -> None:
        refusal = _refusal(url)
        if hop != url:  # its query may be a secret
            refusal = f"{refusal}: it redirects to {hop.partition('?')[0]}"
        patterns = filter(None, map(str.strip, self.allowed_urls.split(",")))
        is_allowed = any(re.fullmatch(pattern, hop, re.IGNORECASE) for pattern in patterns)
        # Parsers disagree about blanks, control characters, `\\` and `user@`.
        if not is_allowed or re.search(r"[\x00-\x20\x7f\\]", hop):
            raise ModelNotFound(refusal)
        try:
            parts = urlsplit(hop)
            is_plain = parts.port != 0 and "@" not in parts.netloc and bool(parts.hostname)
        except ValueError as error:
            raise ModelNotFound(f"{refusal}: {error}") from error
        if not is_plain or parts.scheme not in _DEFAULT_PORTS:
            raise ModelNotFound(refusal)


def _refusal(url: str) -> str:
    return f"Given URL {url} does not match any allowed URL(s)"

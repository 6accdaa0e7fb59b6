"""Finds the archive that a `url` parameter names; one in the web is first brought into the store.

A download must not make a proxy into the local network of this server. Every hop is checked the
same way: the URL must match the allow list, its host is resolved once, all its addresses must be
public, and the connection goes to an address that was checked. A second question to the resolver is
what DNS rebinding waits for. Beside each download is a note with its URL; no other file is ever
replaced or removed.

The texts are TorchServe's. Source: torchserve 0.12, "Register a model".
"""

import logging
import os
import re
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from difflib import get_close_matches
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urljoin, urlsplit

import httpx

from batching.addresses import is_public
from batching.errors import DownloadFailed, InternalError, ModelNotFound
from batching.settings.settings import DEFAULT_ALLOWED_URLS
from workers.archives.archive_entries import MAX_UNPACKED_BYTES
from workers.archives.model_archive import inspect_archive, not_saved
from workers.archives.staging import DOWNLOAD_PREFIX

MAX_REDIRECTS = 3
MAX_DOWNLOAD_S = 900
_TIMEOUT = httpx.Timeout(30, connect=10)
_DEFAULT_PORTS = {"http": 80, "https": 443}
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
# Too long, a NUL in it, or a link to itself.
_NO_PATH = (OSError, ValueError, RuntimeError)
# Names of archives that an error tells.
_MOST_NAMES = 5
_NO_STORE = "`ferry up --model-store FOLDER` has one, and `ferry node --model-store FOLDER`"
log = logging.getLogger(__name__)

# Told (bytes so far, bytes in all or None) while a download runs.


def locate_archive(
    url: str,
    model_store: Path | None,
    *,
    allowed_urls: str = DEFAULT_ALLOWED_URLS,
    startup_models: str = "",
    is_registered: bool = False,
    is_unused: Callable[[], bool] | None = None,
    downloader: "Downloader | None" = None,
) -> Path:
    """Returns the archive file or model folder in the model store; downloads a remote one.

    What a client names stays in the store. What the operator lays there may be a link, and lead
    anywhere. A folder that the operator names as a startup model may be anywhere, too.

    Args:
        url: a name in the store, `file://` with a path in the store, or http(s). Of a path that
            leads elsewhere only the last part counts, if the store has a file of that name.
        model_store: the folder of archives.
        allowed_urls: comma list of regular expressions, as in config.properties; a remote URL
            must match one as a whole.
        startup_models: the setting `load_models`.
        is_registered: a download that is already in the store is used rather than refused: the
            caller knows its SHA-256 and compares.
        is_unused: whether no version needs a file of that name; an earlier download from this URL
            is then replaced rather than refused. Asked again before that is done.
        downloader: fetches remote archives; tests pass one with its own network.

    Raises:
        ModelNotFound: nothing there, or a place that this server does not look at. What is there
            only operators hear.
        DownloadFailed: no connection, no 200, too large or too slow.
        InvalidModel: the download is not a model archive.
        InternalError: a file of that name is in the store already, or cannot be written.
    """
    if ".." in url:
        raise ModelNotFound(f"Relative path is not allowed in url: {url}")
    if not url:
        raise ModelNotFound("empty url")
    if model_store is None:
        raise _not_found("Model store has not been configured.", _NO_STORE)
    match = _SCHEME.match(url)
    if match is None:
        return _startup_folder(url, startup_models) or _in_store(url, model_store)
    if match[1].lower() == "file":
        return _file_in_store(url, model_store)
    if is_registered and _is_archive(known := _store_path(url, model_store)):
        return known
    downloader = downloader or Downloader(allowed_urls)
    return downloader.fetch(url, model_store, is_unused)


# --- in the store


def _file_in_store(url: str, model_store: Path) -> Path:
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.netloc not in ("", "localhost") or ".." in path:
        raise ModelNotFound(f"Given URL {url} does not match any allowed URL(s)")
    archive = _find(path, model_store)
    if archive is None:
        # To TorchServe a file URL is a download, and one that brings nothing is a failed one.
        why = _why_not_found(path, model_store)
        raise DownloadFailed(f"Failed to download archive from: {url}{why}")
    return archive


def _startup_folder(url: str, startup_models: str) -> Path | None:
    named = {entry.strip().rpartition("=")[2] for entry in startup_models.split(",")}
    if url not in named or "/" not in url:
        return None
    try:
        # Path.is_dir() has no errors from Python 3.14 on.
        is_folder = stat.S_ISDIR(Path(url).stat().st_mode)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    except OSError as error:  # below a folder that this user may not enter, say
        raise ModelNotFound(f"Model not found at: {url}: {error.strerror}") from error
    return Path(url).absolute() if is_folder else None


def _in_store(name: str, model_store: Path) -> Path:
    archive = _find(name, model_store)
    if archive is None:
        # A client may know the store by another path, such as the one outside of its container.
        archive = _find(PurePosixPath(name).name, model_store)
        if archive is None or not archive.is_file():
            message = f"Model not found at: {name}{_why_not_found(name, model_store)}"
            raise _not_found(message, _what_is_there(name, model_store))
    return archive


def _find(name: str, model_store: Path) -> Path | None:
    try:
        return next(filter(_is_archive, _paths_of(name, model_store)), None)
    except _NO_PATH:
        return None


def _paths_of(name: str, model_store: Path) -> Iterator[Path]:
    """Yields what the name means in the store, which may itself be known by two paths.

    The name stays in the store, as `..` in it was refused. Links are not resolved: their targets
    may have other names, and no suffix to tell the format by.
    """
    for store in (model_store.absolute(), model_store.resolve()):
        if store in (path := store / name).parents:
            yield path


def _is_archive(path: Path) -> bool:
    return path.is_file() or path.is_dir()  # to open a named pipe would block for ever


def _not_found(message: str, operators_text: str) -> ModelNotFound:
    error = ModelNotFound(message)
    error.operators_text = operators_text
    return error


def _what_is_there(name: str, model_store: Path) -> str:
    """Returns where the name was looked for, and the archives there: first one that is alike."""
    store = model_store.absolute()
    try:
        names = sorted(
            path.name
            for path in store.iterdir()
            if path.suffix == ".mar" or (path / "MAR-INF").is_dir()
        )
    except OSError as error:
        return f"The model store {store} cannot be read: {error.strerror}"
    if alike := get_close_matches(name, names, n=1, cutoff=0.8):
        return f"Did you mean {alike[0]}? It was looked for in {store}"
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    there = ", ".join(names[:_MOST_NAMES]) + more
    return f"It was looked for in {store}, which has {there or 'no archives'}"


def _why_not_found(name: str, model_store: Path) -> str:
    """Returns what to add to "not found": that `.mar` is left out, or what is wrong there."""
    if _find(f"{name}.mar", model_store):
        return f". Did you mean {name}.mar?"
    try:
        for path in _paths_of(name, model_store):
            if path.is_symlink() and not path.exists():
                return ": a link is there, but not the file or folder that it leads to"
            path.stat()
            return ": that is neither a file nor a folder"
    except (FileNotFoundError, ValueError, RuntimeError):
        pass
    except OSError as error:
        return f": {error.strerror}"
    return ""


# --- downloads in the store


def was_downloaded(url: str, model_store: Path | None) -> bool:
    name = _file_name(url)
    if model_store is None or not name:
        return False
    note = note_of(model_store / name)
    return note.is_file() and note.read_text(encoding="utf-8") == url


def may_share_a_file(url: str, other: str) -> bool:
    """Returns whether two `url` parameters may mean one file of the model store, by its name.

    A download can be registered by its name in the store, too.
    """
    return bool(_file_name(url)) and _file_name(url) == _file_name(other)


def remove_download(url: str, model_store: Path) -> bool:
    if not was_downloaded(url, model_store):
        return False
    target = model_store / _file_name(url)
    target.unlink(missing_ok=True)
    note_of(target).unlink(missing_ok=True)
    return True


def note_of(target: Path) -> Path:
    return target.with_name(f".{target.name}.url")


def name_of_download(url: str) -> str:
    """Returns the file name that this URL's archive gets in the store; empty if it is local."""
    match = _SCHEME.match(url)
    if match is None or match[1].lower() == "file":
        return ""
    try:
        return _file_name(url)
    except ValueError:  # as `locate_archive` will say
        return ""


def _store_path(url: str, model_store: Path) -> Path:
    if not (name := _file_name(url)):
        raise DownloadFailed(
            f"Failed to download archive from: {url}. Its path has to end in a file name of "
            "letters, digits, '.', '_' and '-'"
        )
    return model_store / name


def _file_name(url: str) -> str:
    """Returns the last segment of the URL's path; empty unless a file here may have that name."""
    name = unquote(urlsplit(url).path.rpartition("/")[2])
    return name if _FILE_NAME.fullmatch(name) else ""


def _check_replaceable(url: str, target: Path, is_unused: Callable[[], bool] | None) -> None:
    is_ours = was_downloaded(url, target.parent)
    # The name may be that of a link to a disk that is away.
    if os.path.lexists(target) and not (is_ours and is_unused is not None and is_unused()):
        raise InternalError(f"Model file already exists {target.name}")


# --- the web


def resolve_host(host: str, port: int) -> list[str]:
    entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in entries]


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
        target = _store_path(url, model_store)
        is_there = os.path.lexists(target)
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
                with closing(self._send(client, hop, url)) as response:
                    if response.status_code == httpx.codes.OK:
                        yield response
                        return
                    if not response.has_redirect_location:
                        raise httpx.TransportError(f"status {response.status_code}")
                    hop = urljoin(hop, response.headers["location"])
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


def _refusal(url: str) -> str:
    return f"Given URL {url} does not match any allowed URL(s)"


def _failed(url: str, error: Exception) -> DownloadFailed:
    """Returns the client's error; the cause is in the log only."""
    log.error("not downloaded url=%s: %s: %s", url, type(error).__name__, error)
    return DownloadFailed(f"Failed to download archive from: {url}")

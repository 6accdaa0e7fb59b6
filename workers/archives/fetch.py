"""Finds the archive that a `url` parameter names; one in the web is first brought into the store.

The texts are TorchServe's. Source: torchserve 0.12, "Register a model".
"""

import re
import stat
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from batching.errors import DownloadFailed, ModelNotFound
from batching.settings.settings import DEFAULT_ALLOWED_URLS
from workers.archives.download import Downloader
from workers.archives.download_notes import store_path

# Too long, a NUL in it, or a link to itself.
_NO_PATH = (OSError, ValueError, RuntimeError)
# Names of archives that an error tells.
_MOST_NAMES = 5
_NO_STORE = "`ferry up --model-store FOLDER` has one, and `ferry node --model-store FOLDER`"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")


def locate_archive(
    url: str,
    model_store: Path | None,
    *,
    allowed_urls: str = DEFAULT_ALLOWED_URLS,
    startup_models: str = "",
    is_registered: bool = False,
    is_unused: Callable[[], bool] | None = None,
    downloader: Downloader | None = None,
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
    if is_registered and _is_archive(known := store_path(url, model_store)):
        return known
    downloader = downloader or Downloader(allowed_urls)
    return downloader.fetch(url, model_store, is_unused)


def name_of_download(url: str) -> str:
    """Returns the file name that this URL's archive gets in the store; empty if it is local."""
    match = _SCHEME.match(url)
    if match is None or match[1].lower() == "file":
        return ""
    try:
        return store_path(url, Path()).name
    except (DownloadFailed, ValueError):  # as `locate_archive` will say
        return ""


def _file_in_store(url: str, model_store: Path) -> Path:
    # To TorchServe a file URL is a download, and one that brings nothing is a failed one.
    path = _path_of_file_url(url)
    place = _find(path, model_store)
    if place is None:
        why = _why_not_found(path, model_store)
        raise DownloadFailed(f"Failed to download archive from: {url}{why}")
    return place


def _path_of_file_url(url: str) -> str:
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.netloc not in ("", "localhost") or ".." in path:
        raise ModelNotFound(f"Given URL {url} does not match any allowed URL(s)")
    return path


def _startup_folder(url: str, startup_models: str) -> Path | None:
    """Returns the folder if `load_models` names it by a path, such as SageMaker's /opt/ml/model."""
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
    place = _find(name, model_store) or _file_of_the_name(name, model_store)
    if place is None:
        text = f"Model not found at: {name}{_why_not_found(name, model_store)}"
        raise _not_found(text, _what_is_there(name, model_store))
    return place


def _find(name: str, model_store: Path) -> Path | None:
    try:
        return next(filter(_is_archive, _places(name, model_store)), None)
    except _NO_PATH:
        return None


def _places(name: str, model_store: Path) -> Iterator[Path]:
    """Yields what the name means in the store, which may itself be known by two paths.

    The name stays in the store, as `..` in it was refused. Links are not resolved: their targets
    may have other names, and no suffix to tell the format by.
    """
    for store in (model_store.absolute(), model_store.resolve()):
        if store in (place := store / name).parents:
            yield place


def _file_of_the_name(path: str, model_store: Path) -> Path | None:
    # A client may know the store by another path, such as the one outside of its container.
    place = _find(PurePosixPath(path).name, model_store)
    return place if place is not None and place.is_file() else None


def _is_archive(place: Path) -> bool:
    """Returns whether the path is a file or folder: opening a named pipe would block for ever."""
    return place.is_file() or place.is_dir()


def _not_found(message: str, operators_text: str) -> ModelNotFound:
    error = ModelNotFound(message)
    error.operators_text = operators_text
    return error


def _what_is_there(name: str, model_store: Path) -> str:
    """Returns where the name was looked for, and the archives there: first one that is alike."""
    store = model_store.absolute()
    try:
        names = sorted(one.name for one in store.iterdir() if _is_named_as_archive(one))
    except OSError as error:
        return f"The model store {store} cannot be read: {error.strerror}"
    if alike := get_close_matches(name, names, n=1, cutoff=0.8):
        return f"Did you mean {alike[0]}? It was looked for in {store}"
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    there = ", ".join(names[:_MOST_NAMES]) + more
    return f"It was looked for in {store}, which has {there or 'no archives'}"


def _is_named_as_archive(path: Path) -> bool:
    return path.suffix == ".mar" or (path / "MAR-INF").is_dir()


def _why_not_found(name: str, model_store: Path) -> str:
    """Returns what to add to "not found": that `.mar` is left out, or what is wrong there."""
    if _find(f"{name}.mar", model_store):
        return f". Did you mean {name}.mar?"
    try:
        for place in _places(name, model_store):
            if place.is_symlink() and not place.exists():
                return ": a link is there, but not the file or folder that it leads to"
            place.stat()
            return ": that is neither a file nor a folder"
    except (FileNotFoundError, ValueError, RuntimeError):
        pass
    except OSError as error:
        return f": {error.strerror}"
    return ""

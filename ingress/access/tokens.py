"""Decides which requests may pass, by TorchServe's `key_file.json`; keeps digests of its keys.

Several ingresses may share one file: the first one makes it, and each notices when another has
renewed a key. Source: TorchServe 0.12 `TokenAuthorization`.
"""

import contextlib
import datetime
import errno
import fcntl
import hashlib
import hmac
import json
import logging
import os
import secrets
import stat
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from batching.errors import BadRequest
from batching.settings.files import write_atomically
from batching.settings.settings import Settings, SettingsError
from ingress.role import Role
from ingress.torchserve.routes import key_for

log = logging.getLogger(__name__)

# TorchServe's keys have 6 random bytes, which an attacker can guess by trying.
KEY_BYTES = 32

# How long a key that another process has replaced may still work here.
LOOK_AGAIN_S = 1.0

_EXPIRATION = "expiration time"  # the blank is TorchServe's
_REFUSED = "Token {} failed. Token either incorrect, expired, or not provided correctly"


class InvalidKey(BadRequest, type="InvalidKeyException", reason="invalid_key"):
    """Refuses a request with a wrong key or none: with 400, as TorchServe's clients expect."""


# The sections of the file, by what their keys open.
API = "API"
SCOPES = ("management", "inference", API)
# The API key renews the others and lives as long as the file.
RENEWABLE = SCOPES[:2]


class _Secret(NamedTuple):
    digest: bytes
    expires_at: datetime.datetime | None = None

    def matches(self, token: str) -> bool:
        """Returns whether this is the key, in a time that does not depend on where they differ."""
        is_same = hmac.compare_digest(self.digest, _digest(token))
        return is_same and not self.has_expired()

    def has_expired(self) -> bool:
        return self.expires_at is not None and self.expires_at <= _now()


_NO_KEYS = dict.fromkeys(SCOPES, _Secret(b""))  # no token has this digest


class KeyFile:
    """Checks tokens against the file and renews its keys. Safe to use from several threads."""

    def __init__(self, path: Path, *, lifetime_min: float) -> None:
        self._path = path
        self._lifetime_min = lifetime_min
        self._secrets: Mapping[str, _Secret] = _NO_KEYS
        self._seen: tuple[int, int] | None = None
        self._look_at_s = 0.0

    def open(self, *, only_checked: bool = False) -> None:
        """Reads the file; first makes a missing file and replaces expired keys.

        `only_checked`: only checks that this is possible.

        Raises:
            SettingsError: the file can be neither read nor made, or is no key file.
        """
        try:
            with self._locked():
                if self._path.exists():
                    self._read()
                elif not only_checked:
                    self._write({}, SCOPES)
                elif not os.access(self._path.parent, os.W_OK):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self._path))
                if only_checked:
                    return
                if expired := [scope for scope in RENEWABLE if self._secrets[scope].has_expired()]:
                    self._write(self._read(), expired)
                if stat.S_IMODE(self._path.stat().st_mode) & 0o077:
                    log.warning("key_file=%s can be read by others: chmod 600 is meant", self._path)
        except (OSError, ValueError) as error:
            is_none = isinstance(error, ValueError)
            hint = ". A start makes a new one where there is none" if is_none else ""
            raise SettingsError(f"key_file={self._path}: {error}{hint}") from error

    def accepts(self, scope: str, token: str) -> bool:
        if time.monotonic() >= self._look_at_s:
            self._look()
        if self._secrets[scope].matches(token):
            return True
        # Another process may have made the key a moment ago.
        return self._look() and self._secrets[scope].matches(token)

    def renew(self, kind: str, authorization: str) -> None:
        """Writes a new key into the file for a client with the API key; the old one ends here.

        Raises:
            InvalidKey: this Authorization header has another key, or this kind is not renewed.
            OSError, ValueError: the file cannot be read or written; nothing has changed.
        """
        if kind not in RENEWABLE or not self.accepts(API, _token(authorization)):
            raise InvalidKey(_REFUSED.format("Authentication"))
        with self._locked():
            self._write(self._read(), [kind])

    def _look(self) -> bool:
        """Reads the file again if it has changed; returns whether it did.

        While the file cannot be read, the known keys stay.
        """
        self._look_at_s = time.monotonic() + LOOK_AGAIN_S
        try:
            if self._identity() == self._seen:
                return False
            self._read()
        except (OSError, ValueError) as error:
            log.warning("key_file=%s is not readable: %s", self._path, error)
            return False
        return True

    def _identity(self) -> tuple[int, int]:
        status = self._path.stat()
        return status.st_mtime_ns, status.st_ino

    def _read(self) -> dict[str, Any]:
        """Remembers the keys' digests; a missing section opens nothing."""
        identity = self._identity()
        document = json.loads(self._path.read_text(encoding="utf-8"))
        if not isinstance(document, dict):
            raise ValueError("not a JSON object with a key per scope")
        known = {scope: _secret(scope, document[scope]) for scope in SCOPES if scope in document}
        self._secrets = _NO_KEYS | known
        self._seen = identity
        return document

    def _write(self, document: dict[str, Any], renewed: Iterable[str]) -> None:
        """Writes the file with new keys for these scopes, and reads it."""
        expires_at = _now() + datetime.timedelta(minutes=self._lifetime_min)
        for scope in renewed:
            document[scope] = entry = {"key": secrets.token_urlsafe(KEY_BYTES)}
            if scope in RENEWABLE:
                entry[_EXPIRATION] = expires_at.isoformat().replace("+00:00", "Z")
        write_atomically(self._path, json.dumps(document, indent=2) + "\n")
        self._read()
        log.info("renewed key_file=%s keys=%s", self._path, ",".join(renewed))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        # On the folder: a renewal renames a new file into place, without the old one's lock.
        number = os.open(self._path.parent, os.O_RDONLY)
        try:
            fcntl.flock(number, fcntl.LOCK_EX)
            yield
        finally:
            os.close(number)


def open_keys(settings: Settings, *, only_checked: bool = False) -> KeyFile | None:
    """Opens the key file, or only checks it; returns None without tokens.

    Raises:
        SettingsError: the file cannot be used.
    """
    path = settings.keys_path()
    if path is None:
        return None
    keys = KeyFile(path.absolute(), lifetime_min=settings.token_expiration_min)
    keys.open(only_checked=only_checked)
    return keys


class Authorizer:
    """Checks the token of each request to one listener; `is_closed` if tokens are needed.

    Predictions, the WSGI bridge and the Flask application all call it, so that no way in is
    forgotten.
    """

    def __init__(self, keys: KeyFile | None, roles: Collection[Role]) -> None:
        self._keys = keys
        self._roles = frozenset(roles)
        self.is_closed = keys is not None

    def admit(self, method: str, path: str, authorization: str) -> None:
        """Checks that the request may pass; its path is percent-decoded.

        Raises:
            InvalidKey: this Authorization header lacks the key that the path needs.
        """
        if self._keys is None:
            return
        role = key_for(method, path, self._roles)
        if role and not self._keys.accepts(role, _token(authorization)):
            raise InvalidKey(_REFUSED.format("Authorization"))


def _secret(scope: str, entry: Any) -> _Secret:
    key = entry.get("key") if isinstance(entry, dict) else None
    if not isinstance(key, str) or not key:
        raise ValueError(f"the section {scope!r} has no key")
    if (expires := entry.get(_EXPIRATION)) is None:
        return _Secret(_digest(key))
    expires_at = datetime.datetime.fromisoformat(str(expires))
    if expires_at.tzinfo is None:
        raise ValueError(f"the {_EXPIRATION} of {scope!r} has no time zone")
    return _Secret(_digest(key), expires_at)


def _token(authorization: str) -> str:
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme == "Bearer" else ""  # "" is no key


def _digest(token: str) -> bytes:
    # A key of 32 random bytes cannot be guessed, so it needs no slow hash.
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def _now() -> datetime.datetime:
    # Wall clock: the file says when a key ends, and other machines read it.
    return datetime.datetime.now(datetime.UTC)

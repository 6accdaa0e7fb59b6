"""The certificate of the https:// listeners. A renewed one is taken up without a restart."""

import asyncio
import logging
import re
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from batching.process.daemon_thread import in_daemon_thread
from batching.settings.pem_files import load_pair
from batching.settings.settings import SettingsError

log = logging.getLogger(__name__)

# Renewals come days before a certificate ends; an operator who tries one should not wait long.
LOOK_S = 5.0
# A certificate for hours or days is renewed when a third of its life is left, or later.
SOON = timedelta(days=14)
SOON_OF_LIFE = 1 / 6
_FIRST = re.compile("-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
# `ssl` gives no dates of a certificate that it does not trust. In DER the two dates can be written
# in one way only (RFC 5280, 4.1.2.5): as UTCTime until 2049, as GeneralizedTime from then on.
_VALIDITY = re.compile(rb"\x30[\x1e\x20\x22]" + 2 * rb"(?:\x17\x0d|\x18\x0f)(\d{12,14}Z)")


class Certificate:
    """Holds a server's certificate and key, from PEM files, in a `context` for listeners."""

    def __init__(
        self,
        certificate_file: Path,
        private_key_file: Path,
        *,
        look_s: float = LOOK_S,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.certificate_file = certificate_file
        self.private_key_file = private_key_file
        self.context = _server_context()
        self._seen: tuple[object, ...] = ()
        self._complaint = ""
        self._look_s = look_s
        self._clock = clock
        self._validity: tuple[datetime, datetime] | None = None
        self._warning = ""

    def open(self) -> None:
        """Reads the files, for the connections that begin from now on.

        Raises:
            SettingsError: they are no certificate and its private key.
        """
        seen = self._identity()
        # Tried first: files that cannot be used must not replace what can.
        for context in (_server_context(), self.context):
            load_pair(context, self.certificate_file, self.private_key_file)
        self._seen = seen
        self._validity = _validity(self.certificate_file)
        self._warning = ""
        self._warn()

    async def follow(self) -> None:
        """Takes up renewed files until cancelled."""
        while True:
            await asyncio.sleep(self._look_s)
            self._warn()
            # In a thread, as the files of a network file system may take long.
            if await in_daemon_thread(self._is_renewed):
                # On the loop: a context must not change while a connection is made from it.
                self._renew()

    def _warn(self) -> None:
        """Logs, once, that clients refuse the certificate, or will soon."""
        if self._validity is None:
            return
        begins_at, expires_at = self._validity
        left = expires_at - self._clock()
        if left > max(timedelta(), min(SOON, (expires_at - begins_at) * SOON_OF_LIFE)):
            return
        warning = "certificate will expire" if left > timedelta() else "certificate has expired"
        if warning != self._warning:
            date = f"{expires_at:%Y-%m-%dT%H:%M:%SZ}"
            log.warning("%s at=%s certificate_file=%s", warning, date, self.certificate_file)
            self._warning = warning

    def _is_renewed(self) -> bool:
        return self._identity() != self._seen

    def _renew(self) -> None:
        try:
            self.open()
        except SettingsError as error:
            if self._complaint != str(error):
                log.error("certificate not renewed: %s", error)
            self._complaint = str(error)
        else:
            log.info("renewed certificate_file=%s", self.certificate_file)
            self._complaint = ""

    def _identity(self) -> tuple[object, ...]:
        return _identity(self.certificate_file), _identity(self.private_key_file)


def _server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _validity(file: Path) -> tuple[datetime, datetime] | None:
    """Returns when the file's first certificate, the server's own, begins and ends, if known."""
    try:
        pem = _FIRST.search(file.read_text(errors="replace"))
        found = pem and _VALIDITY.search(ssl.PEM_cert_to_DER_cert(pem[0]))
        if not found:
            return None
        return _moment(found[1].decode()), _moment(found[2].decode())
    except (OSError, ValueError):
        return None


def _moment(date: str) -> datetime:
    year = "%Y" if len(date) == len("YYYYMMDDhhmmssZ") else "%y"
    return datetime.strptime(date, f"{year}%m%d%H%M%SZ").replace(tzinfo=UTC)


def _identity(file: Path) -> object:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino

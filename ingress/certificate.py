"""The certificate of the https:// listeners; a renewed one is taken up without a restart."""

import asyncio
import logging
import ssl
from pathlib import Path

from batching.daemon_thread import in_daemon_thread
from batching.settings import SettingsError

log = logging.getLogger(__name__)

# Certificates are renewed days before they end, but a test of the renewal should not take long.
LOOK_S = 5.0

_Identity = tuple[tuple[int, int], ...]


class Certificate:
    """What a server proves itself with: PEM files. `context` is what listeners take."""

    def __init__(self, certificate_file: Path, private_key_file: Path) -> None:
        self.certificate_file = certificate_file
        self.private_key_file = private_key_file
        self.context = _server_context()
        self._seen: _Identity = ()
        self._complaint = ""

    def open(self) -> None:
        """Connections that begin from now on are proved with what is in the files.

        Raises:
            SettingsError: that is no certificate with the private key that belongs to it.
        """
        try:
            seen = self._identity()
            # Tried apart: what cannot be used must not take the place of what can.
            self._load(_server_context())
            self._load(self.context)
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
            raise SettingsError(
                f"certificate_file={self.certificate_file}, "
                f"private_key_file={self.private_key_file}: no certificate in PEM with the private "
                f"key that belongs to it ({reason})"
            ) from error
        self._seen = seen

    async def follow(self) -> None:
        """Takes up renewed files until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            # Files of a network may make whoever looks wait.
            if await in_daemon_thread(self._is_renewed):
                # Here: a context must not change while a connection is made from it.
                self._renew()

    def _is_renewed(self) -> bool:
        try:
            return self._identity() != self._seen
        except OSError:
            return True  # to be complained of

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

    def _identity(self) -> _Identity:
        found = [path.stat() for path in (self.certificate_file, self.private_key_file)]
        return tuple((one.st_mtime_ns, one.st_ino) for one in found)

    def _load(self, context: ssl.SSLContext) -> None:
        context.load_cert_chain(self.certificate_file, self.private_key_file, _no_passphrase)


def _server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _no_passphrase() -> str:
    # Without this, OpenSSL asks at the terminal.
    raise ValueError("the key has a passphrase: `openssl pkey -in KEY -out NEW` writes it without")

"""The certificate of the https:// listeners; a renewed one is taken up without a restart."""

import asyncio
import logging
import ssl
from pathlib import Path

from batching.daemon_thread import in_daemon_thread
from batching.pem_files import load_pair
from batching.settings import SettingsError

log = logging.getLogger(__name__)

# Certificates are renewed days before they end, but a test of the renewal should not take long.
LOOK_S = 5.0


class Certificate:
    """What a server proves itself with: PEM files. `context` is what listeners take."""

    def __init__(self, certificate_file: Path, private_key_file: Path) -> None:
        self.certificate_file = certificate_file
        self.private_key_file = private_key_file
        self.context = _server_context()
        self._seen: tuple[object, ...] = ()
        self._complaint = ""

    def open(self) -> None:
        """Connections that begin from now on are proved with what is in the files.

        Raises:
            SettingsError: that is no certificate with the private key that belongs to it.
        """
        seen = self._identity()
        # Tried apart: what cannot be used must not take the place of what can.
        for context in (_server_context(), self.context):
            load_pair(context, self.certificate_file, self.private_key_file)
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


def _identity(file: Path) -> object:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino

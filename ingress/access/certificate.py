"""Loads the certificate of the https:// listeners, and renewed files without a restart."""

import asyncio
import contextlib
import logging
import ssl
from pathlib import Path
from urllib.parse import urlsplit

from batching.process.daemon_thread import in_daemon_thread
from batching.settings.pem_files import load_pair
from batching.settings.settings import Settings, SettingsError

log = logging.getLogger(__name__)

# Renewals come days before a certificate ends; an operator who tries one should not wait long.
LOOK_S = 5.0


class Certificate:
    """Holds a server's certificate and key, from PEM files, in a `context` for listeners."""

    def __init__(
        self, certificate_file: Path, private_key_file: Path, *, look_s: float = LOOK_S
    ) -> None:
        self.certificate_file = certificate_file
        self.private_key_file = private_key_file
        self.context = _server_context()
        self._seen: list[object] = []
        self._complaint = ""
        self._look_s = look_s

    def open(self) -> None:
        """Reads the files, for new connections.

        Raises:
            SettingsError: the files are no certificate and its private key.
        """
        seen = self._identity()
        # Tried on another context first: unusable files must not replace usable ones.
        for context in (_server_context(), self.context):
            load_pair(context, self.certificate_file, self.private_key_file)
        self._seen = seen

    async def follow(self) -> None:
        while True:
            await asyncio.sleep(self._look_s)
            # In a thread, as a network file system may be slow.
            if await in_daemon_thread(self._identity) == self._seen:
                continue
            try:
                # On the loop: a context must not change while a connection is made from it.
                self.open()
            except SettingsError as error:
                if self._complaint != str(error):
                    log.error("certificate not renewed: %s", error)
                self._complaint = str(error)
            else:
                log.info("renewed certificate_file=%s", self.certificate_file)
                self._complaint = ""

    def _identity(self) -> list[object]:
        identity: list[object] = []
        for file in (self.certificate_file, self.private_key_file):
            with contextlib.suppress(OSError):
                status = file.stat()
                identity.append((status.st_mtime_ns, status.st_ino))
        return identity


def certificate_of(settings: Settings) -> Certificate | None:
    """Returns the certificate of listeners with `https://`, unopened; None if there are none.

    Raises:
        SettingsError: the certificate or its key is missing, or not a file.
    """
    certificate, key = settings.certificate_file, settings.private_key_file
    if not any(urlsplit(written).scheme == "https" for written in settings.addresses().values()):
        return None
    # TorchServe makes a self-signed one; a client that trusts such a certificate trusts any.
    if certificate is None or key is None:
        raise SettingsError("https:// needs certificate_file and private_key_file")
    for path in (certificate, key):
        if not path.is_file():
            raise SettingsError(f"no such file for https://: {path}")
    return Certificate(certificate, key)


def _server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context

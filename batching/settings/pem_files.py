"""Loads certificates and keys from PEM files; errors name the files and the reason."""

import ssl
from pathlib import Path

from batching.settings.settings import SettingsError


def load_pair(
    context: ssl.SSLContext, certificate_file: Path, private_key_file: Path | None
) -> None:
    """Loads the certificate and its key; without a key file, the certificate's file has the key.

    Raises:
        SettingsError: they cannot be loaded. The context may then have one of the two.
    """
    try:
        context.load_cert_chain(certificate_file, private_key_file, _no_passphrase)
    except (OSError, ValueError) as error:
        files = " and ".join(str(file) for file in (certificate_file, private_key_file) if file)
        text = "no certificate in PEM with the private key that belongs to it"
        raise SettingsError(f"{files}: {text} ({_reason(error)})") from error


def load_authorities(context: ssl.SSLContext, file: Path) -> None:
    """Lets the context trust the certificates in this file.

    Raises:
        SettingsError: the file has none.
    """
    try:
        context.load_verify_locations(file)
    except OSError as error:
        raise SettingsError(f"{file}: no certificates in PEM ({_reason(error)})") from error


def _no_passphrase() -> str:
    # Without this, OpenSSL asks at the terminal.
    raise ValueError("the key has a passphrase: `openssl pkey -in KEY -out NEW` writes it without")


def _reason(error: Exception) -> object:
    return getattr(error, "reason", None) or getattr(error, "strerror", None) or error

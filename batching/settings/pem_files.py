"""Loads certificates and keys from PEM files; errors name file, OpenSSL's reason and remedy."""

import ssl
from pathlib import Path

from batching.settings.settings import SettingsError

_OTHERS_KEY = "the private key belongs to another certificate: name the two that were made together"
_SHORT_KEY = "is too short: RSA needs 2048 bits or more, elliptic curves 224"
# OpenSSL's reason -> what it means.
_MEANINGS = {
    "KEY_VALUES_MISMATCH": _OTHERS_KEY,
    "KEY_TYPE_MISMATCH": _OTHERS_KEY,
    "NO_CERTIFICATE_ASSIGNED": _OTHERS_KEY,  # a key of another kind than the certificate's
    "EE_KEY_TOO_SMALL": f"the certificate's key {_SHORT_KEY}",
    "CA_KEY_TOO_SMALL": f"the key of an authority {_SHORT_KEY}",
    "CA_MD_TOO_WEAK": "a certificate is signed with MD5 or SHA-1: have it signed with SHA-256",
}


def load_pair(
    context: ssl.SSLContext, certificate_file: Path, private_key_file: Path | None
) -> None:
    """Loads the certificate and its key; without a key file, the certificate's file has the key.

    After a SettingsError the context may have one of the two.
    """
    key_file = private_key_file or certificate_file
    _require_readable(key_file)

    def no_passphrase() -> str:
        # Without this, OpenSSL asks at the terminal.
        raise SettingsError(
            f"{key_file}: the key has a passphrase: `openssl pkey -in KEY -out NEW` writes it "
            "without"
        )

    load_authorities(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), certificate_file)
    try:
        context.load_cert_chain(certificate_file, key_file, no_passphrase)
    except OSError as error:
        reason = _reason(error)
        if meaning := _MEANINGS.get(reason):
            files = dict.fromkeys((str(certificate_file), str(key_file)))
            raise SettingsError(f"{' and '.join(files)}: {meaning} ({reason})") from error
        raise _not_pem(key_file, "private key", "pkey", reason) from error


def load_authorities(context: ssl.SSLContext, file: Path) -> None:
    """Lets the context trust the certificates in this file; a SettingsError says it has none."""
    _require_readable(file)
    try:
        context.load_verify_locations(file)
    except OSError as error:
        raise _not_pem(file, "certificate", "x509", _reason(error)) from error


def _require_readable(file: Path) -> None:
    # OpenSSL does not tell which of two files is missing.
    try:
        file.open("rb").close()
    except OSError as error:
        raise SettingsError(f"{file}: {error.strerror}") from error


def _reason(error: OSError) -> str:
    return str(getattr(error, "reason", None) or error.strerror).partition(" (_ssl")[0]


def _not_pem(file: Path, what: str, command: str, reason: str) -> SettingsError:
    return SettingsError(
        f"{file}: no {what} in PEM that OpenSSL can read ({reason}); "
        f"`openssl {command} -inform der -in FILE -out NEW` makes one of DER"
    )

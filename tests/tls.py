"""Certificates for tests, and TLS in front of a server that has none."""

import contextlib
import shutil
import socket
import ssl
import subprocess
import threading

import pytest

from ingress.access.certificate import Certificate

OPENSSL = shutil.which("openssl")
needs_openssl = pytest.mark.skipif(OPENSSL is None, reason="no openssl to make certificates with")


def make_certificate(folder, name, subject_names, signed_by=None):
    """Makes a key and a certificate, signed by itself or by another one of the folder."""
    base = [OPENSSL, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    options = ["-nodes", "-days", "2", "-subj", f"/CN={name}", "-keyout", f"{name}.key"]
    options += ["-out", f"{name}.pem", "-addext", f"subjectAltName={subject_names}"]
    if signed_by is None:
        # Python 3.13 and later take no authority without it.
        options += ["-addext", "keyUsage=critical,keyCertSign,digitalSignature"]
    else:
        options += ["-CA", f"{signed_by}.pem", "-CAkey", f"{signed_by}.key"]
        options += ["-addext", "basicConstraints=critical,CA:FALSE"]
    subprocess.run([*base, *options], cwd=folder, check=True, capture_output=True)


def server_context(folder, name, *, wants_client=False):
    """Returns the context of a server with this certificate; it may want one of the client, too."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
    if wants_client:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(folder / "authority.pem")
    return context


def make_certificates(folder):
    """Makes an authority, servers of its own and one that is not, and a client."""
    make_certificate(folder, "authority", "DNS:authority")
    make_certificate(folder, "stranger", "DNS:localhost,IP:127.0.0.1")
    make_certificate(folder, "here", "DNS:localhost,IP:127.0.0.1", "authority")
    make_certificate(folder, "elsewhere", "DNS:redis.example", "authority")
    make_certificate(folder, "client", "DNS:client", "authority")
    return folder


def write_certificate(folder):
    """Replaces the pair of this folder for `localhost`."""
    make_certificate(folder, "certificate", "DNS:localhost")
    return Certificate(folder / "certificate.pem", folder / "certificate.key")


def shown_certificate(port):
    """Returns the certificate that a server on this machine shows, in PEM."""
    return ssl.get_server_certificate(("127.0.0.1", port), timeout=10)


class TlsProxy:
    """TLS on a port, the real server's unix socket behind it."""

    def __init__(self, context, socket_path):
        self.context = context
        self._socket_path = str(socket_path)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)

    def _serve(self):
        with contextlib.suppress(OSError):
            while True:
                plain, _ = self._listener.accept()
                with contextlib.suppress(OSError), plain:
                    plain.settimeout(5)
                    with self.context.wrap_socket(plain, server_side=True) as client:
                        self._pass_on(client)

    def _pass_on(self, client):
        # Question and answer in turns, which is all that a PING takes.
        with socket.socket(socket.AF_UNIX) as redis_socket:
            redis_socket.connect(self._socket_path)
            redis_socket.settimeout(5)
            while question := client.recv(65536):
                redis_socket.sendall(question)
                client.sendall(redis_socket.recv(65536))

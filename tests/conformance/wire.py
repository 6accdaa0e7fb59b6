"""Sends a case over its own socket and reads the whole answer, byte for byte."""

import base64
import json
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.parse import urlencode

from tests.conformance.case_list import Case

TIMEOUT_S = 30.0
CLOSE_TIMEOUT_S = 3.0
# Rows of a batch keep the order in which they were sent.
SPACING_S = 0.2

_BOUNDARY = "a-boundary-of-the-conformance-tests"


@dataclass(frozen=True)
class Answer:
    """One answer; header names in lower case. `is_closed`: the server ended the connection."""

    status: int
    phrase: str
    headers: Mapping[str, str]
    body: bytes
    is_closed: bool


@dataclass(frozen=True)
class Target:
    """A running server: the ports that cases name, and the values of `{name}` in cases."""

    ports: Mapping[str, int]
    places: Mapping[str, str]
    key_file: Path

    def fill(self, text: str) -> str:
        """Replaces each `{name}` that is a place, or a key of the key file."""
        for name, value in {**self.places, **self.keys()}.items():
            text = text.replace(f"{{{name}}}", value)
        return text

    def keys(self) -> dict[str, str]:
        """Returns the current values of `{inference_key}` and so on; none without tokens."""
        if not self.key_file.exists():
            return {}
        document = json.loads(self.key_file.read_text(encoding="utf-8"))
        return {f"{name}_key": entry["key"] for name, entry in document.items()}


def ask(case: Case, target: Target) -> list[Answer]:
    """Returns the answers to the case's requests in the order of sending."""
    messages = messages_of(case, target)
    sockets = []
    try:
        for message in messages:
            if sockets:
                threading.Event().wait(SPACING_S)
            sock = socket.create_connection(("127.0.0.1", target.ports[case.port]), TIMEOUT_S)
            sockets.append(sock)
            sock.sendall(message)
        return [_receive(sock, _method(case)) for sock in sockets]
    finally:
        for sock in sockets:
            sock.close()


def messages_of(case: Case, target: Target) -> list[bytes]:
    if case.raw is not None:
        return [target.fill(case.raw).encode("latin-1")]
    kind, body = _body(case, target)
    bodies = [text.encode() for text in case.together] or [body]
    return [_message(case, target, kind, one) for one in bodies]


def _message(case: Case, target: Target, kind: str, body: bytes) -> bytes:
    method, path = case.send.split(" ", 1)
    headers = {"host": f"127.0.0.1:{target.ports[case.port]}"}
    if kind:
        headers["content-type"] = kind
    if body or method in ("POST", "PUT"):
        headers["content-length"] = str(len(body))
    headers |= case.headers
    lines = [f"{method} {target.fill(path)} HTTP/1.1"]
    lines += [f"{name}: {target.fill(value)}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def _body(case: Case, target: Target) -> tuple[str, bytes]:
    if case.text is not None:
        return "", target.fill(case.text).encode()
    if case.json is not None:
        return "application/json", target.fill(json.dumps(case.json)).encode()
    if case.base64 is not None:
        return "", base64.b64decode(case.base64)
    if case.form is not None:
        return "application/x-www-form-urlencoded", urlencode(case.form).encode()
    if case.multipart is not None:
        return f"multipart/form-data; boundary={_BOUNDARY}", _multipart(case)
    return "", b""


def _multipart(case: Case) -> bytes:
    lines = []
    for part in case.multipart or ():
        file_name = f'; filename="{part["filename"]}"' if "filename" in part else ""
        lines.append(f"--{_BOUNDARY}")
        lines.append(f'Content-Disposition: form-data; name="{part["name"]}"{file_name}')
        lines += [f"Content-Type: {part['type']}"] if "type" in part else []
        lines += ["", part["value"]]
    return "\r\n".join([*lines, f"--{_BOUNDARY}--", ""]).encode()


def _method(case: Case) -> str:
    return (case.raw or case.send).partition(" ")[0]


def _receive(sock: socket.socket, method: str) -> Answer:
    response = HTTPResponse(sock, method=method)
    try:
        response.begin()
        body = response.read()
        headers: dict[str, str] = {}
        for name, value in response.getheaders():
            known = headers.get(name.lower())
            headers[name.lower()] = value if known is None else f"{known}, {value}"
        is_closed = headers.get("connection") == "close" and _is_ended(sock)
        return Answer(response.status, response.reason, headers, body, is_closed)
    except (HTTPException, OSError) as error:
        # No answer at all is an answer, too.
        return Answer(0, type(error).__name__, {}, b"", is_closed=True)
    finally:
        response.close()


def _is_ended(sock: socket.socket) -> bool:
    sock.settimeout(CLOSE_TIMEOUT_S)
    try:
        return sock.recv(1) == b""
    except ConnectionError:
        return True
    except TimeoutError:
        return False

"""Requests that were valid until something was done to their bytes.

A case is made of a seed alone, so that one that did harm can be sent again.
"""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass

MARK = "nonce"
MOST_BYTES = 400_000


@dataclass(frozen=True)
class Case:
    """Bytes, the places at which they are cut for sending, and how their client ends.

    `nonce` is in every body of it, and in no other case's.
    """

    nonce: bytes
    data: bytes
    cuts: tuple[int, ...]
    is_leaving: bool
    with_reset: bool


def some_case(seed: str, model: str) -> Case:
    """Returns what this seed makes."""
    chance = random.Random(seed)
    nonce = f"{MARK}-{chance.getrandbits(64):016x};".encode()
    requests = [_valid(chance, model, nonce) for _ in range(chance.choice((1, 1, 1, 2, 4)))]
    for _ in range(chance.choice((0, 1, 1, 1, 2, 3, 5))):
        place = chance.randrange(len(requests))
        requests[place] = chance.choice(MUTATIONS)(chance, requests[place])[:MOST_BYTES]
    data = b"".join(requests)
    return Case(
        nonce, data, _cuts(chance, data), chance.random() < 0.3, with_reset=chance.random() < 0.5
    )


def _cuts(chance: random.Random, data: bytes) -> tuple[int, ...]:
    """Returns where the data is cut: nowhere, here and there, or at every byte near a place."""
    kind = chance.choice(("nowhere", "some", "some", "every"))
    if kind == "nowhere" or len(data) < 2:
        return ()
    if kind == "some":
        return tuple(sorted(chance.randrange(1, len(data)) for _ in range(chance.randint(1, 6))))
    start = chance.randrange(1, len(data))
    return tuple(range(start, min(start + 40, len(data))))


def _valid(chance: random.Random, model: str, nonce: bytes) -> bytes:
    body = nonce * chance.choice((1, 1, 3, 50, 1000, 4000))
    post = f"POST /predictions/{model} HTTP/1.1\r\nHost: x\r\n".encode()
    length = b"Content-Length: %d\r\n" % len(body)
    binary = b"Content-Type: application/octet-stream\r\n"
    middle = len(body) // 2
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in (body[:middle], body[middle:]))
    form = b'--B\r\nContent-Disposition: form-data; name="body"\r\n\r\n' + body + b"\r\n--B--\r\n"
    return chance.choice(
        (
            post + binary + length + b"\r\n" + body,
            post + binary + length + b"\r\n" + body,
            post + binary + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n",
            post + binary + b"Expect: 100-continue\r\n" + length + b"\r\n" + body,
            post + binary + b"Connection: close\r\n" + length + b"\r\n" + body,
            post + b"Content-Type: multipart/form-data; boundary=B\r\n"
            b"Content-Length: %d\r\n\r\n" % len(form) + form,
            post + b"Content-Type: application/json\r\nContent-Length: 9\r\n\r\n" + b'{"a": []}',
            post.replace(b"1.1", b"1.0") + length + b"\r\n" + body,
            b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n",
            b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n",
            b"HEAD /livez HTTP/1.1\r\nHost: x\r\n\r\n",
            b"OPTIONS / HTTP/1.1\r\nHost: x\r\n\r\n",
            b"GET /v2/models/%b HTTP/1.1\r\nHost: x\r\n\r\n" % model.encode(),
        )
    )


Mutation = Callable[[random.Random, bytes], bytes]
LINES = (
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding : chunked",
    b"Transfer-Encoding:\x0bchunked",
    b"Content-Length: 0",
    b"Content-Length: 5",
    b"Content-Length: +5",
    b"Content-Length: 99999999999999999999",
    b"Content-Length: 7, 7",
    b"Content-Encoding: gzip",
    b"Content-Type: multipart/form-data",
    b"Content-Type: application/json; charset=\xff",
    b"Connection: Upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: AA",
    b"Connection: Upgrade\r\nUpgrade: websocket",
    b"Connection: close, keep-alive",
    b"Expect: 100-continue",
    b"Expect: 200-ok",
    b"X-Request-Timeout-Ms: 1",
    b"X-Request-Timeout-Ms: -1",
    b"Host:",
    b"Host: a\r\nHost: b",
    b" folded: yes",
    b"no colon",
    b": no name",
    b"X: \x00",
    b"X: \xff\xfe",
    b"X: \r",
    b"Trailer: Content-Length",
)
STARTS = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET / HTTP/0.9\r\n\r\n",
    b"GET /\r\n",
    b"\r\n" * 50,
    b"\x00" * 100,
    b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"M-SEARCH * HTTP/1.1\r\nHost: x\r\n\r\n",
)
TARGETS = (
    b"/predictions/unknown",
    b"/predictions/..%2f..%2fx",
    b"/predictions/%00",
    b"/predictions/" + b"a" * 300,
    b"/" + b"x" * 70_000,
    b"http://x/predictions/x",
    b"*",
    b"//",
    b"/%ff?%ff=%zz&&&=",
    b"/predictions/{m:x}/1.0",
)


def _flip(chance: random.Random, data: bytes) -> bytes:
    changed = bytearray(data or b"\n")
    for _ in range(chance.randint(1, 8)):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _flip_in_head(chance: random.Random, data: bytes) -> bytes:
    head, gap, body = data.partition(b"\r\n\r\n")
    return _flip(chance, head) + gap + body


def _drop(chance: random.Random, data: bytes) -> bytes:
    start = chance.randrange(len(data))
    return data[:start] + data[start + chance.randint(1, 20) :] or b"\n"


def _insert(chance: random.Random, data: bytes) -> bytes:
    start = chance.randrange(len(data) + 1)
    piece = chance.choice((chance.randbytes(chance.randint(1, 30)), b"\x00", b"\n", b"\r", b"\r\n"))
    return data[:start] + piece * chance.choice((1, 1, 1, 200)) + data[start:]


def _repeat(chance: random.Random, data: bytes) -> bytes:
    start = chance.randrange(len(data))
    end = min(len(data), start + chance.randint(1, 200))
    return data[:end] + data[start:end] * chance.randint(1, 20) + data[end:]


def _with_lines(data: bytes, lines: list[bytes]) -> bytes:
    first, gap, rest = data.partition(b"\r\n")
    return first + gap + b"".join(line + b"\r\n" for line in lines) + rest


def _other_length(chance: random.Random, data: bytes) -> bytes:
    def other(found: re.Match[bytes]) -> bytes:
        length = max(0, int(found[1]) + chance.choice((-1, 1, -10, 10, 100_000, 10**9)))
        return b"Content-Length: %d\r\n" % length

    return re.sub(rb"Content-Length: (\d{1,20})\r\n", other, data, count=1)


def _other_chunk(chance: random.Random, data: bytes) -> bytes:
    sizes = (b"zz", b"-1", b"0x3", b"", b"0", b"ffffffffffffffffff", b"1;x=y", b"5\t", b"1 ", b"3")
    return re.sub(rb"\r\n[0-9a-f]+\r\n", b"\r\n" + chance.choice(sizes) + b"\r\n", data, count=1)


def _other_target(chance: random.Random, data: bytes) -> bytes:
    method, _, rest = data.partition(b" ")
    return method + b" " + chance.choice(TARGETS) + b" " + rest.partition(b" ")[2]


def _other_method(chance: random.Random, data: bytes) -> bytes:
    methods = (b"FROB", b"get", b"POST ", b"", b"DELETE", b"PUT", b"TRACE", b"P" * 5000)
    return chance.choice(methods) + b" " + data.partition(b" ")[2]


def _trailers(chance: random.Random, data: bytes) -> bytes:
    lines = b"X-Late: " + b"z" * chance.choice((1, 100, 70_000)) + b"\r\n"
    return data.replace(b"0\r\n\r\n", b"0\r\n" + lines * chance.choice((1, 50)) + b"\r\n", 1)


def _head_lines(data: bytes) -> list[bytes]:
    return data.partition(b"\r\n\r\n")[0].split(b"\r\n")


def _garbage(chance: random.Random, most_bytes: int) -> bytes:
    return chance.choice((*STARTS, chance.randbytes(chance.randint(1, most_bytes))))


HOW_MANY = (1, 2, -1)
MANY_LINES = [b"H%d: x" % number for number in range(5000)]
LARGE_BYTES = (8_000, 65_000, 70_000, 300_000)
VERSIONS = (b"HTTP/1.0", b"HTTP/1.2", b"HTTP/2.0", b"HTTP/9", b"http/1.1", b"", b"HTTP/1.1 x")
MUTATIONS: tuple[Mutation, ...] = (
    _flip,
    _flip_in_head,
    _flip_in_head,
    lambda chance, data: data[: chance.randint(1, len(data))],
    _drop,
    _insert,
    _repeat,
    lambda chance, data: data.replace(b"\r\n", b"\n", chance.choice(HOW_MANY)),
    lambda chance, data: data.replace(b"\r\n", b"\r", chance.choice(HOW_MANY)),
    lambda chance, data: _with_lines(data, chance.choices(LINES, k=chance.randint(1, 3))),
    lambda chance, data: _with_lines(data, chance.choices(LINES, k=chance.randint(1, 3))),
    lambda chance, data: _with_lines(data, [chance.choice(_head_lines(data))]),
    lambda chance, data: _with_lines(data, MANY_LINES[: chance.choice((90, 101, 5000))]),
    lambda chance, data: _with_lines(data, [b"X: " + b"y" * chance.choice(LARGE_BYTES)]),
    _other_length,
    _other_chunk,
    lambda chance, data: data + _garbage(chance, 2000),
    lambda chance, data: _garbage(chance, 20) + data,
    _other_target,
    _other_method,
    lambda chance, data: data.replace(b"HTTP/1.1", chance.choice(VERSIONS), 1),
    _trailers,
)

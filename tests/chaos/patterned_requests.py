"""Requests whose every byte can be checked, and the answers that they must get.

Each has a name; body and answer are patterns of it: `patterns.py`, `patterned_handler.py`.
"""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.patterns import pattern

HERE = Path(__file__).parent
# For an archive.
FILES = {
    "handler.py": (HERE / "patterned_handler.py").read_text(encoding="utf-8"),
    "patterns.py": (HERE / "patterns.py").read_text(encoding="utf-8"),
}

# Half a head beside the limits at which a body takes another way: in its record (16 KiB), in one
# read (64 KiB).
NEAR_BYTES = 600
HURRIED_MS = (1, 5, 20, 50, 100)


class WrongAnswer(Exception):
    """An answer is not the one that this client waits for."""


@dataclass(frozen=True)
class Plan:
    """What clients do. `large_share` is that of bodies and answers beyond a few kB.

    `has_faults`: parts of the server die meanwhile: requests are refused, and connections end.
    """

    models: tuple[str, ...]
    large_share: float = 0.25
    abort_share: float = 1 / 3  # of the connections
    half_close_share: float = 0.05  # of the times at which a client sends
    error_share: float = 0.01
    most_at_once: int = 6
    body_bytes: tuple[int, int] | None = None  # of all bodies; the share is that of answers then
    hurried_share: float = 0.0  # of the requests: those that have a few ms
    has_faults: bool = False


@dataclass(frozen=True)
class Asked:
    name: str
    raw: bytes
    answer_bytes: int
    status: int = 200


def some_size(chance: random.Random, large_share: float) -> int:
    if chance.random() >= large_share:
        return chance.randint(1, 2000)
    near = chance.randint(-NEAR_BYTES, NEAR_BYTES)
    return chance.choice([16 * 1024 + near, 16 * 1024 + near, 64 * 1024 + near, 110_000, 300_000])


def some_request(chance: random.Random, plan: Plan, *, has_error: bool = False) -> Asked:
    """Returns a request: plain, with Expect, in chunks, or a form."""
    name = f"{chance.getrandbits(96):024x}"
    answer_bytes = some_size(chance, plan.large_share)
    size_bytes = (
        chance.randint(*plan.body_bytes) if plan.body_bytes else some_size(chance, plan.large_share)
    )
    kind = chance.choices(("plain", "expecting", "chunked", "form"), (75, 3, 12, 10))[0]
    parts = [("body", size_bytes)]
    if kind == "form":
        parts = [("first", size_bytes), ("second", chance.randint(1, 2000))]
    bodies = [(part, pattern(name, part, size)) for part, size in parts]
    lines, body = FORMS[kind](chance, bodies)
    model = "unknown" if has_error else chance.choice(plan.models)
    told = ",".join(f"{part}={size}" for part, size in parts)
    if chance.random() < plan.hurried_share:
        lines += f"X-Request-Timeout-Ms: {chance.choice(HURRIED_MS)}\r\n"
    head = (
        f"POST /predictions/{model} HTTP/1.1\r\nHost: x\r\nX-Pattern: {name}\r\n"
        f"X-Parts: {told}\r\nX-Wants: {answer_bytes}\r\n{lines}\r\n"
    )
    return Asked(name, head.encode() + body, answer_bytes, 404 if has_error else 200)


def _plain(_: random.Random, bodies: list[tuple[str, bytes]]) -> tuple[str, bytes]:
    [(_, body)] = bodies
    return f"Content-Type: application/octet-stream\r\nContent-Length: {len(body)}\r\n", body


def _expecting(chance: random.Random, bodies: list[tuple[str, bytes]]) -> tuple[str, bytes]:
    lines, body = _plain(chance, bodies)
    return f"Expect: 100-continue\r\n{lines}", body


def _chunked(chance: random.Random, bodies: list[tuple[str, bytes]]) -> tuple[str, bytes]:
    [(_, body)] = bodies
    chunks = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in split(chance, body, 5)]
    lines = "Content-Type: application/octet-stream\r\nTransfer-Encoding: chunked\r\n"
    return lines, b"".join([*chunks, b"0\r\n\r\n"])


def _form(chance: random.Random, bodies: list[tuple[str, bytes]]) -> tuple[str, bytes]:
    boundary = f"{chance.getrandbits(64):016x}"
    head = '--{}\r\nContent-Disposition: form-data; name="{}"; filename="f"\r\n'
    kind = "Content-Type: application/octet-stream\r\n\r\n"
    pieces = [(head.format(boundary, part) + kind).encode() + body for part, body in bodies]
    body = b"\r\n".join([*pieces, f"--{boundary}--\r\n".encode()])
    kind = f"multipart/form-data; boundary={boundary}"
    return f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n", body


FORMS: dict[str, Callable[[random.Random, list[tuple[str, bytes]]], tuple[str, bytes]]] = {
    "plain": _plain,
    "expecting": _expecting,
    "chunked": _chunked,
    "form": _form,
}


def split(chance: random.Random, data: bytes, most: int) -> Iterator[bytes]:
    """Yields the data in `most` pieces at most, none of them empty."""
    cuts = sorted({chance.randrange(1, len(data)) for _ in range(most - 1)} if data[1:] else ())
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        yield data[start:end]


def check(asked: Asked, status: int, headers: dict[str, str], body: bytes) -> None:
    """Compares an answer with the one that this request must get.

    Raises:
        WrongAnswer: it is another one.
    """
    if status != asked.status:
        raise WrongAnswer(f"{asked.name}: {status} {body[:200]!r}")
    if status != 200:
        return
    if (
        headers.get("x-pattern") != asked.name
        or headers.get("x-seen-id") != headers["x-request-id"]
    ):
        raise WrongAnswer(f"{asked.name}: the answer to another request: {headers}")
    expected = pattern(asked.name, "answer", asked.answer_bytes)
    if body != expected:
        places = [
            n for n, pair in enumerate(zip(body, expected, strict=False)) if len(set(pair)) > 1
        ]
        where = f"{len(places)} bytes from {places[0]}" if places else "its length"
        raise WrongAnswer(f"{asked.name}: {where} of {len(expected)} wrong, {len(body)} came")


def refusal(asked: Asked, status: int, headers: dict[str, str], body: bytes) -> str:
    """Returns status and reason of an answer that is no result.

    Raises:
        WrongAnswer: it is not what the server answers then.
    """
    try:
        code = json.loads(body)["code"]
    except (ValueError, LookupError, TypeError):
        code = 0
    if code != status:
        raise WrongAnswer(f"{asked.name}: {status} {body[:200]!r}")
    return f"{status} {headers.get('x-ferry-reason', '')}".strip()


def ran(ledger: Path) -> list[str]:
    """Returns the names of the requests that were run, as often as they were."""
    return ledger.read_text(encoding="utf-8").split()


def wrong(ledger: Path) -> str:
    """Returns what the handler wrote down about bodies that were not those of their requests."""
    path = Path(f"{ledger}.wrong")
    return path.read_text(encoding="utf-8") if path.exists() else ""

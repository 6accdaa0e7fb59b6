"""Answers that come in pieces, from a real handler to a real client."""

import socket
from pathlib import Path

import psutil
import pytest
import requests

from tests.e2e.archives import make_archive
from tests.e2e.clients import Clients
from tests.support import came_true, eventually

pytestmark = pytest.mark.slow

HANDLER = Path(__file__).with_name("streaming_handler.py")


class Streamer:
    """A served model that answers in pieces, and what its handler wrote down."""

    def __init__(self, server, ledger):
        self.server = server
        self._ledger = ledger
        self._gate = Path(f"{ledger}.go")

    def notes(self):
        return [line.split(" ")[0] for line in self._ledger.read_text().splitlines()]

    def let_go(self):
        self._gate.touch()

    def clear(self):
        self._ledger.write_text("")
        self._gate.unlink(missing_ok=True)

    def ask(self, body, path="stream", **options):
        url = f"{self.server.inference}/predictions/{path}"
        return requests.post(url, data=body, stream=True, timeout=30, **options)


def memory_of(server):
    """Bytes held by everything that belongs to the server, its Redis too."""
    pids = [int(line.split()[0]) for line in server.process.family()]
    return sum(psutil.Process(pid).memory_info().rss for pid in pids)


@pytest.fixture(scope="module")
def archive(server):
    ledger = server.store / "stream.ledger"
    ledger.touch()
    files = {"handler.py": HANDLER.read_text(), "ledger": str(ledger)}
    return make_archive(server.store, "stream", files), ledger


@pytest.fixture(scope="module")
def served(server, archive):
    name, ledger = archive
    with server.model(name, "stream", response_timeout=2):
        yield Streamer(server, ledger)


@pytest.fixture
def streamer(served):
    served.clear()
    return served


def test_pieces_arrive_while_the_handler_still_runs(streamer):
    # When
    with streamer.ask("send:one hold send:two last:three") as answer:
        pieces = answer.iter_content(None)
        first = next(pieces)
        streamer.let_go()
        rest = b"".join(pieces)
    # Then
    assert (first, rest) == (b"one", b"twothree")
    assert answer.status_code == 200
    assert answer.headers["transfer-encoding"] == "chunked"
    assert answer.headers["ts_stream_next"] == "true"
    assert answer.headers["content-type"] == "text/plain"
    assert answer.headers["x-request-id"]
    assert "content-length" not in answer.headers


@pytest.mark.parametrize("end", ["fail:400", "die"])
def test_stream_that_breaks_has_no_last_chunk(streamer, end):
    # Given
    with streamer.ask(f"send:begun hold {end}") as answer:
        pieces = answer.iter_content(None)
        assert next(pieces) == b"begun"
        streamer.let_go()
        # When / Then
        with pytest.raises(requests.exceptions.ChunkedEncodingError):
            next(pieces)
    # Then: it was not begun again
    assert len([note for note in streamer.notes() if note.startswith("run:")]) == 1
    assert streamer.ask("last:alive").text == "alive"


def test_time_limit_counts_from_piece_to_piece(streamer):
    # When: four seconds in all, where a piece may take two
    steps = " ".join(["send:x sleep:0.8"] * 5)
    answer = streamer.ask(f"{steps} last:y")
    # Then
    assert answer.text == "xxxxxy"
    # When: one takes longer
    with (
        pytest.raises(requests.exceptions.ChunkedEncodingError),
        streamer.ask("send:x sleep:10 last:y") as late,
    ):
        list(late.iter_content(None))


def test_client_that_leaves_stops_the_handler(streamer):
    # Given
    answer = streamer.ask("forever:x")
    next(answer.iter_content(100))
    # When
    answer.close()
    # Then
    eventually(lambda: "stopped:StreamAbandoned" in streamer.notes(), 10.0)
    assert streamer.ask("last:alive").text == "alive"


def test_slow_reader_holds_its_handler_up_and_fills_nothing(streamer):
    # Given: a client that reads nothing of 400 MB
    held = memory_of(streamer.server)
    head = b"POST /predictions/stream HTTP/1.1\r\nHost: x\r\nContent-Length: 16\r\n\r\n"
    with socket.create_connection(("127.0.0.1", streamer.server.port), timeout=30) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        client.sendall(head + b"many:100000x4000")
        eventually(streamer.notes, 10.0)
        # When
        was_done = came_true(lambda: "sent" in streamer.notes(), 3.0)
        # Then
        assert not was_done
        assert memory_of(streamer.server) - held < 50_000_000
    # Then: it stops once the client has gone
    assert streamer.ask("last:alive").text == "alive"
    assert "sent" not in streamer.notes()


def test_batch_of_streams_gives_each_client_its_own(server, archive):
    # Given
    name, ledger = archive
    ledger.write_text("")
    with (
        server.model(name, "streams", batch_size=3, max_batch_delay=2000),
        Clients(server.inference, 3) as clients,
    ):
        # When
        steps = "own own last:end"
        exchange = clients.ask("/predictions/streams", [f"{steps} me:{n}" for n in range(3)])
    # Then
    assert exchange.statuses == [200] * 3
    assert exchange.bodies == [f"[{n}][{n}]end" for n in range(3)]
    assert ledger.read_text().count("run:") == 1

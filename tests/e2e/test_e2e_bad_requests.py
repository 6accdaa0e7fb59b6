"""Requests that go wrong get TorchServe's status, type and text, and harm no other request.

Source of the texts: TorchServe 0.12, inference API.
"""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.archives import Ledger, make_scripted
from tests.e2e.clients import TIME_TO_FILL_MS, Clients, innocent_traffic, needs_curl
from tests.e2e.ferry_process import FerryServer
from tests.e2e.refusals import assert_error
from tests.support import eventually

MAX_REQUEST_BYTES = 6_553_500
BATCH_SIZE = 8


@pytest.fixture(scope="module")
def batched(server: FerryServer, scripted: str) -> Iterator[str]:
    """The scripted handler with batches of eight and time for eight to come."""
    with server.model(
        scripted, "batched", batch_size=BATCH_SIZE, max_batch_delay=TIME_TO_FILL_MS
    ) as model:
        yield model


# --- requests that the handler makes something of


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("raise value", (503, "InternalServerException", "Prediction failed")),
        ("raise memory", (507, "InternalServerException", "Out of resources")),
        ("refuse 599", (599, "InternalServerException", "the handler refuses")),
        ("refuse 400", (400, "InternalServerException", "the handler refuses")),
        ("short", (503, "InternalServerException", "number of batch response mismatched")),
        ("scalar", (503, "InternalServerException", "Invalid model predict output")),
        ("object", (503, "InternalServerException", "Unsupported model output data type.")),
    ],
)
def test_handler_fault_fails_its_own_request_only(
    server: FerryServer,
    batched: str,
    ledger: Ledger,
    command: str,
    expected: tuple[int, str, str],
) -> None:
    # When seven good requests share a batch with one that the handler fails at
    bodies = [f"good {number}" for number in range(BATCH_SIZE)]
    bodies[5] = f"{command}|culprit"
    with Clients(server.inference, BATCH_SIZE) as clients:
        exchange = clients.ask(f"/predictions/{batched}", bodies)

    # Then the culprit gets the fault's answer and the others get theirs
    assert sorted(ledger.calls()[0].bodies) == sorted(bodies)
    culprit = exchange.answers.pop(5)
    assert_error(culprit.status, culprit.body, expected)
    assert culprit.headers["connection"] == "close"
    assert exchange.statuses == [200] * (BATCH_SIZE - 1)
    assert exchange.bodies == bodies[:5] + bodies[6:]


# --- requests that never reach a worker


@needs_curl
@pytest.mark.parametrize("framing", ["content-length", "chunked"])
def test_body_over_max_request_size_is_refused_with_bare_413(
    server: FerryServer, innocent: str, tmp_path: Path, framing: str
) -> None:
    # Given a file of one byte more than allowed
    large = tmp_path / "large"
    large.write_bytes(b"x" * (MAX_REQUEST_BYTES + 1))
    headers = ["-H", "Transfer-Encoding: chunked"] if framing == "chunked" else []

    # When curl sends it beside other traffic
    with innocent_traffic(server, innocent):
        command = ["curl", "-sS", "-i", "-H", "Expect:", *headers, "-T", str(large)]
        url = f"{server.inference}/predictions/{innocent}"
        done = subprocess.run([*command, url], capture_output=True, timeout=30, check=False)

    # Then the answer is 413 without a body, and closes the connection
    head, _, body = done.stdout.partition(b"\r\n\r\n")
    assert head.split(b"\r\n")[0].split()[1] == b"413", done
    assert body == b""
    assert b"connection: close" in head.lower()


@pytest.mark.slow
def test_full_queue_refuses_what_is_over_and_serves_the_rest(server: FerryServer) -> None:
    # Given a busy worker and a queue for two, as the archive's configuration says
    name, ledger = make_scripted(server.store, "narrow", config="jobQueueSize: 2")
    with (
        server.model(name, "narrow", batch_size=1, max_batch_delay=0) as model,
        Clients(server.inference, 1) as first,
        Clients(server.inference, 7) as others,
    ):
        first.send(f"/predictions/{model}", ["hold|"])
        eventually(ledger.calls)

        # When seven come at once
        others.send(f"/predictions/{model}", ["behind it"] * 7)
        eventually(lambda: others.unasked(0) == 5)
        ledger.let_go()
        answers = others.receive(7)
        assert first.receive(1)[0].status == 200

    # Then those that fit are served; the others are told the truth and when to come again
    refused = [answer for answer in answers if answer.status != 200]
    assert len(refused) == 5
    for answer in refused:
        document = json.loads(answer.body)
        assert (answer.status, document["type"]) == (503, "ServiceUnavailableException")
        assert "queue" in document["message"]
        assert answer.headers["x-ferry-reason"] == "queue_full"
        assert int(answer.headers["retry-after"]) >= 1

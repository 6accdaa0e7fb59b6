"""The adaptive policy on an idle server: one client never waits for others that do not come."""

import statistics
import time

import pytest

from tests.e2e.archives import make_scripted
from tests.e2e.clients import Clients
from tests.e2e.ferry_process import FerryServer
from tests.timing import assert_within

DELAY_MS = 100
TRIES = 30

pytestmark = pytest.mark.slow


def median_ms(server: FerryServer, path: str) -> float:
    """What one client waits for an answer, once the policy has learned that it is alone."""
    with Clients(server.inference, 1) as clients:
        for _ in range(10):
            clients.ask(f"/predictions/{path}", ["warm"])
        spans = []
        for _ in range(TRIES):
            began = time.monotonic()
            exchange = clients.ask(f"/predictions/{path}", ["one"])
            spans.append((time.monotonic() - began) * 1000)
            assert exchange.bodies == ["one"]
    return statistics.median(spans)


def test_adaptive_policy_answers_a_lone_client_without_the_delay(server: FerryServer) -> None:
    # Given
    waits = {"batch_size": 8, "max_batch_delay": DELAY_MS}
    archive, _ = make_scripted(server.store, "lone")
    with (
        server.model(archive, "adaptive", batch_policy="adaptive", **waits) as adaptive,
        server.model(archive, "fixed", **waits) as fixed,
    ):
        # When
        adaptive_ms, fixed_ms = median_ms(server, adaptive), median_ms(server, fixed)

        # Then
        print(f"one client: adaptive {adaptive_ms:.2f} ms, fixed {fixed_ms:.2f} ms")  # noqa: T201
        assert fixed_ms >= DELAY_MS
        assert_within(adaptive_ms, DELAY_MS / 2)
        assert server.describe("adaptive")["batchPolicy"] == "adaptive"
        assert "batchPolicy" not in server.describe("fixed")

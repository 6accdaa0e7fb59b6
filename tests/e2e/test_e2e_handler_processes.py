"""Handlers may have processes of their own."""

import pytest

from tests.e2e.ferry_process import FerryServer

pytestmark = pytest.mark.slow


def test_handler_ends_its_own_processes(server: FerryServer, scripted: str) -> None:
    # Given
    with server.model(scripted, "pools", batch_size=1, response_timeout=10) as model:
        [pid] = server.worker_pids(model)

        # When each of them is ended by a signal that the worker takes for a stop
        answer = server.predict(model, "pools 30|x")

        # Then
        assert (answer.status_code, answer.text) == (200, "pools 30|x")
        assert server.worker_pids(model) == [pid]
        assert server.predict(model, "y").text == "y"

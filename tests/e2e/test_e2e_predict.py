"""The smallest server: one model, one worker, one prediction."""

from pathlib import Path

import pytest

from tests.e2e.archives import make_archive
from tests.e2e.ferry_process import ferry_server
from tests.support import eventually

pytestmark = pytest.mark.slow

HANDLER = "def handle(data, context):\n    return [row['body'] for row in data or []]\n"
# The supervisor, Redis, the ingress, the node, and the worker.
MOST_PROCESSES = 5


def test_server_with_one_worker_answers_and_has_five_processes(tmp_path: Path) -> None:
    # Given
    with ferry_server(tmp_path) as server:
        server.register(make_archive(server.store, "echo", {"handler.py": HANDLER}))
        # When
        answer = server.predict("echo", b"hello")
        # Then
        assert (answer.status_code, answer.content) == (200, b"hello")
        # And what inspected the archive ends when no other one comes
        assert eventually(lambda: len(server.process.family()) <= MOST_PROCESSES, 30)

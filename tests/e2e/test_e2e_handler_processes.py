"""What handlers may have of their own: processes, and modules of any name."""

import pytest

from tests.e2e.archives import make_archive
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


HANDLER = """
from {name} import answer
from ts.utils.util import PredictionException
def handle(data, context):
    if data is None:
        return None
    if data[0]["body"] == b"fail":
        raise PredictionException("as asked", 418)
    context.metrics.add_counter("Asked", 1)
    return [answer(row) for row in data]
"""


@pytest.mark.parametrize("name", ["batching", "workers"])
def test_module_of_an_archive_may_be_called_as_one_of_ours(name: str, server: FerryServer) -> None:
    # Given
    files = {
        "handler.py": HANDLER.format(name=name),
        f"{name}.py": "def answer(row): return 'mine'",
    }
    archive = make_archive(server.store, f"own-{name}", files)

    # When
    with server.model(archive, f"own-{name}", response_timeout=10) as model:
        answers = [server.predict(model, text) for text in ("a", "fail", "b")]

        # Then
        assert [answer.status_code for answer in answers] == [200, 418, 200]
        assert answers[2].text == "mine"

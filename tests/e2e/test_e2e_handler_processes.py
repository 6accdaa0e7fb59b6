"""What handlers may have of their own: processes, threads, and modules of any name."""

import psutil
import pytest

from tests.e2e.archives import make_archive
from tests.support import eventually

# Its thread never ends, and the interpreter would wait for it.
WITH_A_THREAD = """
import sys, threading, time
threading.Thread(target=time.sleep, args=(1000,)).start()

def handle(data, context):
    return [sys.exit() if row["body"] == b"exit" else row["body"] for row in data or ()]
"""

DEAF = """
import signal

def handle(data, context):
    if data:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return [row["body"] for row in data or ()]
"""

# What it holds is let go of by the collector alone.
LAST_WORDS = """
import os

class Held:
    def __init__(self):
        self.itself = self

    def __del__(self, write=os.write):
        write(2, b"held no longer\\n")

held = Held()

def handle(data, context):
    return [row["body"] for row in data or ()]
"""

pytestmark = pytest.mark.slow


def test_handler_ends_its_own_processes(server, scripted):
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
def test_module_of_an_archive_may_be_called_as_one_of_ours(name, server):
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


def test_worker_ends_though_a_thread_of_its_handler_does_not(server):
    # Given
    archive = make_archive(server.store, "threads", {"handler.py": WITH_A_THREAD})
    with server.model(archive, "threads", batch_size=1) as model:
        # When the handler ends its process, twice / Then its client does not wait for the thread
        assert server.predict(model, b"exit").status_code == 500
        eventually(lambda: server.worker_pids(model), 20)
        assert server.predict(model, b"x").text == "x"

        # When it is not wanted any more / Then it goes, and with it what it has of the machine
        [pid] = server.worker_pids(model)
        server.manage("PUT", f"models/{model}", min_worker=0)
        eventually(lambda: not psutil.pid_exists(pid), 20)


def test_worker_is_stopped_though_its_handler_took_the_signal(server):
    # Given a handler that does as libraries do at their first call
    archive = make_archive(server.store, "deaf", {"handler.py": DEAF})
    with server.model(archive, "deaf") as model:
        assert server.predict(model, b"x").text == "x"
        [pid] = server.worker_pids(model)
        # When
        server.manage("PUT", f"models/{model}", min_worker=0)
        # Then
        eventually(lambda: not psutil.pid_exists(pid), 20)


def test_worker_that_ends_lets_go_of_what_its_handler_holds(server):
    # Given
    archive = make_archive(server.store, "holding", {"handler.py": LAST_WORDS})
    with server.model(archive, "holding") as model:
        assert server.predict(model, "x").text == "x"
        assert "held no longer" not in server.process.log()
        # When
        server.manage("PUT", f"models/{model}", min_worker=0)
        # Then
        server.process.wait_for_line("held no longer")


GREEDY = """
def handle(data, context):
    for row in data or ():
        # In pieces, as the C library has them; all of them are used.
        pieces = [bytes(4000) for _ in range(100_000)] if row["body"] == b"much" else []
    return [b"done" for _ in data or ()]
"""


def test_worker_gives_back_what_a_rare_batch_has_taken(server):
    # Given
    archive = make_archive(server.store, "greedy", {"handler.py": GREEDY})
    with server.model(archive, "greedy") as model:
        [pid] = server.worker_pids(model)
        worker = psutil.Process(pid)
        assert server.predict(model, "x").text == "done"
        usual = worker.memory_info().rss
        # When one request takes 400 MB
        assert server.predict(model, "much").text == "done"
        # Then
        eventually(lambda: worker.memory_info().rss < usual + 100e6, 15)
        assert server.worker_pids(model) == [pid]

"""F30 to F32: parts that are told to stop, under load."""

import contextlib
import http.client
import itertools
import os
import signal
import threading
import time

import pytest

from batching.process.part import REPEAT_WINDOW_S
from tests.chaos import checker
from tests.chaos.crowd import for_seconds
from tests.e2e.clients import TIME_TO_FILL_MS
from tests.support import eventually
from tests.timing import assert_within

STOP_S = 8.0
FORCED_S = 1.0

pytestmark = [pytest.mark.slow, pytest.mark.chaos]


def test_f30_nodes_can_be_replaced_under_load(rig, crowd, record_promise):
    with rig.serve("f30", pace_s=0.02, batch_size=4) as model:
        # When, under load, each node is told to stop once its successor serves
        seconds, codes = [], []
        with crowd.flow("f30", 50, "r"):
            for _ in range(3):
                former = rig.nodes[0]
                rig.add_node()
                model.wait_staffed(2)
                stopped = former.stop(signal.SIGTERM)
                rig.remove_node(former)
                seconds.append(stopped.seconds)
                codes.append(stopped.exit_code)
                assert stopped.left_behind == []

        # Then no client sees it
        record_promise("F30", f"{checker.statuses(crowd.log)}, {max(seconds):.1f} s")
        assert codes == [0, 0, 0]
        assert_within(max(seconds), STOP_S)
        assert set(checker.statuses(crowd.log)) == {"200"}
        assert model.counters().get("reclaimed", 0) == 0
        model.check(crowd)


def test_f31_ingress_answers_all_it_accepted(rig, crowd, record_promise):
    with rig.serve("f31", batch_size=4) as model:
        # Given requests at work and in the queue
        sent = crowd.send("f31", [f"hold|{number}" for number in range(20)])
        eventually(lambda: model.counters().get("accepted", 0) == 20, 5)

        # When the ingress is told to stop
        ingress = rig.process
        stopped = ingress.stop_by(lambda: (os.kill(ingress.pid, signal.SIGTERM), model.let_go()))
        crowd.wait()

        # Then each has its answer, and the process ends cleanly and in time
        ok = sum(one.status == 200 for one in sent)
        record_promise("F31 waiting", f"{ok} x 200, {stopped.seconds:.1f} s")
        assert stopped.exit_code == 0
        assert_within(stopped.seconds, STOP_S)
        assert ok == 20
        rig.restore()
        model.check(crowd)


def ask_on(connection: http.client.HTTPConnection, name: str, found: list[int]) -> None:
    """Sends request after request over one connection, until the server closes it."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        for number in itertools.count():
            connection.request("POST", f"/predictions/{name}", body=f"sleep 0.02|{number}")
            answer = connection.getresponse()
            answer.read()
            found.append(answer.status)


def test_f31_clients_that_keep_their_connections_lose_no_accepted_request(rig, record_promise):
    with rig.serve("f31-kept", batch_size=4) as model:
        # Given ten clients that ask again and again, each over its one connection
        found: list[int] = []
        clients = [http.client.HTTPConnection(rig.host, rig.port, timeout=20) for _ in range(10)]
        threads = [threading.Thread(target=ask_on, args=(c, "f31-kept", found)) for c in clients]
        for thread in threads:
            thread.start()
        eventually(lambda: len(found) >= 50, 10)

        # When the ingress is told to stop under that load
        stopped = rig.process.stop(signal.SIGTERM)
        for thread in threads:
            thread.join(20)
        for client in clients:
            client.close()

        # Then each accepted request was answered, every time, and no client hangs
        ok, accepted = found.count(200), model.counters()["accepted"]
        record_promise("F31 kept", f"{ok} of {accepted}, {stopped.seconds:.1f} s")
        assert not any(thread.is_alive() for thread in threads)
        assert (stopped.exit_code, ok) == (0, accepted)
        assert set(found) <= {200, 503}
        assert_within(stopped.seconds, STOP_S)
        rig.restore()


def test_f32_second_signal_gives_back_at_once(rig, crowd, record_promise):
    rig.add_node()
    with rig.serve("f32", batch_size=2, max_batch_delay=TIME_TO_FILL_MS) as model:
        model.wait_staffed(2)
        # Given a node whose worker is at a batch, and that was told to stop
        sent = crowd.send("f32", ["sign|a", "sign|b"])
        [call] = model.wait_calls(1)
        node = model.node_of(call.pid)
        os.kill(node.pid, signal.SIGTERM)
        node.wait_for_line("draining")
        for_seconds(REPEAT_WINDOW_S)

        # When it is told again
        told_at = time.monotonic()
        stopped = node.stop(signal.SIGTERM)
        rig.remove_node(node)
        model.let_go()

        # Then it is gone, and the other node does its work at once
        again_s = model.wait_calls(2)[1].started_at - told_at
        crowd.wait()
        record_promise("F32", f"{stopped.seconds:.2f} s, runs again after {again_s:.2f} s")
        assert_within(stopped.seconds, FORCED_S)
        assert_within(again_s, FORCED_S)
        assert {one.status for one in sent} == {200}
        assert str(call.pid) not in {one.answer.rpartition(" ")[2] for one in sent}
        assert model.counters()["released"] == 2
        model.check(crowd)

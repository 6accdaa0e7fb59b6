"""F30 to F32: parts that are told to stop, under load."""

import os
import signal
import time

import pytest

from tests.chaos import checker
from tests.chaos.crowd import Crowd
from tests.chaos.rig import Rig
from tests.chaos.test_chaos_redis import for_seconds
from tests.e2e.ferry_process import eventually

STOP_S = 8.0
FORCED_S = 1.5  # until the process is gone and seen to be; the promise is a second

pytestmark = [pytest.mark.slow, pytest.mark.chaos]


def test_f30_nodes_can_be_replaced_under_load(rig: Rig, crowd: Crowd, record_promise) -> None:
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

        # Then nobody sees it
        record_promise(
            "F30",
            "3 nodes replaced under load",
            "all 200, exit 0 <= 8 s",
            f"{checker.statuses(crowd.log)}, {max(seconds):.1f} s",
        )
        assert codes == [0, 0, 0]
        assert max(seconds) <= STOP_S
        assert set(checker.statuses(crowd.log)) == {"200"}
        assert model.counters().get("reclaimed", 0) == 0
        model.check(crowd)


def test_f31_ingress_answers_all_it_accepted(rig: Rig, crowd: Crowd, record_promise) -> None:
    with rig.serve("f31", batch_size=4) as model:
        # Given requests at work and in the queue
        sent = crowd.send("f31", [f"sleep 0.1|{number}" for number in range(20)])
        assert eventually(lambda: model.counters().get("accepted", 0) == 20, 5)

        # When the ingress is told to stop
        stopped = rig.process.stop(signal.SIGTERM)
        crowd.wait()

        # Then each has its answer, and the process ends cleanly and in time
        ok = sum(one.status == 200 for one in sent)
        record_promise(
            "F31",
            "SIGTERM to the ingress, 20 accepted",
            "20 answered, exit 0 <= 8 s",
            f"{ok} x 200, {stopped.seconds:.1f} s",
        )
        assert stopped.exit_code == 0
        assert stopped.seconds <= STOP_S
        assert ok == 20
        rig.restore()
        model.check(crowd)


def test_f32_second_signal_gives_back_at_once(rig: Rig, crowd: Crowd, record_promise) -> None:
    rig.add_node()
    with rig.serve("f32", batch_size=2, max_batch_delay=20) as model:
        model.wait_staffed(2)
        # Given a node whose worker is at a batch, and that was told to stop
        sent = crowd.send("f32", ["sign 2|a", "sign 2|b"])
        [call] = model.wait_calls(1)
        node = model.node_of(call.pid)
        for_seconds(0.1)
        os.kill(node.pid, signal.SIGTERM)
        node.wait_for_line("draining")

        # When it is told again
        told_at = time.monotonic()
        stopped = node.stop(signal.SIGTERM)
        rig.remove_node(node)

        # Then it is gone, and the other node does its work at once
        again_s = model.wait_calls(2)[1].started_at - told_at
        crowd.wait()
        record_promise(
            "F32",
            "second SIGTERM",
            "exit <= 1 s, given back",
            f"{stopped.seconds:.2f} s, runs again after {again_s:.2f} s",
        )
        assert stopped.seconds <= FORCED_S
        assert again_s <= FORCED_S
        assert {one.status for one in sent} == {200}
        assert {one.answer.rpartition(" ")[2] for one in sent} != {str(call.pid)}
        assert model.counters()["released"] == 2
        model.check(crowd)

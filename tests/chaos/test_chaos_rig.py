"""A test that fails in the middle of its faults leaves a whole rig to the next one."""

import os
import signal
from collections.abc import Callable

import pytest

from tests.chaos.crowd import Crowd
from tests.chaos.rig import Rig

pytestmark = [pytest.mark.slow, pytest.mark.chaos]


def stop_node(rig: Rig) -> None:
    rig.nodes[0].stop(signal.SIGTERM)  # as a test does that fails before it takes it off the list


def kill_node(rig: Rig) -> None:
    rig.nodes[0].kill()


def freeze_node(rig: Rig) -> None:
    os.kill(rig.nodes[0].pid, signal.SIGSTOP)


def kill_ingress(rig: Rig) -> None:
    rig.process.kill()


def kill_redis(rig: Rig) -> None:
    assert rig.server is not None
    os.kill(rig.server.pid, signal.SIGKILL)


def freeze_redis(rig: Rig) -> None:
    assert rig.server is not None
    os.kill(rig.server.pid, signal.SIGSTOP)


def leave_node_and_model(rig: Rig) -> None:
    rig.add_node()
    archive, _ = rig.archive("left_over")
    rig.register(archive)


@pytest.mark.parametrize(
    "hurt",
    [
        stop_node,
        kill_node,
        freeze_node,
        kill_ingress,
        kill_redis,
        freeze_redis,
        leave_node_and_model,
    ],
)
def test_rig_is_whole_again_after_a_test_that_hurt_it(
    rig: Rig, hurt: Callable[[Rig], None]
) -> None:
    # Given
    hurt(rig)
    # When
    rig.restore()
    rig.unregister_all()
    # Then
    assert len(rig.nodes) == 1
    assert rig.manage("GET", "models").json()["models"] == []
    with rig.serve("whole"), Crowd(rig.port) as crowd:
        assert [one.status for one in crowd.ask("whole", ["hello"])] == [200]

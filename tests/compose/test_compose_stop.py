"""`docker compose stop` in mid-work."""

import time

import pytest

from tests.timing import assert_within

pytestmark = [pytest.mark.compose, pytest.mark.slow, pytest.mark.timeout(600)]

GRACE_S = 20.0


def test_stopped_parts_finish_their_work_and_leave_with_exit_code_0(stack, crowd, record_property):
    # Given
    stack.serve("leaving", pause_ms=200)
    sent = crowd.send("leaving", [f"stop {n}" for n in range(40)])
    containers = {container.name: container for container in stack.containers()}
    # When
    started = time.monotonic()
    stack.compose("stop")
    seconds = time.monotonic() - started
    crowd.wait()
    # Then
    stopped = {container.name: container.state for container in stack.containers()}
    record_property("stopped within", f"{seconds:.1f} s")
    assert stopped.keys() == containers.keys()
    assert {state["Status"] for state in stopped.values()} == {"exited"}
    assert {name: state["ExitCode"] for name, state in stopped.items()} == dict.fromkeys(stopped, 0)
    assert_within(seconds, GRACE_S)
    assert {one.status for one in sent} <= {200, 503}, [(one.status, one.fault) for one in sent]
    stack.compose("up", "-d")
    stack.wait_healthy()

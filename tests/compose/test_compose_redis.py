"""Redis is restarted under load."""

import pytest

from tests.compose.stack import monotonic_of
from tests.support import eventually
from tests.timing import assert_within

pytestmark = [pytest.mark.compose, pytest.mark.slow, pytest.mark.timeout(600)]

RECOVERY_S = 3.0


def test_restarted_redis_is_a_short_refusal_at_most(stack, crowd, record_property):
    # Given
    stack.serve("steady")
    with crowd.flow("steady", 40, "redis"):
        eventually(lambda: len(crowd.log) > 40, 10)
        # When
        stack.compose("restart", "redis")
        (redis,) = stack.containers("redis")
        back_at = monotonic_of(redis.state["StartedAt"])
        eventually(lambda: crowd.log[-1].sent_at > back_at + RECOVERY_S + 2, 20)
    # Then
    refused = [sent for sent in crowd.log if sent.status != 200]
    wrong = [sent for sent in refused if sent.status != 503]
    assert wrong == []
    assert all("retry-after" in sent.headers for sent in refused)
    recovered_s = max((sent.sent_at for sent in refused), default=back_at) - back_at
    record_property("refused", f"{len(refused)} of {len(crowd.log)}")
    record_property("recovered", f"{recovered_s:.1f} s after Redis was started again")
    assert_within(recovered_s, RECOVERY_S)
    stack.wait_healthy()
    stack.unregister("steady")

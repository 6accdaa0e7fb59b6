"""Asserts how soon all was well again, and that every client was told the truth."""

from collections.abc import Callable, Sequence

from tests.chaos import checker
from tests.chaos.crowd import Crowd, Sent
from tests.chaos.rig import Served
from tests.support import came_true
from tests.timing import assert_within

RECOVERED_S = 2.0
SETTLED_S = 15.0
# What a request may be told while no part knows where it is, or whether it was lost.
TOLD = {"200", "503 redis_unavailable", "503 queue_lost", "503 no_worker"}

Note = Callable[[str], None]


def check_recovery(log: Sequence[Sent], broken_at: float, over_at: float, note: Note) -> None:
    """Asserts that all were answered, and served again soon after another server took over."""
    found = checker.statuses(log)
    back_s = _first_success(log, broken_at + 0.1) - over_at
    late = [one for one in log if one.sent_at > over_at + RECOVERED_S]
    slowest_s = max(one.seconds for one in log)
    note(
        f"failover {over_at - broken_at:.2f} s, served again {back_s:+.2f} s later; {found}; "
        f"slowest answer {slowest_s:.1f} s"
    )
    assert checker.answers(log) == []
    assert set(found) <= TOLD
    assert_within(back_s, RECOVERED_S)
    assert late
    assert {one.status for one in late} == {200}, checker.statuses(late)


def check_nothing_stays(model: Served, crowd: Crowd) -> None:
    """Asserts that what was lost with a server leaves nothing open and nothing owned."""
    crowd.wait()
    assert came_true(lambda: model.open_requests() == 0, SETTLED_S), "requests stay open"
    assert came_true(lambda: _leases(model) == 0, SETTLED_S), "leases stay"
    assert checker.conservation(model.counters(), 0) == []
    model.wait_staffed()


def _first_success(log: Sequence[Sent], since: float) -> float:
    return min(one.answered_at for one in log if one.status == 200 and one.sent_at > since)


def _leases(model: Served) -> int:
    # Braces would be taken for a pattern by some, but not by Redis.
    names = list(model.rig.redis.scan_iter(f"{model.keys.lease_prefix}*"))
    return sum(model.rig.redis.llen(name) for name in names)

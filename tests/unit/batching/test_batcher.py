"""Gathering, with a source that follows a script: no Redis, no clock."""

import pytest

from batching.batcher import Batcher, Nothing, Partial
from batching.policy import AdaptivePolicy, FixedPolicy
from batching.protocol import Batch
from tests.support import make_request
from tests.unit.workers.handling.batches import claimed

POLICY = FixedPolicy(batch_size=4, patience_s=0.050)
IDLE_S = 2.0


def batch_of(*names, queue_us=0):
    return Batch([claimed(name, make_request(name), queue_us=queue_us) for name in names])


class ScriptedSource:
    """Answers each call with the next line of its script and writes down what was asked."""

    def __init__(self, *script):
        self._script = list(script)
        self.calls = []

    def _next(self, verb, *arguments):
        self.calls.append((verb, *arguments))
        expected, answer = self._script.pop(0)
        assert expected == verb, f"script says {expected}, batcher did {verb}"
        return answer() if callable(answer) else answer

    def claim(self, limit, patience_s):
        return self._next("claim", limit, patience_s)

    def wait_more(self, timeout_s):
        return self._next("wait_more", pytest.approx(timeout_s))

    def wait_for_work(self, timeout_s):
        assert timeout_s == IDLE_S
        return self._next("wait_for_work")

    def wake_one(self):
        self.calls.append(("wake_one",))

    @property
    def is_finished(self):
        return not self._script


def gather(source, should_stop=lambda: False):
    return Batcher(source, POLICY).gather(should_stop, IDLE_S)


def test_gather_returns_a_full_batch_at_once():
    # Given
    full = batch_of("a", "b", "c", "d")
    source = ScriptedSource(("claim", full))

    # When
    batch = gather(source)

    # Then
    assert batch is full
    assert source.calls == [("claim", 4, 0.050)]


def test_gather_takes_what_is_there_when_the_window_is_over():
    # Given
    partial = batch_of("a")
    source = ScriptedSource(
        ("claim", Partial(waiting=1, oldest_age_s=0.020)), ("wait_more", False), ("claim", partial)
    )

    # When
    batch = gather(source)

    # Then
    assert batch is partial
    assert source.calls == [("claim", 4, 0.050), ("wait_more", 0.030), ("claim", 4, 0.0)]


def test_gather_goes_on_collecting_when_it_was_woken_for_a_batch_that_another_took():
    # Given
    partial = batch_of("e")
    source = ScriptedSource(
        ("claim", Partial(waiting=3, oldest_age_s=0.0)),
        ("wait_more", True),
        ("claim", Partial(waiting=1, oldest_age_s=0.010)),
        ("wait_more", False),
        ("claim", partial),
    )

    # When
    batch = gather(source)

    # Then
    assert batch is partial
    assert [call[-1] for call in source.calls] == [0.050, 0.050, 0.050, 0.040, 0.0]


def test_gather_does_not_wait_when_the_oldest_has_waited_long_enough():
    # Given
    late = batch_of("a")
    source = ScriptedSource(("claim", Partial(waiting=1, oldest_age_s=0.060)), ("claim", late))

    # When
    batch = gather(source)

    # Then
    assert batch is late
    assert source.calls[-1] == ("claim", 4, 0.0)


@pytest.mark.parametrize("nothing", list(Nothing))
def test_gather_parks_on_the_bell_when_there_is_nothing_for_it(nothing):
    # Given
    full = batch_of("a", "b", "c", "d")
    source = ScriptedSource(
        ("claim", nothing),
        ("wait_for_work", False),
        ("claim", nothing),
        ("wait_for_work", True),
        ("claim", full),
    )

    # When
    batch = gather(source)

    # Then
    assert batch is full
    assert ("wake_one",) not in source.calls


def test_gather_opens_a_new_window_when_the_last_one_ended_with_nothing():
    # Given: the only request was cancelled while its window was open
    full = batch_of("a", "b", "c", "d")
    source = ScriptedSource(
        ("claim", Partial(waiting=1, oldest_age_s=0.0)),
        ("wait_more", False),
        ("claim", Nothing.EMPTY),
        ("wait_for_work", True),
        ("claim", full),
    )

    # When
    gather(source)

    # Then
    assert [call for call in source.calls if call[0] == "claim"] == [
        ("claim", 4, 0.050),
        ("claim", 4, 0.0),
        ("claim", 4, 0.050),
    ]


def test_gather_claims_nothing_when_it_is_stopped_already():
    # Given
    source = ScriptedSource()

    # When
    batch = gather(source, should_stop=lambda: True)

    # Then
    assert batch is None
    assert source.calls == []


def test_gather_passes_the_bell_on_when_it_was_stopped_while_parked():
    # Given
    stopped = []
    source = ScriptedSource(
        ("claim", Nothing.EMPTY), ("wait_for_work", lambda: stopped.append(True) or True)
    )

    # When
    batch = gather(source, should_stop=lambda: bool(stopped))

    # Then
    assert batch is None
    assert source.calls[-1] == ("wake_one",)


def test_gather_rings_nobody_when_it_was_stopped_and_no_bell_was_heard():
    # Given
    stopped = []
    source = ScriptedSource(
        ("claim", Nothing.EMPTY), ("wait_for_work", lambda: stopped.append(True) or False)
    )

    # When
    batch = gather(source, should_stop=lambda: bool(stopped))

    # Then
    assert batch is None
    assert ("wake_one",) not in source.calls


def test_gather_claims_no_more_when_it_was_stopped_in_its_window():
    # Given
    stopped = []
    source = ScriptedSource(
        ("claim", Partial(waiting=1, oldest_age_s=0.0)),
        ("wait_more", lambda: stopped.append(True) or False),
    )

    # When
    batch = gather(source, should_stop=lambda: bool(stopped))

    # Then
    assert batch is None
    assert source.is_finished


def test_policy_learns_from_what_was_gathered():
    # Given
    policy = AdaptivePolicy(max_batch_size=4, max_wait_s=0.050)
    batcher = Batcher(ScriptedSource(), policy)

    # When two requests arrive 0.6 s apart, the second of which has waited for 0.4 s
    batcher.observe(batch_of("a"), run_s=0.010, now_s=1.010)
    batcher.observe(batch_of("b", queue_us=400_000), run_s=0.010, now_s=2.010)

    # Then
    assert policy.estimator.estimate.gap_s == pytest.approx(0.6)
    assert policy.estimator.estimate.run_s(1) == pytest.approx(0.010)

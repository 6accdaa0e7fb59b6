"""Gathering, with a source that follows a script: no Redis, no clock."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from batching.batcher import LEAD_LIMIT_S, LEAD_STEP_S, Batcher, ClaimLead, Nothing, Partial
from batching.policy import AdaptivePolicy, Estimate, FixedPolicy
from batching.protocol import Batch, ClosedBy, Owned
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


def gather(source, should_stop=lambda: False):
    return Batcher(source, POLICY).gather(should_stop, IDLE_S)


FULL = batch_of("a", "b", "c", "d")
SOME = batch_of("a")


@pytest.mark.parametrize(
    ("script", "calls"),
    [
        ([("claim", FULL)], [("claim", 4, 0.050)]),
        (  # the window passes
            [("claim", Partial(1, 0.020)), ("wait_more", False), ("claim", SOME)],
            [("claim", 4, 0.050), ("wait_more", 0.030), ("claim", 4, 0.0)],
        ),
        (  # the window was over before
            [("claim", Partial(1, 0.060)), ("claim", SOME)],
            [("claim", 4, 0.050), ("claim", 4, 0.0)],
        ),
    ],
    ids=["full", "partial", "late"],
)
def test_gather_claims_what_is_there_when_the_batch_is_full_or_its_window_over(script, calls):
    # Given
    source = ScriptedSource(*script)

    # When
    batch = gather(source)

    # Then
    assert batch.items is script[-1][1].items
    assert source.calls == calls


WAITED = [("claim", Partial(1, 0.020)), ("wait_more", False), ("claim", SOME)]
SUSPECT = Batch([structs.replace(SOME.items[0], owned=Owned("a", 2, "ingress-a"))])


@pytest.mark.parametrize(
    ("policy", "script", "reason"),
    [
        (POLICY, [("claim", FULL)], ClosedBy.FULL),
        (POLICY, WAITED, ClosedBy.DELAY),
        (POLICY, [("claim", batch_of("a", queue_us=60_000))], ClosedBy.DELAY),
        (POLICY, [("claim", SUSPECT)], ClosedBy.IDLE),
        (FixedPolicy(4, 0.0), [("claim", SOME)], ClosedBy.IDLE),
        (FixedPolicy(1, 0.0), [("claim", SOME)], ClosedBy.FULL),
        (AdaptivePolicy(4, 0.050), [("claim", SOME)], ClosedBy.ADAPTIVE),
        (AdaptivePolicy(4, 0.050), [("claim", batch_of("a", queue_us=50_000))], ClosedBy.DELAY),
        (AdaptivePolicy(4, 0.0), [("claim", SOME)], ClosedBy.IDLE),
    ],
)
def test_batch_says_why_it_left(policy, script, reason):
    batch = Batcher(ScriptedSource(*script), policy).gather(lambda: False, IDLE_S)
    assert batch.closed_by is reason


def test_adaptive_window_ends_for_its_delay_or_because_no_more_is_worth_it():
    # Given a policy that waits for more than the delay allows, and one that waits for less
    for gap_s, reason in ((0.020, ClosedBy.DELAY), (0.001, ClosedBy.ADAPTIVE)):
        policy = AdaptivePolicy(4, 0.050)
        policy.estimator.estimate = Estimate(gap_s=gap_s, fixed_s=0.5)
        left_s = policy.seconds_left(1, 0.020)
        assert left_s > 0
        source = ScriptedSource(("claim", Partial(1, 0.020)), ("wait_more", False), ("claim", SOME))
        # When
        batch = Batcher(source, policy).gather(lambda: False, IDLE_S)
        # Then
        assert batch.closed_by is reason


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
    assert batch.items is partial.items
    assert [call[-1] for call in source.calls] == [0.050, 0.050, 0.050, 0.040, 0.0]


@pytest.mark.parametrize("nothing", list(Nothing))
def test_gather_parks_when_there_is_nothing_for_it(nothing):
    # Given
    source = ScriptedSource(
        ("claim", nothing),
        ("wait_for_work", False),
        ("claim", nothing),
        ("wait_for_work", True),
        ("claim", FULL),
    )

    # When
    batch = gather(source)

    # Then
    assert batch.items is FULL.items
    assert ("wake_one",) not in source.calls


def test_gather_opens_a_new_window_when_the_last_one_ended_with_nothing():
    # Given: the only request was cancelled while its window was open
    source = ScriptedSource(
        ("claim", Partial(waiting=1, oldest_age_s=0.0)),
        ("wait_more", False),
        ("claim", Nothing.EMPTY),
        ("wait_for_work", True),
        ("claim", FULL),
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


@pytest.mark.parametrize(
    ("claimed", "wait", "is_woken", "wakes_another"),
    [
        (Nothing.EMPTY, "wait_for_work", True, True),
        (Nothing.EMPTY, "wait_for_work", False, False),
        (Partial(waiting=1, oldest_age_s=0.0), "wait_more", False, False),
    ],
)
def test_gather_claims_no_more_when_it_was_stopped_while_it_waited(
    claimed, wait, is_woken, wakes_another
):
    # Given
    stopped = []
    source = ScriptedSource(("claim", claimed), (wait, lambda: stopped.append(True) or is_woken))

    # When
    batch = gather(source, should_stop=lambda: bool(stopped))

    # Then the token of a wakeup goes to a worker that goes on
    assert batch is None
    assert (source.calls[-1] == ("wake_one",)) is wakes_another


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


# --- how early a worker asks for a batch whose window ends


@pytest.mark.parametrize("cost_s", [0.0, 0.0003, 0.0011, 0.0019])
def test_batch_comes_to_be_in_hand_when_its_window_ends(cost_s):
    # Given a machine on which waking up and claiming takes about `cost_s`
    claim_lead, noise = ClaimLead(), random.Random(7)

    # When
    for _ in range(200):
        claim_lead.observe(cost_s + noise.uniform(0, LEAD_STEP_S) - claim_lead.seconds)

    # Then
    assert claim_lead.seconds == pytest.approx(cost_s, abs=2 * LEAD_STEP_S)


def test_long_pause_counts_no_more_than_a_short_one():
    # Given
    claim_lead = ClaimLead()
    before_s = claim_lead.seconds

    # When
    claim_lead.observe(5.0)

    # Then
    assert claim_lead.seconds == pytest.approx(before_s + LEAD_STEP_S)


@given(st.lists(st.floats(-1, 1)))
def test_window_is_never_shortened_by_more_than_the_limit(late_s):
    claim_lead = ClaimLead()
    for one_s in late_s:
        claim_lead.observe(one_s)
        assert 0.0 <= claim_lead.seconds <= LEAD_LIMIT_S

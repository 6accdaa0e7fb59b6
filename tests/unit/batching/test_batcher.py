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

GOT_ALL, GOT_SOME, EMPTY = ("claim", FULL), ("claim", SOME), ("claim", Nothing.EMPTY)
FILLED, LATE, WOKEN, UNWOKEN = (
    (verb, answer) for verb in ("wait_more", "wait_for_work") for answer in (True, False)
)
ASKED, TAKEN, WAITED_FOR = ("claim", 4, 0.050), ("claim", 4, 0.0), ("wait_for_work",)


def partial(waiting, age_s):
    return ("claim", Partial(waiting, age_s))


# What the queue answers, and what it was asked.
GATHERED = {
    "full": ([GOT_ALL], [ASKED]),
    "the window passes": (
        [partial(1, 0.020), LATE, GOT_SOME],
        [ASKED, ("wait_more", 0.030), TAKEN],
    ),
    "the window was over before": ([partial(1, 0.060), GOT_SOME], [ASKED, TAKEN]),
    "woken for a batch that another one took": (
        [partial(3, 0.0), FILLED, partial(1, 0.010), LATE, GOT_SOME],
        [ASKED, ("wait_more", 0.050), ASKED, ("wait_more", 0.040), TAKEN],
    ),
    "nothing waits, then another one collects": (
        [EMPTY, UNWOKEN, ("claim", Nothing.BUSY), WOKEN, GOT_ALL],
        [ASKED, WAITED_FOR, ASKED, WAITED_FOR, ASKED],
    ),
    "the only request was cancelled while its window was open": (
        [partial(1, 0.0), LATE, EMPTY, WOKEN, GOT_ALL],
        [ASKED, ("wait_more", 0.050), TAKEN, WAITED_FOR, ASKED],
    ),
}


@pytest.mark.parametrize(("script", "calls"), GATHERED.values(), ids=GATHERED)
def test_gather_claims_what_is_there_when_the_batch_is_full_or_its_window_over(script, calls):
    source = ScriptedSource(*script)
    batch = gather(source)
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


@pytest.mark.parametrize(
    ("gap_s", "reason"), [(0.020, ClosedBy.DELAY), (0.001, ClosedBy.ADAPTIVE)], ids=["more", "less"]
)
def test_adaptive_window_ends_for_its_delay_or_because_no_more_is_worth_it(gap_s, reason):
    # Given a policy that waits for more than the delay allows, or for less
    policy = AdaptivePolicy(4, 0.050)
    policy.estimator.estimate = Estimate(gap_s=gap_s, fixed_s=0.5)
    assert policy.seconds_left(1, 0.020) > 0
    # When / Then
    batch = Batcher(ScriptedSource(*WAITED), policy).gather(lambda: False, IDLE_S)
    assert batch.closed_by is reason


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
    # Then the token of a wakeup goes to a worker that goes on, and nothing more is claimed
    assert batch is None
    assert gather(source, should_stop=lambda: True) is None
    assert (source.calls[-1] == ("wake_one",)) is wakes_another


def test_policy_learns_from_what_was_gathered():
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


@given(st.lists(st.floats(-1, 1)))
def test_window_is_never_shortened_by_more_than_the_limit(late_s):
    claim_lead = ClaimLead()
    for one_s in late_s:
        claim_lead.observe(one_s)
        assert 0.0 <= claim_lead.seconds <= LEAD_LIMIT_S

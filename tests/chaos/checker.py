"""The verdict over the clients' log, the handler's ledger and Redis' counters: I1 to I9.

Each function returns what it found wrong, in words; an empty list is a clean verdict. Nothing here
knows how the server works: only what was promised.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from tests.chaos.crowd import Sent
from tests.chaos.job_clients import SentJob
from tests.e2e.archives import Call

MAX_ATTEMPTS = 2
DEADLINE_SLACK_S = 0.1
# A departure takes this long to reach the queue: the ingress looks after a client that has waited
# for 100 ms.
DEPARTURE_S = 0.3
OUTCOMES = ("replied", "cancelled", "expired", "orphaned", "failed", "refused")
# Not redis_unavailable: a request of unknown fate may have reached the queue.
REFUSALS = ("queue_full", "queue_memory", "no_worker", "draining")
DEPARTED_SHARE = 0.05


def answers(log: Sequence[Sent]) -> list[str]:
    """I1, I8: every client has exactly one answer, and a good one is its own."""
    wrong = [f"{s.body}: {s.fault or 'no answer'}" for s in log if not s.status and not s.left_at]
    wrong += [
        f"{s.body}: got {s.answer[:60]!r}"
        for s in log
        if s.status == 200 and not s.answer.startswith(s.body) and not s.body.startswith("long ")
    ]
    wrong += [
        f"{s.body}: {s.status} without a reason" for s in log if s.status >= 500 and not s.reason
    ]
    return wrong


def executions(log: Sequence[Sent], calls: Sequence[Call]) -> list[str]:
    """I3, I4: no id runs more than twice, and none that was refused."""
    runs = Counter(request_id for call in calls for request_id in call.request_ids)
    wrong = [f"{request_id} ran {n} times" for request_id, n in runs.items() if n > MAX_ATTEMPTS]
    last_run = {body: call.started_at for call in calls for body in call.bodies}
    for sent in log:
        ran_at = last_run.get(sent.body)
        if ran_at is None:
            if sent.status == 200:
                wrong.append(f"{sent.body}: answered 200 and never ran")
        elif sent.status == 503 and sent.reason in REFUSALS:
            wrong.append(f"{sent.body}: refused as {sent.reason}, and ran")
    return wrong


def departures(log: Sequence[Sent], calls: Sequence[Call]) -> list[str]:
    """I7: of the clients that left, no more than one in twenty has its request run afterwards."""
    last_run = {body: call.started_at for call in calls for body in call.bodies}
    left = [sent for sent in log if sent.left_at]
    wrong = [
        f"{sent.body}: ran {late_s:.2f} s after its client left"
        for sent in left
        if (late_s := last_run.get(sent.body, 0.0) - (sent.left_at or 0.0)) > DEPARTURE_S
    ]
    return wrong if len(wrong) > DEPARTED_SHARE * len(left) else []


def jobs(log: Sequence[SentJob]) -> list[str]:
    """Every job was accepted and has succeeded, and its result is what was asked for."""
    wrong = [f"{job.key}: {job.fault}" for job in log if job.fault]
    wrong += [f"{job.key}: {job.status}" for job in log if job.status != "succeeded"]
    wrong += [f"{job.key}: not its own result" for job in log if not job.is_own]
    accepted = Counter(job.job_id for job in log)
    return wrong + [f"{job_id}: {n} keys have it" for job_id, n in accepted.items() if n > 1]


def conservation(counters: Mapping[str, int], open_requests: int) -> list[str]:
    """I9: every accepted request is in the system or counted under exactly one outcome."""
    settled = sum(counters.get(name, 0) for name in OUTCOMES)
    missing = counters.get("accepted", 0) - settled - open_requests
    return [f"{missing} accepted requests unaccounted for: {dict(counters)}"] if missing else []


def statuses(log: Iterable[Sent]) -> dict[str, int]:
    """Counts the answers by status and reason."""
    return dict(Counter(f"{s.status} {s.reason}".strip() for s in log))

"""F40: random verbs against a small model in Python, on a real server, of requests and of jobs.

Hypothesis picks submits, claims, replies, cancels, deaths and the passing of time. After each step
the queue must look as the model says.
"""

import os
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from batching.protocol import INLINE_LIMIT_BYTES, JOB, Batch, Owned, Reply
from batching.store.ingress_queue import SubmitCode
from batching.store.jobs.job_records import Job, Progress
from batching.store.jobs.job_store import JobRequest
from batching.store.keys import job_version
from batching.store.node_queue import ReclaimMode
from batching.store.worker_queue import WorkerQueue
from tests.chaos.checker import MAX_ATTEMPTS, OUTCOMES
from tests.chaos.promises import is_long
from tests.support import (
    KEY,
    Backend,
    QueueHarness,
    attempts_of,
    ids_of,
    make_reply,
    server_backend,
    wire_of,
)

WORKERS = ("worker-a", "worker-b", "worker-c")
INGRESSES = ("ingress-a", "ingress-b")
MOSTLY_A = st.sampled_from(["ingress-a", "ingress-a", "ingress-a", "ingress-b"])
MAX_QUEUE = 10
PRIORITIES = ("high", "normal")
MOST_WAITING = 4
LARGE = 2 * INLINE_LIMIT_BYTES
FIELDS = ("status", "started_ms", "progress", "input", "keep_ms")
EXAMPLES, STEPS = (600, 40) if is_long() else (60, 40)

# A counter-example is found in seconds; its shortest form takes minutes, and mutants need none.
PHASES = [Phase.generate, Phase.shrink][: 1 + (os.environ.get("CHAOS_SHRINK", "1") == "1")]

Held = tuple[str, str, int]  # worker, request id, attempt

pytestmark = [pytest.mark.slow, pytest.mark.chaos]


@dataclass
class Known:
    """Holds what the model knows of one request. `owner` may still answer while it waits alone.

    `priority`, of a job only: high, normal or low.
    """

    ingress: str
    attempt: int = 0
    owner: str = ""
    is_claimed: bool = False
    is_late: bool = False
    outcome: str = ""
    priority: str = ""

    @property
    def has_reply(self) -> bool:
        return not self.priority and self.outcome in {"replied", "expired", "failed", "refused"}


class QueueMachine(RuleBasedStateMachine):
    """One model version's queue and all parts that use it."""

    backend: ClassVar[Backend]
    held = Bundle("held")  # requests that a worker may reply to

    def __init__(self) -> None:
        super().__init__()
        self.backend.client.flushall()
        self.harness = QueueHarness(self.backend)
        self.harness.open(MAX_QUEUE)
        self.known: dict[str, Known] = {}
        self.queue: list[str] = []
        self.suspects: list[str] = []
        self.leases: dict[str, list[str]] = {name: [] for name in WORKERS}
        self.given: list[Held] = []
        self.counts = dict.fromkeys(("accepted", "stale", *OUTCOMES), 0)
        self.silent: set[str] = set()
        self.living = {"worker-a"}

    def teardown(self) -> None:
        self.harness.close()

    @initialize(count=st.integers(1, 4))
    def begin(self, count: int) -> None:
        self.submit(INGRESSES[0], count)

    def worker(self, name: str) -> WorkerQueue:
        return self.harness.worker(name)

    @invariant()
    def living_ones_beat(self) -> None:
        """Beats after each step as workers and ingresses would: an example may take seconds."""
        seconds, microseconds = self.harness.client.time()
        now_ms = seconds * 1000 + microseconds // 1000
        heard = [(self.harness.keys.worker_beats, self.living)]
        heard.append((self.harness.keys.ingress_beats, set(INGRESSES) - self.silent))
        for key, names in heard:
            self.harness.client.zadd(key, dict.fromkeys(names, now_ms), xx=True)

    # --- what the model does

    def settle(self, request_id: str, outcome: str) -> None:
        self.known[request_id].outcome = outcome
        self.counts[outcome] += 1

    def take(self, request_id: str, worker: str) -> bool:
        """Whether a claim hands this waiting request out."""
        one = self.known[request_id]
        if one.ingress in self.silent:
            self.settle(request_id, "orphaned")
            return False
        if one.is_late:
            self.settle(request_id, "expired")
            return False
        one.attempt, one.owner, one.is_claimed = one.attempt + 1, worker, True
        return True

    def hand_out(self, worker: str, limit: int) -> list[str]:
        """What a claim without patience brings."""
        while self.suspects:
            request_id = self.suspects.pop(0)
            if self.take(request_id, worker):
                return [request_id]
        owned: list[str] = []
        for queue in self.queues():
            looked = 0
            while queue and len(owned) < limit and looked < 8 * limit:
                ids = queue[: limit - len(owned)]
                del queue[: len(ids)]
                looked += len(ids)
                owned += [request_id for request_id in ids if self.take(request_id, worker)]
        return owned

    def queues(self) -> list[list[str]]:
        """Returns all of the queues, those that are claimed from first in front."""
        return [self.queue]

    def queue_of(self, request_id: str) -> list[str]:
        """Returns where it waits for its first attempt."""
        return self.queue

    def answer_to(self, request_id: str, worker: str, attempt: int) -> tuple[Reply, int]:
        """Returns what a worker answers, and the code for it once that has an outcome."""
        return make_reply("x"), 2 if self.known[request_id].has_reply else 0

    def names(self) -> list[str]:
        """Returns the requests that an ingress knows of."""
        return sorted(name for name, one in self.known.items() if not one.priority)

    def expire_one(self, request_id: str) -> None:
        self.harness.age_request(request_id, 120_000)
        self.known[request_id].is_late = True

    # --- rules

    @rule(ingress=MOSTLY_A, count=st.integers(1, 4))
    def submit(self, ingress: str, count: int) -> None:
        names = [f"r{len(self.known) + number}" for number in range(count)]
        room = max(0, MAX_QUEUE - len(self.queue))
        codes = self.harness.submit(*names, ingress_id=ingress)
        assert codes == [1] * min(count, room) + [0] * max(0, count - room)
        for request_id in names[:room]:
            self.silent.discard(ingress)
            self.known[request_id] = Known(ingress)
            self.queue.append(request_id)
            self.counts["accepted"] += 1

    @precondition(lambda self: self.known)
    @rule(pick=st.randoms(use_true_random=False))
    def submit_again(self, pick: Any) -> None:
        """The answer to a submit was lost."""
        open_ids = [name for name in self.names() if not self.known[name].outcome]
        if open_ids:
            name = pick.choice(open_ids)
            assert self.harness.submit(name, ingress_id=self.known[name].ingress) == [2]

    @precondition(lambda self: self.queue or self.suspects)
    @rule(target=held, worker=st.sampled_from(WORKERS), limit=st.integers(1, 5))
    def claim_again(self, worker: str, limit: int) -> Any:
        """The same once more, so that hypothesis picks it more often."""
        return self.claim_once(worker, limit)

    @rule(target=held, worker=st.sampled_from(WORKERS), limit=st.integers(1, 5))
    def claim(self, worker: str, limit: int) -> Any:
        return self.claim_once(worker, limit)

    def claim_once(self, worker: str, limit: int) -> Any:
        claimed = self.worker(worker).claim(limit, 0.0)
        expected = self.hand_out(worker, limit)
        if expected:
            self.living.add(worker)
        assert (ids_of(claimed) if isinstance(claimed, Batch) else []) == expected
        if not expected:
            return multiple()
        self.leases[worker] += expected
        assert attempts_of(claimed) == [(name, self.known[name].attempt) for name in expected]
        given = [(worker, *item) for item in attempts_of(claimed)]
        self.given += given
        return multiple(*given)

    @rule(one=held)
    def reply(self, one: Held) -> None:
        """In time, late, or again: the same worker with the same attempt."""
        self.reply_once(*one)

    @precondition(lambda self: self.taken_away())
    @rule(pick=st.randoms(use_true_random=False))
    def reply_out_of_time(self, pick: Any) -> None:
        """By a worker that was taken for dead, before or after another worker has claimed again."""
        self.reply_once(*pick.choice(self.taken_away()))

    @precondition(lambda self: self.suspects)
    @rule(target=held, worker=st.sampled_from(WORKERS))
    def overtake(self, worker: str) -> Any:
        """A suspect is claimed, and then those answer who have had it before."""
        given = self.claim_once(worker, 1)
        for one in self.taken_away():
            if self.known[one[1]].is_claimed:
                self.reply_once(*one)
        return given

    def taken_away(self) -> list[Held]:
        """What was claimed, is open, and is not with that worker in that attempt any more."""
        return [
            (worker, name, attempt)
            for worker, name, attempt in self.given
            if not (one := self.known[name]).outcome
            and not (one.is_claimed and (one.owner, one.attempt) == (worker, attempt))
        ]

    def reply_once(self, worker: str, request_id: str, attempt: int) -> None:
        known = self.known[request_id]
        item = Owned(request_id, attempt, known.ingress)
        reply, code_afterwards = self.answer_to(request_id, worker, attempt)
        [code] = self.worker(worker).reply([item], [reply])
        if known.outcome:
            assert code == code_afterwards
        elif (known.attempt, known.owner) == (attempt, worker):
            assert code == 1
            self.settle(request_id, "replied")
            (self.leases[worker] if known.is_claimed else self.suspects).remove(request_id)
        else:
            assert code == 3
            self.counts["stale"] += 1

    @precondition(lambda self: self.known)
    @rule(pick=st.randoms(use_true_random=False))
    def cancel(self, pick: Any) -> None:
        request_id = pick.choice(self.names())
        one = self.known[request_id]
        [code] = self.harness.ingress(one.ingress).cancel([request_id])
        if one.outcome:
            assert code == (2 if one.has_reply else 0)
            return
        assert code == 1
        self.leave(request_id, "cancelled")

    def leave(self, request_id: str, outcome: str) -> None:
        """Ends the request with this outcome, wherever it waits or runs."""
        self.settle(request_id, outcome)
        places = [*self.queues(), self.suspects, *self.leases.values()]
        next(place for place in places if request_id in place).remove(request_id)

    @precondition(lambda self: any(self.leases.values()))
    @rule(pick=st.randoms(use_true_random=False), mode=st.sampled_from(list(ReclaimMode)))
    def reclaim_one_that_holds(self, pick: Any, mode: ReclaimMode) -> None:
        """It dies, is silent, leaves, or never heard what it claimed."""
        self.reclaim(pick.choice([name for name in WORKERS if self.leases[name]]), mode)

    @precondition(lambda self: any(self.leases.values()))
    @rule(pick=st.randoms(use_true_random=False))
    def crash_one_that_holds(self, pick: Any) -> None:
        self.reclaim(
            pick.choice([name for name in WORKERS if self.leases[name]]), ReclaimMode.CRASHED
        )

    @rule(worker=st.sampled_from(WORKERS), mode=st.sampled_from(list(ReclaimMode)))
    def reclaim_any(self, worker: str, mode: ReclaimMode) -> None:
        self.reclaim(worker, mode)

    def reclaim(self, worker: str, mode: ReclaimMode) -> None:
        if mode is ReclaimMode.DEAD:
            self.harness.silence_worker(worker)
        self.harness.node(MAX_ATTEMPTS).reclaim(KEY, worker, mode)
        if mode is not ReclaimMode.RECOVERED:
            self.living.discard(worker)
        self.harness.open(MAX_QUEUE)
        self.living.add("worker-a")
        held, self.leases[worker] = self.leases[worker], []
        is_untried = mode in (ReclaimMode.RELEASED, ReclaimMode.RECOVERED)
        for request_id in reversed(held) if is_untried else held:
            self._take_back(request_id, is_untried=is_untried)

    def _take_back(self, request_id: str, *, is_untried: bool) -> None:
        one = self.known[request_id]
        one.is_claimed = False
        if one.is_late or (one.attempt >= MAX_ATTEMPTS and not is_untried):
            self.settle(request_id, "failed")
        elif is_untried:
            one.attempt, one.owner = one.attempt - 1, ""
            (self.suspects if one.attempt else self.queue_of(request_id)).insert(0, request_id)
        else:
            self.suspects.append(request_id)

    @precondition(lambda self: self.known)
    @rule(pick=st.randoms(use_true_random=False))
    def expire(self, pick: Any) -> None:
        open_ids = [name for name, one in self.known.items() if not one.outcome]
        if open_ids:
            self.expire_one(pick.choice(open_ids))

    @rule(ingress=st.just("ingress-b"))
    def kill_ingress(self, ingress: str) -> None:
        if self.harness.client.zscore(self.harness.keys.ingress_beats, ingress) is not None:
            self.harness.silence_ingress(ingress, ms=10_000_000)
            self.silent.add(ingress)

    @rule(ingress=st.sampled_from(INGRESSES))
    def audit(self, ingress: str) -> None:
        names = self.names()
        codes = [int(code) for code in self.harness.ingress(ingress).audit(names)]
        self.silent.discard(ingress)
        assert codes == [
            1 if not one.outcome else 2 if one.has_reply else 0
            for one in (self.known[name] for name in names)
        ]

    # --- what must hold after each step

    @invariant()
    def places_are_as_the_model_says(self) -> None:
        waiting = {name for name, one in self.known.items() if not one.outcome}
        assert self.harness.open_ids() == waiting
        assert self.harness.queued() == self.queue
        assert self.harness.suspects() == self.suspects
        for worker in WORKERS:
            owned = [(name, self.known[name].attempt) for name in self.leases[worker]]
            assert self.harness.owned(worker) == owned
        places = [*self.queues(), self.suspects, *self.leases.values()]
        assert sorted(name for place in places for name in place) == sorted(waiting)

    @invariant()
    def every_accepted_request_has_one_outcome_at_most(self) -> None:
        counters = self.harness.counters()
        assert {name: counters.get(name, 0) for name in self.counts} == self.counts
        assert self.harness.unaccounted() == 0
        assert all(one.attempt <= MAX_ATTEMPTS for one in self.known.values())
        replied = [name for name, one in self.known.items() if self.harness.reply_value(name)]
        assert replied == [name for name, one in self.known.items() if one.has_reply]


@dataclass
class KnownJob(Known):
    """Holds what the model knows of one job. `is_emptied`: its result and input were let go."""

    size: int = 0
    is_failing: bool = False
    is_emptied: bool = False

    @property
    def status(self) -> str:
        """Its final status, or nothing."""
        replied = "failed" if self.is_failing else "succeeded"
        failed = "expired" if self.is_late else "failed"
        return {"replied": replied, "failed": failed}.get(self.outcome, self.outcome)

    @property
    def has_input(self) -> bool:
        """Returns whether it has ended, and could be tried again."""
        return not self.is_emptied and self.status not in {"", "succeeded"}


class JobMachine(QueueMachine):
    """One model version's queues, of requests and jobs."""

    def __init__(self) -> None:
        super().__init__()
        self.store = self.harness.jobs(MOST_WAITING)
        self.jobs: dict[str, KnownJob] = {}
        self.job_queue: list[str] = []

    def teardown(self) -> None:
        self.store.close()
        super().teardown()

    # --- what the model does

    def queues(self) -> list[list[str]]:
        return [self.queue, self.job_queue]

    def queue_of(self, request_id: str) -> list[str]:
        return self.job_queue if self.known[request_id].priority == "normal" else self.queue

    def has_room(self, job_id: str) -> bool:
        limit = MAX_QUEUE if self.known[job_id].priority == "high" else MOST_WAITING
        return len(self.queue_of(job_id)) < limit

    def accept(self, job_id: str) -> None:
        self.queue_of(job_id).append(job_id)
        self.counts["accepted"] += 1

    def answer_to(self, request_id: str, worker: str, attempt: int) -> tuple[Reply, int]:
        job = self.jobs.get(request_id)
        if job is None:
            return super().answer_to(request_id, worker, attempt)
        reply = Reply(500 if job.is_failing else 200, b"x" * (job.size or 1))
        # Of small ones it is not known whose answer is kept.
        is_kept = job.size and job.outcome == "replied" and not job.is_emptied
        is_same = is_kept and (job.owner, job.attempt) == (worker, attempt)
        return reply, 2 if is_same else 0

    def expire_one(self, request_id: str) -> None:
        if request_id not in self.jobs:
            super().expire_one(request_id)
            return
        # Not by its age, with which a job overtakes requests.
        self.harness.age_request(request_id, 10)
        self.harness.change_request(request_id, ttl_ms=0)
        self.known[request_id].is_late = True

    def pick_job(self, pick: Any) -> str:
        """One of the latest, mostly: they are less likely to have ended."""
        names = list(self.jobs)
        return pick.choice(names[-pick.randint(1, len(names)) :])

    # --- rules

    @initialize()
    def begin_with_jobs(self) -> None:
        for number, priority in enumerate(PRIORITIES):
            self.submit_job(priority, is_large=number > 0, is_failing=False)

    @rule(priority=st.sampled_from(PRIORITIES), is_large=st.booleans(), is_failing=st.booleans())
    def submit_job(self, priority: str, is_large: bool, is_failing: bool) -> None:
        job_id, size = f"j{len(self.known)}", LARGE * is_large
        job = KnownJob(JOB, priority=priority, size=size, is_failing=is_failing)
        self.known[job_id] = self.jobs[job_id] = job
        answer = self.store.submit(KEY, self.job_request(job_id))
        if self.has_room(job_id):
            assert isinstance(answer, Job)
            self.accept(job_id)
        else:
            assert answer is SubmitCode.FULL
            del self.known[job_id], self.jobs[job_id]

    def job_request(self, job_id: str) -> JobRequest:
        job = self.jobs[job_id]
        return JobRequest(
            job_id,
            wire_of(job_id, size=job.size),
            ttl_ms=60_000,
            keep_ms=120_000,
            is_urgent=job.priority == "high",
        )

    @precondition(lambda self: self.jobs)
    @rule(pick=st.randoms(use_true_random=False))
    def submit_job_again(self, pick: Any) -> None:
        job_id = self.pick_job(pick)
        if not self.jobs[job_id].outcome:
            assert isinstance(self.store.submit(KEY, self.job_request(job_id)), Job)

    @precondition(lambda self: self.jobs)
    @rule(pick=st.randoms(use_true_random=False))
    def cancel_job(self, pick: Any) -> None:
        self.cancel_one(self.pick_job(pick))

    def cancel_one(self, job_id: str) -> None:
        job = self.jobs[job_id]
        found = self.store.cancel(job_id)
        if not job.outcome:
            self.leave(job_id, "cancelled")
        elif job.status != "cancelled":
            job.is_emptied = True
        assert (found and found.status) == job.status

    @precondition(lambda self: self.jobs)
    @rule(pick=st.randoms(use_true_random=False))
    def retry_job(self, pick: Any) -> None:
        self.retry_one(self.pick_job(pick))

    def retry_one(self, job_id: str) -> None:
        job = self.jobs[job_id]
        code = self.store.retry(self.store.find(job_id))
        if job.is_late and not job.outcome and job_id in self.waiting_for_retry():
            self.leave(job_id, "expired")
        if not job.has_input:
            assert code is SubmitCode.NO_RETRY
        elif not self.has_room(job_id):
            assert code is SubmitCode.FULL
        else:
            assert code is SubmitCode.QUEUED
            job.attempt, job.owner, job.outcome = 0, "", ""
            job.is_claimed = job.is_late = False
            self.accept(job_id)

    @precondition(lambda self: self.running())
    @rule(target=QueueMachine.held, pick=st.randoms(use_true_random=False))
    def retry_while_it_runs(self, pick: Any) -> Any:
        """Cancelled and tried again, while the worker that has it does not know."""
        worker, job_id, _ = pick.choice(self.running())
        self.cancel_one(job_id)
        self.retry_one(job_id)
        return self.claim_once(pick.choice([name for name in WORKERS if name != worker]), 5)

    def running(self) -> list[Held]:
        return [
            (one.owner, name, one.attempt)
            for name, one in self.jobs.items()
            if one.is_claimed and not one.outcome
        ]

    def waiting_for_retry(self) -> list[str]:
        """Returns where such jobs wait as one may try again."""
        return [*self.queue, *self.job_queue, *self.suspects]

    @rule()
    def lose_all_workers(self) -> None:
        """Requests are refused, and jobs wait for the next worker."""
        for name in self.harness.client.zrange(self.harness.keys.worker_beats, 0, -1):
            self.harness.silence_worker(name.decode())
        self.harness.node().refuse_waiting(KEY, "no_worker")
        for request_id in [*self.suspects, *self.queue]:
            if request_id not in self.jobs:
                self.leave(request_id, "refused")
        self.job_queue[:0] = self.queue  # urgent ones
        self.queue.clear()
        self.living.clear()
        self.harness.open(MAX_QUEUE)
        self.living.add("worker-a")

    @precondition(lambda self: any(name in self.jobs for _, name, _ in self.given))
    @rule(pick=st.randoms(use_true_random=False))
    def note_progress(self, pick: Any) -> None:
        given = [one for one in self.given if one[1] in self.jobs]
        worker, job_id, attempt = pick.choice(given)
        news = Owned(job_id, attempt, JOB), Progress(0.5, "half").encode()
        job = self.jobs[job_id]
        is_running = job.is_claimed and not job.outcome
        is_owner = is_running and (job.owner, job.attempt) == (worker, attempt)
        assert self.worker(worker).note_progress([news]) == [is_owner]

    # --- what must hold after each step

    @invariant()
    def jobs_are_as_the_model_says(self) -> None:
        assert self.harness.queued_jobs() == self.job_queue
        prefix = self.harness.keys.job_prefix
        with self.harness.client.pipeline(transaction=False) as pipe:
            for job_id in self.jobs:
                pipe.hmget(prefix + job_id, FIELDS)
            found = pipe.execute()
        for job, values in zip(self.jobs.values(), found, strict=True):
            status, started, progress, kept_input, keep = values
            assert keep is not None
            assert (status or b"").decode() == job.status
            assert (kept_input is not None) == job.has_input
            if not job.outcome:
                assert (started is not None) == job.is_claimed
                assert progress is None or job.is_claimed

    @invariant()
    def nothing_is_left_of_a_job_but_what_is_needed(self) -> None:
        keys, expected = self.harness.keys, set()
        for job_id, job in self.jobs.items():
            expected |= {keys.job_prefix + job_id, job_version(job_id)}
            if job.size and (not job.outcome or job.has_input):
                expected.add(keys.body_prefix + job_id)
            if job.size and job.outcome == "replied" and not job.is_emptied:
                expected.add(f"{keys.large_reply_prefix}{job_id}:{job.attempt}-{job.owner}")
        names = [name.decode() for name in self.harness.client.scan_iter()]
        assert {name for name in names if self.jobs.keys() & {*name.split(":")}} == expected
        index = self.harness.client.zrange(keys.job_index, 0, -1)
        assert {name.decode() for name in index} == self.jobs.keys()


def run_machine(machine: type[QueueMachine], url: str) -> None:
    """Lets hypothesis look for a counter-example on this server."""
    backend = server_backend(url)
    run_state_machine_as_test(
        seed(40)(type("Machine", (machine,), {"backend": backend})),
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            phases=PHASES,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.timeout(900)
def test_f40_queue_does_what_its_model_says(redis_server, record_promise):
    run_machine(QueueMachine, redis_server.url)
    record_promise("F40", f"server: {EXAMPLES} x {STEPS} steps")


@pytest.mark.timeout(900)
def test_f40_jobs_do_what_their_model_says(redis_server, record_promise):
    run_machine(JobMachine, redis_server.url)
    record_promise("F40", f"jobs: {EXAMPLES} x {STEPS} steps")

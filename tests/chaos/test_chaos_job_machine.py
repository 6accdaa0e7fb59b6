"""F40 with jobs among the requests: submitted, cancelled, tried again."""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from batching.protocol import INLINE_LIMIT_BYTES, JOB, Owned, Reply
from batching.store.ingress_queue import SubmitCode
from batching.store.jobs.job_records import Job, Progress
from batching.store.jobs.job_store import JobRequest
from batching.store.keys import job_version
from ferry.process_tree.embedded_redis import EmbeddedRedis
from tests.chaos.test_chaos_machine import (
    EXAMPLES,
    MAX_QUEUE,
    STEPS,
    WORKERS,
    Held,
    Known,
    QueueMachine,
    run_machine,
)
from tests.support import KEY, wire_of

PRIORITIES = ("high", "normal")
MOST_WAITING = 4
LARGE = 2 * INLINE_LIMIT_BYTES
FIELDS = ("status", "started_ms", "progress", "input", "keep_ms")

pytestmark = [pytest.mark.slow, pytest.mark.chaos]


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
        self.counts["refused"] = 0

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


@pytest.mark.timeout(600)
def test_f40_jobs_do_what_their_model_says(redis_server: EmbeddedRedis, record_promise) -> None:
    run_machine(JobMachine, redis_server.url)
    record_promise("F40", f"jobs: {EXAMPLES} x {STEPS} steps")

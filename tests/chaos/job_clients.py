"""Clients of jobs: each submits until it is told 202, and comes for the results afterwards."""

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import requests

from batching.protocol import INLINE_LIMIT_BYTES
from tests.chaos.crowd import for_seconds

AGAIN_S = 0.1
WAIT_S = 10
PATIENCE_S = 60.0
TIMEOUT_S = 20.0
LARGE_BYTES = 2 * INLINE_LIMIT_BYTES
# Of so many jobs one is large, and of another one the first answer does not reach its client.
EVERY = 10


@dataclass(eq=False)
class SentJob:
    """One job and what its client saw. `accepted_at` is on the clock of `time.monotonic`."""

    body: bytes
    key: str
    job_id: str = ""
    accepted_at: float = 0.0
    sent: int = 0
    status: str = ""  # as asked in the end; empty: the server does not know the job
    is_own: bool = False  # its result is what was asked for
    fault: str = ""

    def is_of(self, since: float, until: float) -> bool:
        """Returns whether it was accepted between these times."""
        return since <= self.accepted_at <= until


class JobClients:
    """Some clients, each with a thread and a connection of its own."""

    def __init__(self, url: str, model: str, count: int, pause_s: float) -> None:
        self._url = url
        self._model = model
        self._count = count
        self._pause_s = pause_s
        self._is_over = threading.Event()
        self._least = 0
        self.log: list[SentJob] = []

    def start(self, pool: ThreadPoolExecutor, least: int) -> list[Future[None]]:
        """Has all clients submit until `finish`, and at least so many jobs altogether."""
        self._least = least
        return [pool.submit(self._submit_many, number) for number in range(self._count)]

    def finish(self) -> None:
        """Lets the clients end, once enough jobs are accepted."""
        self._is_over.set()

    def collect(self, pool: ThreadPoolExecutor) -> None:
        """Waits until each job has ended and takes its result."""
        list(pool.map(self._collect_many, range(self._count)))

    def _submit_many(self, client: int) -> None:
        with _session() as session:
            number = 0
            while not self._is_over.is_set() or len(self.log) < self._least:
                size = LARGE_BYTES if number % EVERY == 0 else 0
                body = f"job {client}-{number}".encode().ljust(size, b".")
                job = SentJob(body, f"{self._model}-{client}-{number}")
                self._submit(session, job, is_cut=number % EVERY == 1)
                self.log.append(job)
                number += 1
                for_seconds(self._pause_s)

    def _submit(self, session: requests.Session, job: SentJob, *, is_cut: bool) -> None:
        """Sends the job with its key again and again, until it is accepted."""
        headers = {"Prefer": "respond-async", "Idempotency-Key": job.key}
        url = f"{self._url}/predictions/{self._model}"
        while True:
            job.sent += 1
            try:
                answer = session.post(url, data=job.body, headers=headers, timeout=TIMEOUT_S)
            except requests.RequestException:
                for_seconds(AGAIN_S)
                continue
            if answer.status_code == 503 or (is_cut and job.sent == 1):
                for_seconds(AGAIN_S)
                continue
            job.accepted_at = time.monotonic()
            if answer.status_code == 202:
                job.job_id = answer.json()["id"]
            else:
                job.fault = f"{answer.status_code} {answer.text[:80]}"
            return

    def _collect_many(self, client: int) -> None:
        with _session() as session:
            for job in self.log[client :: self._count]:
                if job.job_id:
                    self._collect(session, job)

    def _collect(self, session: requests.Session, job: SentJob) -> None:
        url, end = f"{self._url}/jobs/{job.job_id}", time.monotonic() + PATIENCE_S
        while job.status in {"", "queued", "running"}:
            found = session.get(url, headers={"Prefer": f"wait={WAIT_S}"}, timeout=TIMEOUT_S)
            if found.status_code == 404:
                return
            job.status = found.json()["status"]
            assert time.monotonic() < end, f"{job.key} is still {job.status}"
        result = session.get(f"{url}/result", timeout=TIMEOUT_S)
        job.is_own = result.status_code == 200 and result.content == job.body


def _session() -> requests.Session:
    session = requests.Session()
    session.trust_env = False
    return session

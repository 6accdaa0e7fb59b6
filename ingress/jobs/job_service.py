"""Jobs as every door sees them: submit one, look at it, wait for it, take its result.

Knows no transport. Lives on the broker's event loop.
"""

import asyncio
import hashlib
import json
import secrets
from collections.abc import Callable, Mapping

from batching import errors
from batching.models.entry import no_version
from batching.models.spec import ModelSpec, VersionKey
from batching.protocol import ProtocolError, Reply, Request
from batching.store.ingress_queue import SubmitCode
from batching.store.jobs.job_documents import small_reply
from batching.store.jobs.job_records import Job, JobStatus
from batching.store.jobs.job_store import JobStore
from batching.store.jobs.job_writer import JobRequest
from batching.store.records import LargeReply, decode_reply
from batching.store.redis_errors import AWAY, memory_full, store_unavailable
from batching.webhooks import ReceiverRules
from ingress.jobs.job_errors import JobNotFound, KeyReused, NotRetryable, ResultGone, no_job
from ingress.jobs.preferences import read_idempotency_key, read_keep_s, read_urgency
from ingress.jobs.webhook_headers import read_receiver

# A waiting client hears of a change after at most so long.
_FIRST_LOOK_S, _LONGEST_LOOK_S = 0.01, 0.25

LONGEST_S = 30 * 86_400  # from the submit to the deadline


class JobService:
    """Submits jobs and tells about them."""

    def __init__(
        self,
        store: JobStore,
        *,
        timeout_s: float,
        keep_s: float,
        submitters: str = "",
        receivers: ReceiverRules | None = None,
    ) -> None:
        self._store = store
        # Names the token that they have, and not its value, which is renewed while jobs wait.
        self._submitters = submitters
        self._receivers = receivers
        self._timeout_s = timeout_s
        self._keep_s = keep_s

    async def submit(
        self,
        spec: ModelSpec,
        request: Request,
        headers: Mapping[str, str],
        timeout_s: float | None,
        *,
        is_open_inference: bool = False,
        base_url: str = "",
    ) -> tuple[Job, bool]:
        """Has a job wait; returns it, and whether it was accepted before under the same key.

        Args:
            spec: of the version that runs it.
            request: let go before the wait.
            headers: of the request, names in lower case.
            timeout_s: from now to its deadline; None: the usual one.
            is_open_inference: whether its client looks for the errors of that protocol.
            base_url: of the server as its client sees it, for those who are told of it.

        Raises:
            BadRequest: a header that is not understood.
            KeyReused: the Idempotency-Key was another request's.
            VersionNotFound, QueueFull, QueueMemoryFull, StoreUnavailable: refused; nothing is kept.
        """
        if timeout_s is not None and timeout_s > LONGEST_S:
            raise errors.BadRequest(
                f"X-Request-Timeout-Ms of a job may be {LONGEST_S * 1000} at most."
            )
        ttl_ms = int((timeout_s or self._timeout_s) * 1000)
        keep_ms = int((read_keep_s(headers) or self._keep_s) * 1000)
        is_urgent = read_urgency(headers)
        receiver = read_receiver(headers, base_url, self._receivers)
        key = read_idempotency_key(headers)
        job_id = secrets.token_hex(16)
        wire = request.to_wire()
        job = JobRequest(job_id, wire, ttl_ms, keep_ms, is_urgent, is_open_inference, receiver)
        try:
            if not key:
                return await self._accept_or_forget(spec.key, job), False
            return await self._accept_once(spec.key, job, key, _fingerprint(spec.key, request))
        except AWAY as error:
            raise store_unavailable(error) from error

    async def close(self) -> None:
        """Closes the connection by which jobs are submitted; no submit may be under way."""
        await self._store.close()

    async def find(self, job_id: str) -> Job:
        """Returns the job.

        Raises:
            JobNotFound: there is none of this id.
            StoreUnavailable: Redis does not answer.
        """
        try:
            job = await self._store.find(job_id)
        except AWAY as error:
            raise store_unavailable(error) from error
        if job is None:
            raise no_job(job_id)
        return job

    async def wait(
        self,
        job_id: str,
        wait_s: float,
        *,
        for_end: bool = False,
        before: Job | None = None,
        mark: Callable[[Job], object] = lambda job: (job.status, job.attempts),
    ) -> Job:
        """Returns the job when its status has changed, or has become final; or after this time.

        Args:
            job_id: of the job.
            wait_s: the longest wait.
            for_end: whether only a final status counts.
            before: as the caller knows it; None: as it is now.
            mark: what of a job counts as a change.

        Raises:
            JobNotFound, StoreUnavailable: as `find`.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + wait_s
        job = await self.find(job_id)
        known, look_s = mark(before or job), _FIRST_LOOK_S
        while not job.status.is_final and loop.time() < end:
            if mark(job) != known and not for_end:
                break
            await asyncio.sleep(min(look_s, max(0.0, end - loop.time())))
            look_s = min(2 * look_s, _LONGEST_LOOK_S)
            job = await self.find(job_id)
        return job

    async def pieces(self, job: Job, from_byte: int) -> list[tuple[int, bytes]]:
        """Returns pieces of the job's answer from this byte on, each after the place of its first.

        While it runs, those that it has sent and that are still kept; when it has ended, all the
        rest, if what it sent was of this answer.

        Raises:
            StoreUnavailable: Redis does not answer.
        """
        if not job.piece_bytes:
            return []
        try:
            if not job.status.is_final:
                is_more = job.piece_bytes > from_byte
                return await self._store.read_pieces(job, from_byte) if is_more else []
            reply = await self.result(job)
        except AWAY as error:
            raise store_unavailable(error) from error
        except ResultGone:
            return []
        rest = bytes(reply.body[from_byte:]) if reply.chunks and not reply.error_type else b""
        return [(from_byte, rest)] if rest else []

    async def result(self, job: Job) -> Reply:
        """Returns what the synchronous prediction would have been answered with.

        Args:
            job: finished.

        Raises:
            ResultGone: it was cancelled, or its result has been let go.
            StoreUnavailable: Redis does not answer.
        """
        if (reply := small_reply(job)) is not None:
            return reply
        value = None
        try:
            decode_reply(job.job_id, job.result)
        except LargeReply as large:
            try:
                value = await self._store.read_large(job, large.attempt)
            except AWAY as error:
                raise store_unavailable(error) from error
        except ProtocolError:
            pass
        if value is None:
            raise ResultGone(
                "The job was cancelled."
                if job.status is JobStatus.CANCELLED
                else "The job's result has been let go."
            )
        return decode_reply(job.job_id, value)

    async def cancel(self, job_id: str) -> Job:
        """Cancels a job that has not finished, and lets the result of one that has go.

        Raises:
            JobNotFound, StoreUnavailable: as `find`.
        """
        try:
            job = await self._store.cancel(job_id)
        except AWAY as error:
            raise store_unavailable(error) from error
        if job is None:
            raise no_job(job_id)
        return job

    async def retry(self, job: Job) -> Job:
        """Has a job that did not succeed wait again, with all of its attempts.

        Raises:
            NotRetryable: it has not ended, has succeeded, or its input is gone.
            QueueFull, QueueMemoryFull, StoreUnavailable: refused; it stays as it is.
        """
        try:
            code = await self._store.retry(job)
        except AWAY as error:
            raise store_unavailable(error) from error
        if code is SubmitCode.NO_RETRY:
            raise NotRetryable(
                f"Job {job.job_id} is {job.status}: only one that failed, expired or was cancelled "
                "can be tried again, while its input is kept."
            )
        self._raise_refusal(job.key, code)
        return await self.find(job.job_id)

    async def retry_if_possible(self, job_id: str) -> Job | None:
        """As `retry`, but returns None where that cannot be."""
        try:
            return await self.retry(await self.find(job_id))
        except (NotRetryable, JobNotFound):
            return None

    async def _accept_once(
        self, key: VersionKey, job: JobRequest, idempotency_key: str, fingerprint: str
    ) -> tuple[Job, bool]:
        """Accepts the job unless the key's first request was; that one may not have got far."""
        named = json.dumps([self._submitters, idempotency_key])
        digest = hashlib.sha256(named.encode()).hexdigest()
        promise = json.dumps([job.job_id, fingerprint])
        before = await self._store.promise(digest, promise)
        job_id, first_fingerprint = json.loads(before or promise)
        if first_fingerprint != fingerprint:
            raise KeyReused(
                "This Idempotency-Key belongs to a request with another path, version or body."
            )
        if before is not None and (known := await self._store.find(job_id)) is not None:
            return known, True
        accepted = await self._accept(key, job._replace(job_id=job_id))
        await self._store.keep_promise(digest, job.whole_ms)
        return accepted, False

    async def _accept_or_forget(self, key: VersionKey, job: JobRequest) -> Job:
        try:
            return await self._accept(key, job)
        except errors.ServeError:
            await self._store.forget(job.job_id)
            raise

    async def _accept(self, key: VersionKey, job: JobRequest) -> Job:
        outcome = await self._store.submit(key, job)
        if isinstance(outcome, Job):
            return outcome
        self._raise_refusal(key, outcome)
        return await self.find(job.job_id)

    def _raise_refusal(self, key: VersionKey, code: SubmitCode) -> None:
        if code is SubmitCode.NO_VERSION:
            raise no_version(*key)
        if code is SubmitCode.FULL:
            raise errors.QueueFull(
                f"Too many jobs of model {key.model_name} wait.", retry_after_s=10.0
            )
        if code is SubmitCode.NO_MEMORY:
            raise memory_full()


def _fingerprint(key: VersionKey, request: Request) -> str:
    # Prediction or explanation, and what the path says beyond the version.
    asked = [request.headers.get(name, "") for name in ("explain", "url_path")]
    digest = hashlib.sha256(json.dumps([*key, asked[0] == "True", asked[1]]).encode())
    for part in request.parts:
        digest.update(json.dumps([part.name, part.content_type, len(part.content)]).encode())
        digest.update(part.content)
    return digest.hexdigest()

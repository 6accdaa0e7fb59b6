"""Submits jobs, and answers requests about them. Lives on the broker's event loop."""

import asyncio
import contextlib
import hashlib
import json
import math
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

from batching import errors
from batching.errors import BadRequest
from batching.models.entry import no_version
from batching.models.spec import ModelSpec, VersionKey
from batching.protocol import ProtocolError, Reply, Request
from batching.settings.settings import Settings
from batching.store.held_connections import AsyncClient
from batching.store.ingress_queue import SubmitCode
from batching.store.jobs.job_records import Job, JobStatus, Receiver, job_document, small_reply
from batching.store.jobs.job_store import JobRequest, JobStore
from batching.store.records import LargeReply, decode_reply
from batching.store.redis_errors import AWAY, memory_full, store_unavailable
from batching.store.registry.registry import Registry
from batching.webhooks import ReceiverRules
from ingress.http1.exchange import HttpAnswer
from ingress.torchserve.answers import (
    error_answer,
    json_answer,
    reply_answer,
    with_error_key,
    wrong_method,
)

JOB_PATH = re.compile(r"/jobs/([0-9a-f]{32})(/result)?")

# The intervals at which a job is read for a waiting client.
_FIRST_LOOK_S, _LONGEST_LOOK_S = 0.01, 0.25
LONGEST_S = 30 * 86_400  # from the submit to the deadline
_MOST_LOOKS = 20  # pages that are read for one page of matching jobs
NEWEST_US = 2**53  # later than any job
# A guess: how fast the jobs before it are done is not known here.
_JOBS_PER_S, _LONGEST_RETRY_S = 100, 10
MOST_WAIT_S = 60.0
KEEP_RANGE_S = (60, 604_800)
EVENTS = frozenset({"started", "completed"})  # for receivers of webhooks
_PREFERENCE = re.compile(r'\s*([\w-]+)\s*(?:=\s*("(?:[^"\\]|\\.)*"|[^\s;,"]*))?\s*(?:;[^,]*)?')
_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_NUMBER = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class Preferences:
    """Holds what `Prefer` asks for; `wait_s` is 0 without a wait.

    `is_asked`: the client itself asks, not its model.
    """

    is_async: bool = False
    wait_s: float = 0.0
    is_asked: bool = True


NO_PREFERENCES = Preferences()


class JobNotFound(errors.NotFound, type="JobNotFoundException", reason="job_not_found"):
    """Refuses an id that no job has, or no longer."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"Job not found: {job_id[:64]}")


class ResultGone(errors.ServeError, status=410, type="ResultGoneException", reason="result_gone"):
    """Says that the job was cancelled, or its result deleted."""


class KeyReused(
    errors.ServeError,
    status=422,
    type="IdempotencyKeyReusedException",
    reason="idempotency_key_reused",
):
    """Refuses an Idempotency-Key that belongs to another request."""


class NotRetryable(errors.Conflict, type="JobNotRetryableException", reason="job_not_retryable"):
    """Refuses to try a job again that has not failed, or whose input is not kept."""


class JobService:
    """Submits, answers, cancels and retries jobs; raises StoreUnavailable while Redis is away.

    A `base_url` is the server's URL as its client sees it, without a slash at the end.
    """

    def __init__(self, client: AsyncClient, registry: Registry, settings: Settings) -> None:
        self._registry = registry
        self._settings = settings
        self._receivers = settings.receiver_rules()
        self._store = JobStore(
            client,
            settings.job_backlog,
            settings.job_memory_share,
            is_writing_file=settings.redis_append_only,
        )
        # Closes the connection for submits; none may be under way.
        self.close = self._store.close

    # --- over HTTP

    async def take(
        self,
        spec: ModelSpec,
        request: Request,
        headers: Mapping[str, str],
        preferences: Preferences,
        *,
        timeout_s: float | None,
        base_url: str,
        is_open_inference: bool,
    ) -> HttpAnswer:
        """Submits a prediction as a job; returns the job, or its result if that comes in time.

        Frees the request before it waits. Names of headers are in lower case. `timeout_s` is from
        now to its deadline; None: the setting. `is_open_inference`: the client reads the errors of
        that protocol.

        Raises:
            BadRequest: a header cannot be understood.
            KeyReused: the Idempotency-Key belongs to another request.
            VersionNotFound, QueueFull, QueueMemoryFull: refused; nothing is kept.
            ResultGone: there is no result.
        """
        if timeout_s is not None and timeout_s > LONGEST_S:
            longest_ms = LONGEST_S * 1000
            raise errors.BadRequest(f"X-Request-Timeout-Ms of a job may be {longest_ms} at most.")
        wanted = JobRequest(
            job_id=secrets.token_hex(16),
            wire=request.to_wire(),
            ttl_ms=int((timeout_s or self._settings.job_timeout_s) * 1000),
            keep_ms=int((read_keep_s(headers) or self._settings.job_result_ttl_s) * 1000),
            is_urgent=read_urgency(headers),
            is_open_inference=is_open_inference,
            receiver=read_receiver(headers, base_url, self._receivers),
        )
        key, is_replayed = read_idempotency_key(headers), False
        with _telling_unavailable():
            if not key:
                job = await self._accept(spec.key, wanted)
            else:
                fingerprint = _fingerprint(spec.key, request)
                job, is_replayed = await self._accept_once(spec.key, wanted, key, fingerprint)
            del request, wanted
            if preferences.wait_s:
                job = await self._wait(job, preferences.wait_s, for_end=True)
            is_over = job.status.is_final and preferences.wait_s
            answer = await self._ended(job) if is_over else _accepted(job, base_url)
        if preferences.is_asked:
            applied = f"wait={preferences.wait_s:g}" if is_over else "respond-async"
            answer.headers.append(("preference-applied", applied))
        if not is_over:
            answer.headers.append(("location", f"{base_url}/jobs/{job.job_id}"))
            if is_replayed:
                answer.headers.append(("idempotency-replayed", "true"))
        return answer

    async def answer(
        self, method: str, path: str, headers: Mapping[str, str], base_url: str
    ) -> HttpAnswer:
        """Returns the answer to a request for `/jobs/...`, errors included.

        The path is percent-decoded; names of headers are in lower case.
        """
        try:
            match = JOB_PATH.fullmatch(path.rstrip("/"))
            if match is None:
                raise JobNotFound(path.split("/")[2])
            job_id, is_result = match[1], match[2] is not None
            if method == "DELETE" and not is_result:
                job = await self.cancel(job_id)
                return _job_answer(job, {}, base_url)  # without headers: never "unchanged"
            if method not in {"GET", "HEAD"}:
                raise wrong_method()
            wait_s = read_preferences(headers.get("prefer", "")).wait_s
            with _telling_unavailable():
                job = _existing(job_id, await self._store.find(job_id))
                job = await self._wait(job, wait_s, for_end=is_result)
                if not is_result:
                    return _job_answer(job, headers, base_url)
                return await self._ended(job) if job.status.is_final else _accepted(job, base_url)
        except errors.ServeError as error:
            return error_answer(error)

    # --- for the management port

    async def cancel(self, job_id: str) -> Job:
        """Cancels the job; if it has ended, deletes its result."""
        with _telling_unavailable():
            return _existing(job_id, await self._store.cancel(job_id))

    async def retry(self, job_id: str) -> Job:
        """Queues a job that did not succeed again, with all of its attempts.

        Raises:
            NotRetryable: it has not ended, has succeeded, or its input is gone.
            QueueFull, QueueMemoryFull: refused; the job is unchanged.
        """
        with _telling_unavailable():
            job = _existing(job_id, await self._store.find(job_id))
            code = await self._store.retry(job)
            if code is SubmitCode.NO_RETRY:
                raise NotRetryable(
                    f"Job {job.job_id} is {job.status}: only a job that failed, expired or was "
                    "cancelled can be tried again, while its input is kept."
                )
            _raise_refusal(job.key, code)
            return _existing(job_id, await self._store.find(job_id))

    async def page(
        self, model: str, status: JobStatus | None, before_us: int, count: int
    ) -> tuple[list[Job], int | None]:
        """Returns up to `count` jobs, newest first, and where the next page begins; None: nowhere.

        Only those of registered versions, from before this time; only of `model`, unless that is
        empty; only in `status`, unless that is None.
        """
        jobs: list[Job] = []
        with _telling_unavailable():
            specs = await asyncio.to_thread(self._registry.specs)
            of_model = [spec.key for spec in specs if model in {"", spec.model_name}]
            for _ in range(_MOST_LOOKS):
                pages = [await self._store.newest(key, before_us, count) for key in of_model]
                newest = sorted(chain(*pages), key=lambda entry: entry[0], reverse=True)[:count]
                for time_us, job in newest:
                    before_us = time_us
                    if status in {None, job.status}:
                        jobs.append(job)
                    if len(jobs) == count:
                        return jobs, before_us
                if not newest:
                    return jobs, None
        return jobs, before_us

    async def _accept_once(
        self, key: VersionKey, job: JobRequest, idempotency_key: str, fingerprint: str
    ) -> tuple[Job, bool]:
        """Returns the job of this key, and whether it was accepted before.

        The first submit with the key may have broken off.
        """
        digest = hashlib.sha256(idempotency_key.encode()).hexdigest()
        own = json.dumps([job.job_id, fingerprint])
        before = await self._store.take_key(digest, own)
        job_id, first_fingerprint = json.loads(before or own)
        if first_fingerprint != fingerprint:
            raise KeyReused(
                "This Idempotency-Key belongs to a request with another path, version or body."
            )
        if before is not None and (known := await self._store.find(job_id)) is not None:
            return known, True
        accepted = await self._accept(key, job._replace(job_id=job_id, is_keyed=True))
        await self._store.keep_key(digest, job.whole_ms)
        return accepted, False

    async def _accept(self, key: VersionKey, job: JobRequest) -> Job:
        outcome = await self._store.submit(key, job)
        if isinstance(outcome, Job):
            return outcome
        _raise_refusal(key, outcome)
        raise JobNotFound(job.job_id)  # it was accepted before, and is forgotten

    async def _wait(self, job: Job, wait_s: float, *, for_end: bool) -> Job:
        """Returns the job when its status has changed, or after `wait_s`.

        With `for_end` only a final status counts.
        """
        loop = asyncio.get_running_loop()
        end_s = loop.time() + wait_s
        known, look_s = (job.status, job.attempts), _FIRST_LOOK_S
        while not job.status.is_final and loop.time() < end_s:
            await asyncio.sleep(min(look_s, max(0.0, end_s - loop.time())))
            look_s = min(2 * look_s, _LONGEST_LOOK_S)
            job = _existing(job.job_id, await self._store.look_again(job))
            if (job.status, job.attempts) != known and not for_end:
                break
        return job

    async def _ended(self, job: Job) -> HttpAnswer:
        """Returns the job's result as the answer to the same prediction without a job."""
        reply = small_reply(job)
        if reply is None:
            reply = await self._large_reply(job)
        answer = reply_answer(reply, job.job_id)
        return with_error_key(answer) if job.is_open_inference and reply.error_type else answer

    async def _large_reply(self, job: Job) -> Reply:
        try:
            return decode_reply(job.job_id, job.result)
        except LargeReply as large:
            value = await self._store.read_large(job, large.attempt)
            if value is not None:
                return decode_reply(job.job_id, value)
        except ProtocolError:
            pass
        is_cancelled = job.status is JobStatus.CANCELLED
        raise ResultGone(
            "The job was cancelled." if is_cancelled else "The job's result has been deleted."
        )


@contextlib.contextmanager
def _telling_unavailable() -> Iterator[None]:
    try:
        yield
    except AWAY as error:
        raise store_unavailable(error) from error


def _existing(job_id: str, job: Job | None) -> Job:
    if job is None:
        raise JobNotFound(job_id)
    return job


def _raise_refusal(key: VersionKey, code: SubmitCode) -> None:
    if code is SubmitCode.NO_VERSION:
        raise no_version(*key)
    if code is SubmitCode.FULL:
        raise errors.QueueFull(f"Too many jobs of model {key.model_name} wait.", retry_after_s=10.0)
    if code is SubmitCode.NO_MEMORY:
        raise memory_full()


def _fingerprint(key: VersionKey, request: Request) -> str:
    # Prediction or explanation, and the path behind the version.
    asked = [request.headers.get(name, "") for name in ("explain", "url_path")]
    digest = hashlib.sha256(json.dumps([*key, asked[0] == "True", asked[1]]).encode())
    for part in request.parts:
        digest.update(json.dumps([part.name, part.content_type, len(part.content)]).encode())
        digest.update(part.content)
    return digest.hexdigest()


def _accepted(job: Job, base_url: str) -> HttpAnswer:
    answer = json_answer(job_document(job, base_url), 202)
    answer.headers.append(_retry_after(job))
    return answer


def _job_answer(job: Job, headers: Mapping[str, str], base_url: str) -> HttpAnswer:
    answer = json_answer(job_document(job, base_url))
    tag = f'"{hashlib.sha256(bytes(answer.body)).hexdigest()[:32]}"'
    answer.headers.append(("etag", tag))
    if not job.status.is_final:
        answer.headers.append(_retry_after(job))
    if headers.get("if-none-match") == tag:
        return answer._replace(status=304, body=b"")
    return answer


def _retry_after(job: Job) -> tuple[str, str]:
    seconds = 1
    if job.status is JobStatus.QUEUED and not job.is_urgent:
        far_s = _LONGEST_RETRY_S if job.position is None else job.position / _JOBS_PER_S
        seconds = max(1, math.ceil(far_s))
    return "retry-after", str(seconds)


# --- headers; their names are in lower case. A header that cannot be understood is a BadRequest.
# Source: RFC 7240 (Prefer), and the expired draft-ietf-httpapi-idempotency-key-header-07.


def preferences_of(headers: Mapping[str, str], async_after_s: int) -> Preferences:
    """Returns the client's preferences, else the model's: a job after `async_after_s`."""
    if "prefer" in headers:
        preferences = read_preferences(headers["prefer"])
        if preferences.is_async:
            return preferences
    accepted = (headers.get("accept") or "*/*").split(",")
    kinds = {kind.partition(";")[0].strip().lower() for kind in accepted}
    if async_after_s and kinds & {"*/*", "application/*", "application/json"}:
        return Preferences(is_async=True, wait_s=async_after_s, is_asked=False)
    return NO_PREFERENCES


@lru_cache(maxsize=64)
def read_preferences(header: str) -> Preferences:
    """Parses `Prefer`; ignores what is unknown or not well-formed, as RFC 7240 says."""
    values: dict[str, str] = {}
    for part in header.split(","):
        if match := _PREFERENCE.fullmatch(part):
            values.setdefault(match[1].lower(), (match[2] or "").strip('"'))
    wait = values.get("wait", "")
    wait_s = min(float(wait), MOST_WAIT_S) if _NUMBER.fullmatch(wait) else 0.0
    return Preferences("respond-async" in values, wait_s)


def read_idempotency_key(headers: Mapping[str, str]) -> str:
    """Returns the key, which may be quoted: `abc` or `"abc"`; empty without one."""
    if "idempotency-key" not in headers:
        return ""
    key = headers["idempotency-key"].strip()
    if len(key) > 1 and key[0] == key[-1] == '"':
        key = key[1:-1]
    if not _KEY.fullmatch(key):
        raise BadRequest("Idempotency-Key must be 1 to 255 printable characters without spaces.")
    return key


def read_keep_s(headers: Mapping[str, str]) -> int | None:
    """Returns for how many seconds to keep the result; None if the client does not say."""
    ttl = headers.get("x-result-ttl-s")
    if ttl is None:
        return None
    least, most = KEEP_RANGE_S
    if not _NUMBER.fullmatch(ttl) or not least <= int(ttl) <= most:
        raise BadRequest(f"X-Result-Ttl-S must be a whole number of seconds, {least} to {most}.")
    return int(ttl)


def read_urgency(headers: Mapping[str, str]) -> bool:
    priority = headers.get("x-priority", "normal").lower()
    if priority not in {"high", "normal"}:
        raise BadRequest("X-Priority must be high or normal.")
    return priority == "high"


def read_receiver(
    headers: Mapping[str, str], base_url: str, rules: ReceiverRules | None
) -> Receiver | None:
    """Returns the receiver of the job's webhooks; None if the client names none.

    Without rules, this server sends no webhooks.
    """
    url = headers.get("webhook-url")
    if url is None:
        return None
    if rules is None:
        raise BadRequest("This server sends no webhooks: its operator has to set webhook_secrets.")
    try:
        rules.check_url(url)
    except ValueError as error:
        raise BadRequest(f"Webhook-Url must be {error}.") from error
    events = {event.strip() for event in headers.get("webhook-events", "completed").split(",")}
    if not events <= EVENTS or "completed" not in events:
        raise BadRequest("Webhook-Events must be completed, or started,completed.")
    include = headers.get("webhook-include", "")
    if include not in {"", "result"}:
        raise BadRequest("Webhook-Include must be result, if it is there.")
    return Receiver(url, base_url, "started" in events, include == "result")

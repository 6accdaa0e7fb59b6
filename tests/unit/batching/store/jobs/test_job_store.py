"""Jobs in Redis: submitted, run once, kept, and gone in the end."""

import pytest

from batching.models.spec import VersionKey
from batching.protocol import INLINE_LIMIT_BYTES, Reply
from batching.store.ingress_queue import SubmitCode
from batching.store.jobs.job_records import JobStatus
from batching.store.jobs.job_store import JobRequest
from batching.store.keys import VersionKeys, job_version
from batching.store.node_queue import ReclaimMode
from batching.store.records import LargeReply, decode_reply
from batching.store.worker_queue import JOB_PATIENCE_US, ReplyCode
from tests.support import KEY, body_of, ids_of, items_of, make_reply, wire_of

LARGE = 4 * INLINE_LIMIT_BYTES
FAILED = Reply(503, b"Prediction failed", error_type="X", reason="prediction_failed")


def status_of(harness, job_id="a"):
    job = harness.jobs().find(job_id)
    return job and job.status


def large_replies(harness):
    return [*harness.client.scan_iter("*large_replies*")]


def run(harness, *replies, limit=8):
    """Has a worker answer the next batch so."""
    worker = harness.worker()
    items = items_of(worker.claim(limit, 0.0))
    return worker.reply(items, list(replies))


def age_job(harness, job_id, ms):
    harness.age_request(job_id, ms)
    harness.client.hincrby(harness.keys.job_prefix + job_id, "queued_ms", -ms)


def test_job_waits_runs_and_keeps_its_result(harness):
    # When it is submitted
    request = JobRequest("a", wire_of("a"), ttl_ms=60_000, keep_ms=120_000)
    submitted = harness.jobs().submit(KEY, request)
    job = harness.jobs().find("a")
    assert (job.status, job.position, job.attempts) == (JobStatus.QUEUED, 0, 0)
    assert submitted == job
    assert harness.jobs().submit(KEY, request) == job
    assert job.key == KEY

    # And a worker takes it
    worker = harness.worker()
    claimed = worker.claim(8, 0.0)
    assert [body_of(item.request) for item in claimed.items] == ["a"]
    job = harness.jobs().find("a")
    assert (job.status, job.position, job.attempts) == (JobStatus.RUNNING, None, 1)
    assert job.started_ms >= job.created_ms

    # And answers it
    assert worker.reply(items_of(claimed), [make_reply("A")]) == [ReplyCode.STORED]

    # Then the result is kept, and nothing else of it waits
    job = harness.jobs().find("a")
    assert job.status is JobStatus.SUCCEEDED
    assert decode_reply("a", job.result) == make_reply("A")
    assert job.expires_ms == job.finished_ms + 120_000
    assert harness.open_ids() == set()
    assert harness.done("job") == []
    assert harness.reply_value("a") is None
    assert harness.unaccounted() == 0


def test_job_is_accepted_without_a_worker_but_not_without_its_version(harness):
    harness.client.delete(harness.keys.worker_beats)
    assert harness.submit_job("a") is SubmitCode.QUEUED
    assert harness.queued_jobs() == ["a"]

    other = VersionKey("other", "1.0")
    request = JobRequest("b", wire_of("b", size=LARGE), ttl_ms=60_000, keep_ms=60_000)
    assert harness.jobs().submit(other, request) is SubmitCode.NO_VERSION
    assert harness.jobs().find("b") is None
    assert not harness.client.exists(VersionKeys.of(other).body_prefix + "b")
    assert not harness.client.exists(job_version("b"))


def test_so_many_jobs_may_wait(harness):
    harness.submit_job("a")
    jobs = harness.jobs(most_waiting=1)
    request = JobRequest("b", wire_of("b"), ttl_ms=60_000, keep_ms=60_000)
    assert jobs.submit(KEY, request) is SubmitCode.FULL
    assert jobs.find("b") is None
    # And urgent ones as many as requests
    harness.open(max_queue=1)
    assert jobs.submit(KEY, request._replace(is_urgent=True)).status is JobStatus.QUEUED
    urgent = request._replace(job_id="c", is_urgent=True)
    assert jobs.submit(KEY, urgent) is SubmitCode.FULL


def test_large_job_and_large_result(harness):
    # Given
    harness.submit_job("a", size=LARGE)
    worker = harness.worker()
    claimed = worker.claim(1, 0.0)
    assert len(claimed.items[0].request.parts[0].content) == LARGE
    items = items_of(claimed)

    # When the answer is sent twice, as its acknowledgement was lost
    assert worker.reply(items, [make_reply("A", size=LARGE)]) == [ReplyCode.STORED]
    assert worker.reply(items, [make_reply("A", size=LARGE)]) == [ReplyCode.STORED_BEFORE]

    # Then it lives as long as the job
    job = harness.jobs().find("a")
    with pytest.raises(LargeReply) as told:
        decode_reply("a", job.result)
    value = harness.jobs().read_large(job, told.value.attempt)
    assert decode_reply("a", value) == make_reply("A", size=LARGE)
    name = f"{harness.keys.large_reply_prefix}a:1-worker-a"
    assert harness.client.pttl(name) > 100_000
    assert not harness.has_body("a")

    # And goes when the result is let go
    assert harness.jobs().cancel("a").result == b""
    assert not harness.client.exists(name)
    assert status_of(harness) is JobStatus.SUCCEEDED


@pytest.mark.parametrize("size", [0, LARGE], ids=["small", "large"])
def test_failed_job_keeps_its_input_and_can_be_tried_again_until_it_is_deleted(harness, size):
    # Given two that have failed, also with a large answer
    for job_id in ("a", "deleted"):
        harness.submit_job(job_id, size=size)
    run(harness, FAILED, Reply(500, b"x" * size, error_type="X"))
    job = harness.jobs().find("a")
    assert job.status is JobStatus.FAILED
    assert decode_reply("a", job.result) == FAILED

    # When one is tried again
    assert harness.jobs().retry(job) is SubmitCode.QUEUED

    # Then
    job = harness.jobs().find("a")
    assert (job.status, job.attempts, job.result) == (JobStatus.QUEUED, 0, b"")
    [item] = harness.worker().claim(1, 0.0).items
    assert (body_of(item.request), item.owned.attempt) == ("a", 1)
    harness.worker().reply([item.owned], [make_reply("A")])
    assert status_of(harness) is JobStatus.SUCCEEDED
    assert harness.jobs().retry(job) is SubmitCode.NO_RETRY
    assert not harness.has_body("a")

    # And the other one is no dead letter any more when it is deleted
    assert bool(large_replies(harness)) is bool(size)
    deleted = harness.jobs().cancel("deleted")
    assert (deleted.status, deleted.result) == (JobStatus.FAILED, b"")
    assert harness.jobs().retry(deleted) is SubmitCode.NO_RETRY
    assert not harness.has_body("deleted")
    assert not large_replies(harness)


@pytest.mark.parametrize("state", ["waits", "is a suspect", "runs"])
def test_cancelled_job_is_not_run_or_its_result_is_dropped(harness, state):
    # Given
    harness.submit_job("a")
    worker = harness.worker()
    items = []
    if state != "waits":
        items = items_of(worker.claim(1, 0.0))
    if state == "is a suspect":
        harness.node().reclaim(KEY, "worker-a", ReclaimMode.CRASHED)
        assert status_of(harness) is JobStatus.QUEUED

    # When
    for _ in range(2):
        assert harness.jobs().cancel("a").status is JobStatus.CANCELLED

    # Then
    assert [*harness.queued_jobs(), *harness.suspects(), *harness.leased()] == []
    if items:
        assert worker.reply(items, [make_reply("A")]) == [ReplyCode.UNWANTED]
    job = harness.jobs().find("a")
    assert (job.status, job.result) == (JobStatus.CANCELLED, b"")
    assert harness.unaccounted() == 0
    # And it can be tried again
    assert harness.jobs().retry(job) is SubmitCode.QUEUED
    assert ids_of(harness.worker("worker-b").claim(1, 0.0)) == ["a"]


@pytest.mark.parametrize("is_claimed", [True, False])
@pytest.mark.parametrize("is_urgent", [True, False])
def test_job_whose_time_is_over_is_not_run_and_can_be_tried_again(harness, is_claimed, is_urgent):
    # Given
    harness.submit_job("a", ttl_ms=1000, is_urgent=is_urgent)
    age_job(harness, "a", 2000)

    # When a worker looks, or nobody has
    if is_claimed:
        harness.worker().claim(1, 0.0)

    # Then
    job = harness.jobs().find("a")
    assert (job.status, job.is_urgent) == (JobStatus.EXPIRED, is_urgent)
    if is_claimed:
        assert decode_reply("a", job.result).reason == "deadline_exceeded"
    assert harness.jobs().retry(job) is SubmitCode.QUEUED
    assert ids_of(harness.worker().claim(8, 0.0)) == ["a"]
    assert harness.unaccounted() == 0


def test_job_outlives_the_ingress_that_accepted_it_and_its_worker(harness):
    # Given a job, and no ingress
    harness.submit_job("a")
    claimed = harness.worker().claim(1, 0.0)
    assert ids_of(claimed) == ["a"]

    # When its worker dies twice
    for worker_id, outcome in (("worker-a", JobStatus.QUEUED), ("worker-b", JobStatus.FAILED)):
        harness.node().reclaim(KEY, worker_id, ReclaimMode.CRASHED)
        assert status_of(harness) is outcome
        if outcome is JobStatus.QUEUED:
            assert ids_of(harness.worker("worker-b").claim(8, 0.0)) == ["a"]

    # Then it has failed, and says why
    job = harness.jobs().find("a")
    assert decode_reply("a", job.result).reason == "worker_crashed"
    assert job.attempts == 2
    assert harness.unaccounted() == 0


def test_job_that_a_leaving_worker_gives_back_waits_in_front(harness):
    harness.submit_job("a")
    harness.submit_job("b")
    harness.worker().claim(1, 0.0)
    harness.node().reclaim(KEY, "worker-a", ReclaimMode.RELEASED)
    assert harness.queued_jobs() == ["a", "b"]
    assert harness.jobs().find("a").status is JobStatus.QUEUED


def test_jobs_take_the_seats_that_requests_leave_free_but_urgent_ones(harness):
    # Given
    for job_id in ("j1", "j2", "j3"):
        harness.submit_job(job_id)
    harness.submit("a")
    harness.submit_job("u", is_urgent=True)

    # When / Then a batch has the requests first
    assert ids_of(harness.worker().claim(3, 0.0)) == ["a", "u", "j1"]
    # And jobs have one of their own when no request waits
    assert ids_of(harness.worker().claim(3, 0.0)) == ["j2", "j3"]


def test_claim_asks_nothing_about_jobs_while_there_are_none(harness):
    # Given a version that a worker has found without jobs
    harness.submit("a")
    assert ids_of(harness.worker().claim(1, 0.0)) == ["a"]
    # When any look at their queue would fail
    harness.client.set(harness.keys.job_queue, "no list", px=60_000)
    harness.submit("b", "c")
    # Then
    assert ids_of(harness.worker().claim(1, 0.0)) == ["b"]
    # And they are asked for from the first one on
    harness.client.delete(harness.keys.job_queue)
    harness.submit_job("j")
    assert ids_of(harness.worker().claim(2, 0.0)) == ["c", "j"]


def test_job_that_comes_back_to_a_version_that_was_registered_anew_is_found(harness):
    # Given a job that runs, and a version that knows of none since
    harness.submit_job("j")
    harness.worker().claim(1, 0.0)
    harness.client.delete(harness.keys.config)
    harness.open()
    harness.submit("a")
    other = harness.worker("worker-b")
    assert ids_of(other.claim(1, 0.0)) == ["a"]
    # When
    harness.node().reclaim(KEY, "worker-a", ReclaimMode.RELEASED)
    # Then
    assert ids_of(other.claim(1, 0.0)) == ["j"]


def test_jobs_wait_for_a_full_batch_as_requests_do_and_requests_do_not_wait_for_jobs(harness):
    harness.submit_job("j1")
    assert harness.worker().claim(2, 10.0).waiting == 1
    assert harness.more_tokens() == 0
    harness.submit_job("j2")
    assert harness.more_tokens() == 1
    assert ids_of(harness.worker().claim(2, 10.0)) == ["j1", "j2"]
    # And a worker that collects for a request takes jobs only when its window is over
    harness.submit("a")
    assert harness.worker().claim(2, 10.0).waiting == 1
    harness.submit_job("j3")
    assert ids_of(harness.worker().claim(2, 0.0)) == ["a", "j3"]


def test_old_jobs_have_a_quarter_of_a_batch_however_many_requests_wait(harness):
    # Given
    for number in range(3):
        harness.submit_job(f"j{number}", ttl_ms=10_000_000)
    for job_id in ("j0", "j1"):
        age_job(harness, job_id, JOB_PATIENCE_US // 1000)
    harness.submit(*(f"r{number}" for number in range(10)))

    # When / Then
    assert ids_of(harness.worker().claim(4, 0.0)) == ["j0", "r0", "r1", "r2"]
    assert ids_of(harness.worker().claim(8, 0.0)) == ["j1", *(f"r{n}" for n in range(3, 10))]


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_old_jobs_have_a_quarter_of_the_seats_of_small_batches(harness, limit):
    # Given more old jobs than could run
    for number in range(100):
        harness.submit_job(f"j{number}", ttl_ms=10_000_000)
        age_job(harness, f"j{number}", JOB_PATIENCE_US // 1000)
    harness.open(max_queue=1000)
    harness.submit(*(f"r{number}" for number in range(300)))

    # When, by one worker: connections for 240 took longer than a silent ingress is waited for
    worker = harness.worker()
    ran = [name for _ in range(240 // limit) for name in ids_of(worker.claim(limit, 0.0))]

    # Then, by dice: eight standard deviations for a batch of one
    jobs = sum(name.startswith("j") for name in ran)
    assert 60 - 54 < jobs < 60 + 54
    assert len(ran) == 240 // limit * limit


def test_jobs_wait_for_a_worker_but_not_for_a_version_that_is_gone(harness):
    # Given a job, a suspect and an urgent job, and no worker
    for job_id in ("a", "b"):
        harness.submit_job(job_id)
    harness.worker().claim(1, 0.0)
    harness.node().reclaim(KEY, "worker-a", ReclaimMode.CRASHED)
    harness.submit_job("c", is_urgent=True)
    harness.client.delete(harness.keys.worker_beats)

    # When there will be none for now
    assert harness.node().refuse_waiting(KEY, "no_worker") == 0
    assert harness.queued_jobs() == ["c", "b"]
    assert harness.suspects() == ["a"]

    # And when there never will be
    assert harness.node().refuse_waiting(KEY, "unregistered") == 3
    for job_id in ("a", "b", "c"):
        job = harness.jobs().find(job_id)
        assert (job.status, decode_reply(job_id, job.result).status) == (JobStatus.FAILED, 404)
    assert harness.unaccounted() == 0


def test_jobs_that_crashed_with_a_worker_run_alone_even_if_it_was_the_last(harness):
    # Given two that crashed together, one of them for the other's fault, and no worker since
    for job_id in ("bad", "good"):
        harness.submit_job(job_id)
    harness.worker().claim(8, 0.0)
    harness.node().reclaim(KEY, "worker-a", ReclaimMode.CRASHED)
    assert harness.node().refuse_waiting(KEY, "no_worker") == 0

    # When there is one again, and crashes again
    assert ids_of(harness.worker("worker-b").claim(8, 0.0)) == ["bad"]
    harness.node().reclaim(KEY, "worker-b", ReclaimMode.CRASHED)

    # Then
    assert status_of(harness, "bad") is JobStatus.FAILED
    assert run(harness, make_reply("x")) == [ReplyCode.STORED]
    assert status_of(harness, "good") is JobStatus.SUCCEEDED
    assert harness.unaccounted() == 0


def test_newest_jobs_are_listed_first_and_those_that_have_gone_are_forgotten(harness):
    # Given
    for number in range(5):
        harness.submit_job(f"j{number}")
    for number in (0, 3):
        harness.client.delete(harness.keys.job_prefix + f"j{number}")

    # When
    page = harness.jobs().newest(KEY, 2**53, 2)
    rest = harness.jobs().newest(KEY, page[-1][0], 2)

    # Then
    assert [job.job_id for _, job in page + rest] == ["j4", "j2", "j1"]

    # And a submit forgets the oldest that have gone, too
    harness.submit_job("a")
    names = harness.client.zrange(harness.keys.job_index, 0, -1)
    assert [name.decode() for name in names] == ["j1", "j2", "j4", "a"]


def test_job_whose_record_has_outlived_its_hash_is_dropped(harness):
    harness.submit_job("a")
    harness.client.delete(harness.keys.job_prefix + "a")
    harness.submit_job("b")
    assert ids_of(harness.worker().claim(8, 0.0)) == ["b"]
    assert harness.open_ids() == {"b"}
    assert harness.unaccounted() == 0


def test_job_that_was_accepted_meanwhile_survives_a_refusal_under_its_id(harness):
    # Given a request that comes twice under one key, the first time to a full queue
    wire = wire_of("a", size=LARGE)
    request = JobRequest("a", wire, ttl_ms=60_000, keep_ms=60_000, is_keyed=True)
    harness.submit_job("before")
    full, roomy = harness.jobs(most_waiting=1), harness.jobs()
    assert full.submit(KEY, request) is SubmitCode.FULL
    assert not harness.has_body("a")

    # When the second one is accepted, and the first is tried again
    assert roomy.submit(KEY, request).status is JobStatus.QUEUED
    assert full.submit(KEY, request).status is JobStatus.QUEUED

    # Then it is there, whole
    assert harness.has_body("a")
    assert ids_of(harness.worker().claim(8, 0.0)) == ["before", "a"]


def test_nothing_of_a_job_is_kept_when_memory_is_full_but_results(real_harness, full_memory):
    # Given
    real_harness.submit_job("runs")
    worker = real_harness.worker()
    items = items_of(worker.claim(1, 0.0))
    full_memory()
    # When / Then
    for size in (0, LARGE):
        assert real_harness.submit_job("a", size=size) is SubmitCode.NO_MEMORY
    assert real_harness.jobs().find("a") is None
    assert worker.reply(items, [make_reply("A")]) == [ReplyCode.STORED]
    assert decode_reply("runs", real_harness.jobs().find("runs").result) == make_reply("A")


def test_jobs_leave_a_part_of_the_memory_to_requests(real_harness):
    # Given a Redis that is half full
    client = real_harness.client
    client.config_set("maxmemory", 2 * client.info("memory")["used_memory"])
    request = JobRequest("a", wire_of("a"), ttl_ms=60_000, keep_ms=60_000)
    modest, greedy = (real_harness.jobs(memory_share=share) for share in (0.3, 0.9))
    try:
        # When / Then
        assert modest.submit(KEY, request) is SubmitCode.NO_MEMORY
        assert real_harness.submit("b") == [SubmitCode.QUEUED]
        assert greedy.submit(KEY, request).status is JobStatus.QUEUED
    finally:
        client.config_set("maxmemory", 0)


def test_b08_garbage_in_place_of_a_job_is_no_job(harness):
    # Given
    for number, garbage in enumerate((b"\x80\x04.", b"[]", b"[" * 100_000, b"7", b'"ab"x')):
        job_id = f"a{number}"
        harness.submit_job(job_id)
        harness.client.set(job_version(job_id), garbage, px=60_000)
        assert harness.jobs().find(job_id) is None
    # When
    for field, text in (("created_ms", b"x"), ("status", b"?"), ("ttl_ms", b"\xff")):
        harness.submit_job(f"b{field}")
        harness.client.hset(harness.keys.job_prefix + f"b{field}", field, text)
        # Then
        assert harness.jobs().find(f"b{field}") is None
    assert harness.submit_job("good") is SubmitCode.QUEUED
    assert [job.job_id for _, job in harness.jobs().newest(KEY, 2**53, 1)] == ["good"]


def test_worker_that_was_taken_for_dead_answers_its_job_until_it_is_claimed_again(harness):
    # Given
    harness.submit_job("a")
    old = harness.worker("worker-a")
    items = items_of(old.claim(1, 0.0))
    harness.node().reclaim(KEY, "worker-a", ReclaimMode.CRASHED)

    # When another one has it
    new = harness.worker("worker-b")
    again = items_of(new.claim(1, 0.0))

    # Then
    assert old.reply(items, [make_reply("late", size=LARGE)]) == [ReplyCode.STALE]
    assert new.reply(again, [make_reply("A", size=LARGE)]) == [ReplyCode.STORED]
    assert old.reply(items, [make_reply("late", size=LARGE)]) == [ReplyCode.UNWANTED]
    job = harness.jobs().find("a")
    assert job.result == b"a@2-worker-b"
    assert harness.jobs().read_large(job, "2-worker-b") is not None


def test_answer_from_before_a_job_was_tried_again_is_nobodys(harness):
    # Given a job that was cancelled while it ran, and that another worker has answered since
    harness.submit_job("a")
    old, new = harness.worker("worker-a"), harness.worker("worker-b")
    items = items_of(old.claim(1, 0.0))
    assert harness.jobs().retry(harness.jobs().cancel("a")) is SubmitCode.QUEUED
    again = items_of(new.claim(1, 0.0))
    assert (items, again) == (again, items)  # each is its first attempt
    answer = make_reply("A", size=LARGE)
    assert new.reply(again, [answer]) == [ReplyCode.STORED]

    # When
    assert old.reply(items, [make_reply("late", size=LARGE)]) == [ReplyCode.UNWANTED]

    # Then
    job = harness.jobs().find("a")
    with pytest.raises(LargeReply) as told:
        decode_reply("a", job.result)
    assert decode_reply("a", harness.jobs().read_large(job, told.value.attempt)) == answer
    assert len(large_replies(harness)) == 1

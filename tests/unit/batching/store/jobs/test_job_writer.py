"""Jobs that come together are written together, and do not share their fate."""

import asyncio

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from batching.models.spec import VersionKey
from batching.protocol import INLINE_LIMIT_BYTES
from batching.store.clients import at, connect_async
from batching.store.ingress_queue import SubmitCode
from batching.store.jobs.job_store import KEY_MS, JobRequest, JobStore
from batching.store.keys import VersionKeys, job_version
from tests.support import KEY, wire_of

LARGE = 4 * INLINE_LIMIT_BYTES
TTL_MS, KEEP_MS = 60_000, 120_000


def job_request(job_id, size=0, **options):
    usual = {"ttl_ms": TTL_MS, "keep_ms": KEEP_MS}
    return JobRequest(job_id, wire_of(job_id, size=size), **usual | options)


@pytest.fixture
def submit_together(harness):
    """Has one store submit jobs at the same moment; returns the outcomes, errors among them."""

    def submit(*requests, most_waiting=1000):
        async def all_of_them():
            store = JobStore(harness._async_client, most_waiting)
            calls = [store.submit(key, request) for key, request in requests]
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            await store.close()
            return outcomes

        return harness._runner.run(all_of_them())

    return submit


def test_jobs_of_one_moment_are_written_together(harness, submit_together):
    # Given more than one write takes, a large one and an urgent one among them
    requests = [job_request(f"j{number}") for number in range(300)]
    requests[1] = job_request("j1", size=LARGE)
    requests[3] = job_request("j3", is_urgent=True)

    # When
    outcomes = submit_together(*((KEY, one) for one in [*requests, job_request("j0")]))

    # Then each waits once
    ids = [one.job_id for one in requests]
    assert [job.job_id for job in outcomes] == [*ids, "j0"]
    assert sorted(harness.queued_jobs()) == sorted(set(ids) - {"j3"})
    assert harness.queued() == ["j3"]
    assert outcomes[:300] == [harness.jobs().find(job_id) for job_id in ids]
    # And no two have the same time, between which pages of the list end
    listed = harness.jobs().newest(KEY, 2**53, 400)
    assert len({time_us for time_us, _ in listed}) == len(listed) == 300


def test_jobs_of_one_moment_do_not_share_their_fate(harness, submit_together):
    # Given
    unknown, broken = VersionKey("unknown", "1.0"), VersionKey("broken", "1.0")
    harness.client.hset(VersionKeys.of(broken).config, "max_queue", "10")
    harness.client.set(VersionKeys.of(broken).job_queue, "no list", px=TTL_MS)

    # When
    outcomes = submit_together(
        (KEY, job_request("a")),
        (unknown, job_request("b")),
        (broken, job_request("c")),
        (KEY, job_request("d")),
    )

    # Then
    assert [outcomes[0].job_id, outcomes[3].job_id] == ["a", "d"]
    assert outcomes[1] is SubmitCode.NO_VERSION
    assert isinstance(outcomes[2], RedisError)
    assert harness.queued_jobs() == ["a", "d"]
    harness.client.delete(VersionKeys.of(broken).config)


def test_job_is_found_as_long_as_it_is_there(harness, submit_together):
    # When it is accepted
    submit_together((KEY, job_request("a")))
    # Then
    assert harness.client.pttl(job_version("a")) > TTL_MS + KEEP_MS
    # And when it is submitted again, for a shorter time
    submit_together((KEY, job_request("a", ttl_ms=1, keep_ms=1)))
    assert harness.client.pttl(job_version("a")) > TTL_MS + KEEP_MS
    # And of one that is refused its version is known for a while, if it may come again
    for is_keyed, name in ((True, "b"), (False, "c")):
        request = job_request(name, size=LARGE, is_keyed=is_keyed)
        assert submit_together((KEY, request), most_waiting=1) == [SubmitCode.FULL]
        assert not harness.has_body(name)
    assert 0 < harness.client.pttl(job_version("b")) <= KEY_MS
    assert not harness.client.exists(job_version("c"))


# --- looks of the same moment


def test_looks_of_one_moment_share_a_round_trip_and_its_error(harness):
    # Given two jobs, and one that has gone
    for job_id in ("a", "b", "gone"):
        harness.submit_job(job_id)
    jobs = [harness.jobs().find(job_id) for job_id in ("a", "b", "b", "gone")]
    harness.client.delete(harness.keys.job_prefix + "gone")

    async def look(client):
        store = JobStore(client, 1000)
        looks = [store.look_again(job) for job in jobs]
        answers = await asyncio.gather(*looks, return_exceptions=True)
        await store.close()
        return answers

    # When
    before = reads(harness)
    answers = harness._runner.run(look(harness._async_client))
    # Then
    assert answers == [*jobs[:3], None]
    assert reads(harness) == before + 1
    # And when Redis is away
    away = harness._runner.run(look(connect_async("redis://localhost:1")))
    assert [type(answer) for answer in away] == [RedisConnectionError] * len(jobs)


def test_closing_ends_a_look(harness):
    # Given
    harness.submit_job("a")
    job = harness.jobs().find("a")

    async def close_while_looking():
        store = JobStore(harness._async_client, 1000)
        look = asyncio.ensure_future(store.look_again(job))
        await asyncio.sleep(0)
        # When
        await store.close()
        # Then
        await asyncio.wait([look], timeout=5)
        return look.cancelled()

    assert harness._runner.run(close_while_looking())


def reads(harness):
    """Counts the questions what time it is, one for each read of jobs."""
    client = at(harness._async_client, harness.keys.tag)
    statistics = harness._runner.run(client.info("commandstats"))
    return statistics["cmdstat_time"]["calls"]

"""A Redis that is there and refuses: who asks, and who reads the log, is told so."""

import asyncio
import contextlib
import threading

import pytest
from rq import Queue
from rq.serializers import JSONSerializer

from batching import errors
from batching.batcher import Batcher
from batching.models.statuses import NodeStatus
from batching.policy import FixedPolicy
from batching.store import keys
from batching.store import outage_log as outage_module
from batching.store.background_tasks import end_tasks
from batching.store.clients import connect, connect_async
from batching.store.ingress_side.broker import Broker
from batching.store.keys import VersionKeys
from batching.store.node_side.node_queue import NodeQueue
from batching.store.registry import changes as changes_module
from batching.store.registry.catalog import Catalog
from batching.store.registry.changes import changed_models
from batching.store.registry.control_queue import ControlQueue
from batching.store.registry.registry import Registry
from batching.store.worker_side.worker_queue import WorkerQueue
from tests.chaos.tcp_redis import TcpRedis
from tests.support import (
    KEY,
    eventually,
    eventually_async,
    items_of,
    make_outage,
    make_reply,
    make_spec,
    wire_of,
)
from workers import control_jobs
from workers.handling.worker import Worker
from workers.node.heartbeat import Heartbeat


@pytest.fixture(scope="module")
def server():
    with TcpRedis() as running:
        yield running


@pytest.fixture
def url(server):
    server.client.flushall()
    return f"redis://127.0.0.1:{server.port}"


@contextlib.contextmanager
def set_to(server, name, value):
    """The server's setting has this value in the with block."""
    [before] = server.client.config_get(name).values()
    server.client.config_set(name, value)
    try:
        yield
    finally:
        server.client.config_set(name, before)


@contextlib.contextmanager
def disk_lost(server):
    """It cannot save what it is told to save, and takes no writes, nor PINGs."""
    with set_to(server, "save", "3600 1"):
        server.lose_folder()
        server.client.bgsave()
        eventually(lambda: server.client.info("persistence")["rdb_last_bgsave_status"] == "err")
        yield


def replica_lost(server):
    return set_to(server, "min-replicas-to-write", 1)


@pytest.fixture
def registry(url):
    client = connect(url)
    yield Registry(client)
    client.close()


@pytest.mark.parametrize("refusing", [disk_lost, replica_lost])
def test_request_is_told_that_redis_refuses_and_not_that_no_worker_is_there(
    server, url, registry, refusing, caplog
):
    # Given workers that cannot say that they are there
    registry.create(make_spec())
    registry.mark()

    async def run():
        broker = Broker(url, make_outage(url))
        with refusing(server), pytest.raises(errors.StoreUnavailable, match="refuses"):
            await broker.predict(make_spec(), wire_of("x"), request_id="a")
        # When that is over, then
        with pytest.raises(errors.NoWorker):
            await broker.predict(make_spec(), wire_of("x"), request_id="b")
        await broker.close()

    asyncio.run(run())
    assert "Redis refuses" in caplog.text


def test_refused_ping_is_no_silence(server, url, monkeypatch):
    monkeypatch.setattr(changes_module, "SILENCE_S", 0.2)

    def refused_pings():
        return server.client.info("commandstats").get("cmdstat_ping", {}).get("rejected_calls", 0)

    async def run():
        async with connect_async(url) as client:
            listening = changed_models(client)
            assert await anext(listening) is None
            # Given
            with disk_lost(server):
                before = refused_pings()
                change = asyncio.ensure_future(anext(listening))
                await eventually_async(lambda: change.done() or refused_pings() > before + 1)
                # When
                server.client.publish(keys.CHANGES, "digits")
                # Then
                assert await change == "digits"
            await listening.aclose()

    asyncio.run(run())


def test_look_up_without_a_place_for_its_connection_is_told_of(server, url, caplog):
    async def run():
        client = connect(url)
        catalog = Catalog(Registry(client), url, make_outage(url))
        await catalog.start()
        await eventually_async(lambda: server.client.pubsub_numsub(keys.CHANGES)[0][1] == 1)
        # Its first look at what is registered is over, and leaves no connection behind
        await eventually_async(lambda: catalog._is_listening)
        client.connection_pool.disconnect()
        # When
        refused = pytest.raises(errors.StoreUnavailable, match="refuses")
        with set_to(server, "maxclients", 1), refused:
            await catalog.resolve("digits", None)
        # Then it says when that is over, too
        with pytest.raises(errors.ModelNotFound):
            await catalog.resolve("digits", None)
        await catalog.close()
        client.close()

    asyncio.run(run())
    refused, again = caplog.messages
    assert refused.startswith(f"Redis refuses redis={url} verb=look up")
    assert refused.endswith("max number of clients reached")
    assert again.startswith("Redis answers again")


def test_receiving_that_is_refused_is_told_of(server, url, registry, caplog):
    # Given a user who may do all but wait for answers
    rules = ("on", ">secret", "~*", "&*", "+@all", "-blmpop")
    server.client.execute_command("ACL", "SETUSER", "somebody", "reset", *rules)
    registry.create(make_spec())
    names = VersionKeys.of(KEY)
    seconds, _ = server.client.time()
    worker_client = connect(url)
    worker = WorkerQueue(worker_client, KEY, "worker-a", 3000)

    async def run():
        broker = Broker(url.replace("//", "//somebody:secret@"), make_outage(url))
        server.client.zadd(names.worker_beats, {"worker-a": 1000 * seconds})
        asking = asyncio.create_task(broker.predict(make_spec(), wire_of("x"), request_id="a"))
        await eventually_async(lambda: server.client.llen(names.queue))
        # When
        worker.reply(items_of(worker.claim(1, 0.1)), [make_reply("done")])
        # Then it is answered, later than it should be
        assert (await asyncio.wait_for(asking, 10)).body == b"done"
        await broker.close()

    asyncio.run(run())
    worker_client.close()
    assert "Redis refuses this user or password" in caplog.text
    assert "verb=receive" in caplog.text
    assert "blmpop" in caplog.text


@contextlib.asynccontextmanager
async def listening_ingress(url):
    with contextlib.closing(connect(url)) as client:
        catalog = Catalog(Registry(client), url, make_outage(url))
        await catalog.start()
        try:
            yield
        finally:
            await catalog.close()


@contextlib.asynccontextmanager
async def beating_node(url):
    async with connect_async(url) as client:
        node = NodeStatus("node-a", "host", 42, "2026-01-01T00:00:00.000Z")
        outage = make_outage(url)
        heart = Heartbeat(NodeQueue(client, 3000), node, list, list, lambda: None, outage=outage)
        beating = asyncio.create_task(heart.run())
        try:
            yield
        finally:
            await end_tasks([beating])


@contextlib.asynccontextmanager
async def claiming_worker(url):
    with contextlib.closing(connect(url)) as client:
        verbs = WorkerQueue(client, KEY, "worker-a", 3000)
        worker = Worker(
            Batcher(verbs, FixedPolicy(1, 0.0)), verbs, lambda _: [], outage=make_outage(url)
        )
        serving = threading.Thread(target=worker.serve)
        serving.start()
        try:
            yield
        finally:
            worker.stop()
            await asyncio.to_thread(serving.join)


@pytest.mark.parametrize(
    "case",
    [
        (listening_ingress, "resetchannels", "allchannels"),
        (beating_node, "-evalsha", "+evalsha"),
        (claiming_worker, "-evalsha", "+evalsha"),
    ],
    ids=lambda case: case[0].__name__,
)
def test_user_who_may_do_again_what_was_forbidden_is_told_of_at_once(
    server, url, case, monkeypatch, caplog
):
    # Given that the success of other calls would say so only much later
    monkeypatch.setattr(outage_module, "AGAIN_S", 60.0)
    part, forbidden, allowed = case

    def set_rules(*rules):
        server.client.execute_command("ACL", "SETUSER", "somebody", *rules)

    set_rules("reset", "on", ">secret", "~*", "&*", "+@all", forbidden)

    async def run():
        async with part(url.replace("//", "//somebody:secret@")):
            await eventually_async(lambda: "Redis refuses this user" in caplog.text)
            # When
            set_rules(allowed)
            # Then
            await eventually_async(lambda: "Redis answers again" in caplog.text)

    asyncio.run(run())


def test_registration_whose_user_may_not_hear_of_its_job_is_told_so(server, url):
    # Given
    rules = ("on", ">secret", "~*", "&*", "+@all", "-xread")
    server.client.execute_command("ACL", "SETUSER", "somebody", "reset", *rules)
    client = connect(url.replace("//", "//somebody:secret@"))
    # When / Then
    with pytest.raises(errors.StoreUnavailable, match="refuses") as refused:
        ControlQueue(client).inspect_archive("some.mar", timeout_s=15.0)
    assert "'xread'" in str(refused.value.__cause__)
    client.close()


@contextlib.contextmanager
def no_blmove(server):
    """The user may not wait for control jobs."""
    server.client.execute_command("ACL", "SETUSER", "default", "-blmove")
    try:
        yield
    finally:
        server.client.execute_command("ACL", "SETUSER", "default", "+blmove")


@pytest.mark.parametrize("refusing", [disk_lost, no_blmove])
def test_control_worker_that_is_refused_says_so_in_one_line_and_goes_on(
    server, url, refusing, monkeypatch, caplog
):
    # Given one that looks for jobs every second
    monkeypatch.setattr(control_jobs, "WORKER_TTL_S", 16)
    monkeypatch.setattr(control_jobs, "RETRY_S", 0.05)
    client = connect(url, socket_timeout_s=15.0)
    worker = control_jobs.make_worker(client, make_outage())

    def spoil():
        # It waits for a job: what is refused before, as it signs on, ends it.
        eventually(lambda: server.client.info("clients")["blocked_clients"], 20)
        with refusing(server):
            eventually(lambda: caplog.messages)
        queue = Queue(control_jobs.QUEUE_NAME, connection=server.client, serializer=JSONSerializer)
        queue.enqueue(control_jobs.INSPECT_ARCHIVE, "none.mar")

    spoiling = threading.Thread(target=spoil)
    spoiling.start()
    # When
    has_worked = worker.work(logging_level="WARNING", max_jobs=1)
    spoiling.join()
    client.close()
    # Then
    assert has_worked
    refused, again = caplog.messages
    assert refused.startswith("Redis refuses")
    assert {disk_lost: "MISCONF", no_blmove: "'blmove'"}[refusing] in refused
    assert again.startswith("Redis answers again")

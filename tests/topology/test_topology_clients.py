"""Clients of a cluster and of sentinels: what is sent again, what never is, who is asked, TLS."""

import asyncio
import contextlib
import threading
import time

import pytest
import redis

from batching import errors
from batching.settings.redis_url import RedisUrl
from batching.settings.settings import Settings
from batching.store.broker import Broker
from batching.store.clients import at, connect, connect_async, for_rq, store_url
from batching.store.cluster import Deployment
from batching.store.ingress_queue import Patience
from batching.store.keys import CONTROL_QUEUE
from batching.store.node_queue import NodeQueue
from batching.store.registry.control_queue import INSPECT_ARCHIVE, ControlQueue
from batching.store.registry.registry import Registry, changed_models
from tests.ports import free_ports
from tests.redis_users import PASSWORD, add_user
from tests.support import (
    eventually,
    eventually_async,
    hold_connections,
    hold_connections_async,
    make_outage,
    make_spec,
    wire_of,
)
from tests.timing import assert_within
from tests.tls import TlsProxy, make_certificates, needs_openssl, server_context
from tests.topology.conftest import FERRY_SLOT
from tests.topology.servers import HOST, PLAIN, SERVICE, SLOTS, Cluster, Node, SentinelGroup
from workers.control_jobs import make_worker

LIST = "{ferry}:list"
MANY = 150  # connections at once; redis-py's own limit is 100

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(redis_cluster):
    """Three masters, empty, as they were at the start."""
    found, _ = redis_cluster
    home = found.owner(FERRY_SLOT)
    found.flush()
    yield found
    if found.owner(FERRY_SLOT) is not home:
        found.move_slot(FERRY_SLOT, home)


def move_registry(cluster: Cluster) -> None:
    home = cluster.owner(FERRY_SLOT)
    cluster.move_slot(FERRY_SLOT, next(node for node in cluster.masters if node is not home))


async def test_refused_call_is_carried_out_once_by_the_successor(cluster):
    with contextlib.closing(connect(cluster.url)) as client:
        # Given connections that have been used, one of them held
        client.rpush(LIST, "blocking")
        async with connect_async(cluster.url) as pooled:
            held = pooled.client()
            await pooled.rpush(LIST, "pooled")
            await held.rpush(LIST, "held")
            # When the slot goes to another master
            await asyncio.to_thread(move_registry, cluster)
            # Then
            assert await held.rpush(LIST, "held") == 4
            assert await pooled.rpush(LIST, "pooled") == 5
            await held.aclose()
        with client.pipeline(transaction=False) as pipe:
            pipe.rpush(LIST, "blocking")
            assert pipe.execute() == [6]
        assert client.rpush(LIST, "blocking") == 7


async def test_clients_of_hash_tags_that_are_not_needed_are_closed(cluster):
    async with connect_async(cluster.url) as client:
        # Given
        client.connection_pool.deployment._kept_s = 0.0
        idle, busy = (at(client, tag) for tag in ("{idle}", "{busy}"))
        held = await busy.connection_pool.get_connection()
        await at(client, "{idle}").exists("{idle}:x")

        # When another one is needed
        at(client, "{other}")

        # Then
        assert at(client, "{ferry}") is client
        assert at(client, "{busy}") is busy
        assert at(client, "{idle}") is not idle
        await eventually_async(
            lambda: not any(one.is_connected for one in idle.connection_pool._available_connections)
        )
        assert held.is_connected
        await busy.connection_pool.release(held)

        # And
        at(client, "{another}")
        await eventually_async(lambda: not held.is_connected)


async def test_ingress_keeps_no_client_of_unregistered_versions(cluster):
    patience = Patience(audit_s=0.01, block_s=0.01, unused_s=0.0)
    with contextlib.closing(connect(cluster.url)) as client:
        registry = Registry(client)
        broker = Broker(cluster.url, make_outage(), patience=patience)
        broker.client.connection_pool.deployment._kept_s = 0.0
        # When versions come and go
        for number in range(10):
            spec = make_spec(model_version=str(number))
            await asyncio.to_thread(registry.create, spec)
            with pytest.raises(errors.NoWorker):
                await broker.predict(spec, wire_of("x"), request_id=str(number))
            await asyncio.to_thread(registry.remove, spec.key)
            await eventually_async(lambda s=spec: broker._channels[s.key].is_idle)
        # Then
        assert len(broker.client.connection_pool.deployment._clients) <= 4
        await broker.close()


def connections(cluster: Cluster) -> int:
    return sum(len(node.client.client_list()) for node in cluster.masters)


def test_blocking_clients_of_versions_that_are_not_used_are_let_go(cluster):
    deployment = Deployment(RedisUrl.parse(cluster.url), 3.0, is_async=False, kept_s=0.0)
    with contextlib.closing(deployment.client()) as client:
        # Given one that is at work, in another thread perhaps
        registry = Registry(client)
        held = at(client, "{held}")
        before = connections(cluster)
        # When versions come and go
        for number in range(20):
            spec = make_spec(model_version=str(number))
            registry.create(spec)
            registry.queue(spec)
            registry.remove(spec.key)
        # Then
        assert len(client.connection_pool.deployment._clients) <= 2
        eventually(lambda: connections(cluster) <= before + 2)
        assert held.get("{held}:x") is None
        assert at(client, "{ferry}") is client


def test_client_of_a_cluster_has_as_many_connections_as_it_needs(cluster):
    assert hold_connections(at(connect(cluster.url), "{other}"), MANY) == MANY
    assert hold_connections(for_rq(connect(cluster.url)), MANY) == MANY
    assert asyncio.run(hold_connections_async(connect_async(cluster.url), MANY)) == MANY


def test_client_behind_sentinels_has_as_many_connections_as_it_needs():
    with SentinelGroup() as group:
        assert hold_connections(connect(group.url), MANY) == MANY
        assert asyncio.run(hold_connections_async(connect_async(group.url), MANY)) == MANY


def test_blocked_call_goes_on_at_the_successor(cluster):
    with contextlib.closing(connect(cluster.url)) as client:
        popped: list[object] = []
        # Given
        waiting = threading.Thread(target=lambda: popped.append(client.blpop([LIST], timeout=5)))
        waiting.start()
        home = cluster.owner(FERRY_SLOT)
        eventually(lambda: home.client.info("clients")["blocked_clients"] == 1, 5)
        # When
        move_registry(cluster)
        with contextlib.closing(connect(cluster.url)) as other:
            other.rpush(LIST, "x")
            waiting.join(5)
        # Then
        assert popped == [(LIST.encode(), b"x")]


def test_call_whose_connection_was_lost_is_not_sent_again(cluster):
    home = cluster.owner(FERRY_SLOT)
    with contextlib.closing(connect(cluster.url)) as client:
        failures: list[Exception] = []

        def pop() -> None:
            try:
                client.blpop([LIST], timeout=2)
            except redis.ConnectionError as error:
                failures.append(error)

        # Given a call under way
        client.ping()
        waiting = threading.Thread(target=pop)
        waiting.start()
        eventually(lambda: home.client.info("clients")["blocked_clients"] == 1, 5)
        # When its connection breaks
        home.client.client_kill_filter(_type="normal", skipme=True)
        waiting.join(5)
        # Then its caller is told, and it is not repeated
        assert len(failures) == 1
        assert home.client.info("clients")["blocked_clients"] == 0


def test_client_finds_its_server_when_most_seeds_are_gone(cluster):
    # Given two addresses without a server
    seeds = [f"{HOST}:{free_ports(1)}", f"{HOST}:{free_ports(1)}", cluster.masters[0].address]
    with contextlib.closing(connect(f"redis+cluster://{','.join(seeds)}")) as client:
        assert client.ping()


def test_client_says_at_once_that_no_server_is_there():
    started = time.monotonic()
    for url in ("redis+cluster://{}", "redis+sentinel://{}/main"):
        client = connect(url.format(f"{HOST}:{free_ports(1)}"))
        with pytest.raises(redis.ConnectionError, match="no server answers"):
            client.ping()
        client.close()
    assert_within(time.monotonic() - started, 3)


def pings(node: Node) -> int:
    stats = node.client.info("commandstats")
    return int(stats.get("cmdstat_ping", {"calls": 0})["calls"])


async def test_frozen_server_does_not_keep_a_listener_for_changes():
    with Node(PLAIN) as node:
        node.wait_started()
        node.client.config_resetstat()
        client = connect_async(f"redis://{node.address}")
        async with client, contextlib.aclosing(changed_models(client, silence_s=0.1)) as names:
            # Given: it answers when it is asked in a silence, and announces a change
            assert await anext(names) is None
            waiting = asyncio.ensure_future(anext(names))
            await eventually_async(lambda: pings(node) >= 2)
            node.client.publish("{ferry}:changes", "m")
            assert await waiting == "m"
            # When / Then
            node.freeze()
            with pytest.raises(redis.TimeoutError):
                await anext(names)
        node.thaw()


def test_frozen_server_keeps_a_caller_with_several_connections_once():
    with Node(Cluster.OPTIONS) as node:
        node.wait_started()
        node.client.execute_command("CLUSTER ADDSLOTSRANGE", 0, SLOTS - 1)
        with contextlib.closing(
            connect(f"redis+cluster://{node.address}", socket_timeout_s=4)
        ) as client:
            # Given two connections that have been used
            first, second = client.client(), client.client()
            eventually(lambda: answers(first), 10)
            assert answers(second)
            # When the server stands still, and the first one has waited for it in vain
            node.freeze()
            with pytest.raises(redis.TimeoutError):
                first.ping()
            # Then the second one does not wait for as long
            started = time.monotonic()
            with pytest.raises(redis.ConnectionError):
                second.ping()
            assert_within(time.monotonic() - started, 2)
            node.thaw()
            eventually(lambda: answers(second), 10)
            first.close()
            second.close()


def answers(client: redis.Redis) -> bool:
    with contextlib.suppress(redis.RedisError):
        return bool(client.ping())
    return False


def test_transaction_begins_anew_when_the_server_is_elsewhere_now(cluster):
    with contextlib.closing(connect(cluster.url)) as client:
        seen = []

        # Given a transaction on its way
        def change(pipe: redis.client.Pipeline) -> None:
            seen.append(pipe.get("{ferry}:watched"))
            if len(seen) == 1:
                # When another connection finds the server moved, and another client writes there
                client.connection_pool.connection_kwargs["finder"].address = (HOST, 1)
                with contextlib.closing(connect(cluster.url)) as other:
                    other.set("{ferry}:watched", "theirs")
            pipe.multi()
            pipe.set("{ferry}:watched", "ours")

        client.transaction(change, "{ferry}:watched")
        # Then what was watched is looked at again
        assert seen == [None, b"theirs"]


async def test_channel_that_was_broken_meanwhile_is_given_up(cluster):
    client = connect_async(cluster.url)
    async with client, contextlib.aclosing(changed_models(client, silence_s=0.1)) as names:
        # Given
        assert await anext(names) is None
        # When it connects anew, and may have missed something
        client.connection_pool.connection_kwargs["finder"].address = (HOST, 1)
        # Then
        with pytest.raises(redis.ConnectionError):
            await anext(names)


async def test_one_dead_master_does_not_keep_the_calls_of_others(cluster):
    called: list[str] = []

    async def hang() -> None:
        await asyncio.sleep(60)

    async def note() -> None:
        called.append("note")

    async with connect_async(cluster.url) as client:
        queue = NodeQueue(client, 3000, call_s=0.2)
        with pytest.raises(TimeoutError):
            await queue.together([hang, note])
    assert called == ["note"]


def test_sentinels_may_have_a_password_of_their_own():
    with contextlib.ExitStack() as cleanup:
        master = cleanup.enter_context(Node({**PLAIN, "requirepass": "server"}))
        watch = (
            f"sentinel monitor {SERVICE} {HOST} {master.port} 1\n"
            f"sentinel auth-pass {SERVICE} server\n"
        )
        sentinel = cleanup.enter_context(
            Node({"requirepass": "own"}, lines=watch, is_sentinel=True)
        )
        url = f"redis+sentinel://:server@{sentinel.address}/{SERVICE}?sentinel_password=own"
        client = cleanup.enter_context(contextlib.closing(connect(url)))
        eventually(lambda: answers(client), 10)
        wrong = cleanup.enter_context(contextlib.closing(connect(url.replace("=own", "=other"))))
        with pytest.raises(redis.ConnectionError):
            wrong.ping()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@needs_openssl
def test_cluster_with_tls_is_verified_everywhere(certificates, tmp_path):
    authority = certificates / "authority.pem"
    socket_path = tmp_path / "redis.sock"
    with TlsProxy(server_context(certificates, "here", wants_client=True), socket_path) as proxy:
        # Given a cluster of one that names the TLS port to its clients
        names = {"cluster-announce-ip": HOST, "cluster-announce-port": str(proxy.port)}
        options = {**Cluster.OPTIONS, **names, "unixsocket": str(socket_path)}
        with Node(options) as node:
            node.wait_started()
            node.client.execute_command("CLUSTER ADDSLOTSRANGE", 0, SLOTS - 1)
            eventually(
                lambda: node.client.execute_command("CLUSTER INFO")["cluster_state"] == "ok", 10
            )
            settings = Settings(
                redis_url=f"rediss+cluster://{HOST}:{proxy.port}",
                redis_ca_file=authority,
                redis_cert_file=certificates / "client.pem",
                redis_key_file=certificates / "client.key",
            )
            # When / Then
            with contextlib.closing(connect(store_url(settings))) as client:
                client.set("{ferry}:x", "y")
                assert client.get("{ferry}:x") == b"y"
            plain = Settings(redis_url=settings.redis_url, redis_ca_file=authority)
            for other in (plain, Settings(redis_url=settings.redis_url)):
                client = connect(store_url(other))
                with pytest.raises(redis.ConnectionError):
                    client.ping()
                client.close()


@pytest.fixture
def users(cluster):
    for node in cluster.nodes:
        for name in ("ingress", "worker"):
            add_user(node.client, name)
    yield
    for node in cluster.nodes:
        node.client.execute_command("ACL", "DELUSER", "ingress", "worker")


@pytest.mark.usefixtures("users")
def test_users_may_use_registry_and_control_jobs_in_a_cluster(cluster):
    def connect_as(user: str) -> redis.Redis:
        return connect(cluster.url.replace("://", f"://{user}:{PASSWORD}@"))

    ingress, worker = connect_as("ingress"), connect_as("worker")
    # Given
    Registry(ingress).create(make_spec())
    # When an ingress has a job and a node's control worker does it
    queue = ControlQueue(ingress)._queue
    job = queue.enqueue(INSPECT_ARCHIVE, args=("../nothing.mar", False))
    make_worker(worker).work(burst=True, logging_level="CRITICAL")
    # Then its result comes back, and all of RQ's keys are in one slot
    assert job.latest_result().return_value["error"] == "ModelNotFound"
    assert queue.count == 0
    assert queue.name == CONTROL_QUEUE
    with cluster.admin() as admin:
        names = list(admin.scan_iter(target_nodes=redis.RedisCluster.PRIMARIES))
    assert any(name.startswith(b"{ferry}:rq:") for name in names)
    assert not any(name.startswith(b"rq:") for name in names)
    assert sorted(Registry(worker).snapshot()) == ["digits"]
    for client in (for_rq(ingress), for_rq(worker), ingress, worker):
        client.close()
    assert at(ingress, "{ferry}") is ingress

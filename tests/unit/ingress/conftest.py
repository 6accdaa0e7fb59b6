import asyncio
import socket
import threading
from dataclasses import dataclass, replace

import pytest
import requests

from batching.errors import ModelNotFound
from batching.model_spec import ArchiveInfo, ModelSpec
from batching.protocol import Batch, BatchTiming, Reply
from batching.settings import Settings
from batching.status import NodeStatus, WorkerState, WorkerStatus
from batching.store.broker import Broker
from batching.store.catalog import Catalog
from batching.store.connection import connect, connect_async
from batching.store.node_verbs import NodeVerbs
from batching.store.registry import Registry
from batching.store.worker_verbs import WorkerVerbs
from batching.telemetry import Metrics
from cli.embedded_redis import EmbeddedRedis, find_server
from ingress.app import create_app
from ingress.auth import Gate
from ingress.front import Front
from ingress.listeners import Address, Listener
from ingress.openapi import Role
from ingress.predictor import Predictor
from ingress.services import Lifecycle, Services
from ingress.wsgi_bridge import WsgiBridge

DEAD_AFTER_S = 30.0


@pytest.fixture(scope="session")
def redis_server():
    with EmbeddedRedis(find_server()) as server:
        yield server


@pytest.fixture
def redis_url(redis_server):
    client = connect(redis_server.url)
    client.flushall()
    client.close()
    return redis_server.url


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def echo(request):
    """The reply that a model named `echo` gives: what it was asked."""
    parts = {part.name: part.content for part in request.parts}
    if request.headers.get("describe") == "True":
        return Reply(200, b'{"labels": 2}')
    if "x-fail" in request.headers:
        return Reply(
            503, b"Prediction failed", {}, "", "InternalServerException", "prediction_failed"
        )
    status = int(request.headers.get("x-status", 200))
    header = {"X-Seen": f"{request.headers['explain']} {request.headers.get('url_path')}"}
    if kind := request.headers.get("x-reply-type"):
        header["Content-Type"] = kind
    if "x-tell-names" in request.headers:
        header["X-Names"] = ",".join(request.headers)
    names = ",".join(f"{part.name}:{part.content_type}" for part in request.parts)
    return Reply(status, names.encode() + b"|" + b"|".join(parts.values()), header)


class SimulatedNode:
    """Beats as a node does and keeps as many workers as the registry wants; the first one echoes.

    `behaviour`: what becomes of a worker: "ready", "loading" for ever, "failed" or "out of memory".
    """

    def __init__(self, redis_url):
        self.behaviour = "ready"
        self.is_serving = True
        self._url = redis_url
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._joined = threading.Event()
        self._echoes = {}
        self._known = {}
        self._client = connect(redis_url)

    def start(self):
        self._thread.start()
        assert self._joined.wait(10)

    def close(self):
        self._stop.set()
        self._thread.join(10)
        for key, thread in self._echoes.items():
            # Or it would notice only at the end of its blocking call.
            WorkerVerbs(self._client, key, "9000", 1).ring()
            thread.join(10)
        self._client.close()

    async def _run(self):
        registry, client = (
            Registry(self._client, dead_after_s=DEAD_AFTER_S),
            connect_async(self._url),
        )
        verbs = NodeVerbs(client, int(DEAD_AFTER_S * 1000))
        while not self._stop.is_set():
            await verbs.join(NodeStatus("node-a", "host", 1, "2026-01-01T00:00:00.000Z"))
            self._joined.set()
            specs = [
                spec for entry in registry.snapshot().values() for spec in entry.versions.values()
            ]
            for spec in specs:
                await self._reconcile(registry, verbs, spec)
            await self._remove_strangers(registry, verbs, specs)
            await asyncio.sleep(0.02)
        await client.aclose()

    async def _reconcile(self, registry, verbs, spec):
        self._known[spec.key] = spec
        reported = {worker.slot: worker for worker in registry.workers(spec.key)}
        for slot in range(max(spec.min_worker, len(reported))):
            worker_id = str(9000 + slot)
            if slot >= spec.max_worker:
                await verbs.forget(spec.key, worker_id)
            elif slot not in reported:
                await verbs.report(spec.key, self._status(worker_id, slot))
            if slot < spec.max_worker and self.behaviour == "ready":
                await verbs.beat_workers(spec.key, [worker_id])
        if spec.min_worker and self.behaviour == "ready" and spec.key not in self._echoes:
            thread = threading.Thread(target=self._echo, args=(spec,))
            self._echoes[spec.key] = thread
            thread.start()

    async def _remove_strangers(self, registry, verbs, specs):
        wanted = {spec.key for spec in specs}
        for key in set(self._known) - wanted:
            for worker in registry.workers(key):
                await verbs.forget(key, worker.worker_id)

    def _status(self, worker_id, slot):
        state = {"ready": WorkerState.READY, "loading": WorkerState.LOADING}.get(
            self.behaviour, WorkerState.FAILED
        )
        status = WorkerStatus(
            worker_id, "node-a", slot, state, 42, "cpu", "2026-01-01T00:00:00.000Z"
        )
        return replace(status, is_out_of_memory=self.behaviour == "out of memory")

    def _echo(self, spec):
        client = connect(self._url, socket_timeout_s=10)
        verbs = WorkerVerbs(client, spec.key, "9000", int(DEAD_AFTER_S * 1000))
        while not self._stop.is_set():
            batch = verbs.claim(spec.batch_size, 0.0) if self.is_serving else None
            if not isinstance(batch, Batch):
                verbs.wait_bell()
                continue
            items = [(item.request_id, item.attempt) for item in batch.items]
            timing = BatchTiming(len(items), 10, 10, is_first=True)
            replies = [replace(echo(item.request), timing=timing) for item in batch.items]
            verbs.reply(items, replies)
        client.close()


class KnownArchives:
    """Stands for the control queue: archives by URL, without a node's disk."""

    def __init__(self):
        self.archives = {}

    def add(self, url, name, version="1.0", **config):
        self.archives[url] = ArchiveInfo(url, "0" * 64, name, version, "h.py", "python", {}, config)

    def inspect_archive(self, url, *, timeout_s):
        if url not in self.archives:
            raise ModelNotFound(f"Model not found at: {url}")
        return self.archives[url]


@dataclass
class Ingress:
    """A running ingress: two real listeners and the Flask application of each."""

    services: Services
    archives: KnownArchives
    inference_url: str
    management_url: str
    apps: dict

    @property
    def registry(self):
        return self.services.registry

    def predict(self, path, method="POST", **arguments):
        return requests.request(method, self.inference_url + path, timeout=20, **arguments)

    def manage(self, method, path, **arguments):
        return requests.request(method, self.management_url + path, timeout=20, **arguments)

    def register(self, name="echo", version="1.0", **fields):
        defaults = {"min_worker": 1, "max_worker": 1, "startup_timeout_s": 5}
        spec = ModelSpec(name, version, f"{name}.mar", "h.py", **{**defaults, **fields})
        self.registry.create(spec)
        with self.registry.changes() as wait:
            while len(self.registry.workers(spec.key)) < spec.min_worker:
                wait(5.0)
        return spec


@pytest.fixture
def node(redis_url):
    simulated = SimulatedNode(redis_url)
    simulated.start()
    yield simulated
    simulated.close()


@pytest.fixture
def keys():
    """No tokens are asked for; tests of tokens bring a key file."""
    return


@pytest.fixture
def ingress(redis_url, keys):
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def call(coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(20)

    settings = replace(
        Settings(),
        redis_url=redis_url,
        max_request_size_bytes=100_000,
        unregister_model_timeout_s=3,
    )
    client = connect(redis_url)
    registry = Registry(client, dead_after_s=DEAD_AFTER_S)
    probe_client = connect(redis_url, socket_timeout_s=0.5)
    probe_registry = Registry(probe_client, dead_after_s=DEAD_AFTER_S)
    metrics, archives = Metrics(), KnownArchives()
    catalog = Catalog(registry, redis_url)
    broker = call(_started(catalog, redis_url))
    services = Services(
        settings=settings,
        registry=registry,
        probe_registry=probe_registry,
        control=archives,
        predictor=Predictor(catalog, broker, metrics),
        metrics=metrics,
        lifecycle=Lifecycle(),
        loop=loop,
        keys=keys,
    )
    apps = {role: create_app(services, [role]) for role in Role}
    listeners = call(_listen(services, apps))
    yield Ingress(services, archives, *(str(item.address) for item in listeners), apps)
    call(_close(listeners, broker, catalog))
    client.close()
    probe_client.close()
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


async def _started(catalog, redis_url):
    await catalog.start()
    broker = Broker(redis_url, dead_after_s=DEAD_AFTER_S)
    await broker.start()
    return broker


async def _listen(services, apps):
    limit = services.settings.max_request_size_bytes
    bridges = {
        role: WsgiBridge(
            app, max_request_size_bytes=limit, max_threads=8, gate=Gate(services.keys, [role])
        )
        for role, app in apps.items()
    }
    front = Front(
        services.predictor,
        bridges[Role.INFERENCE],
        max_request_size_bytes=limit,
        gate=Gate(services.keys, [Role.INFERENCE]),
    )
    listeners = [
        Listener(Address("127.0.0.1", free_port()), app)
        for app in (front, bridges[Role.MANAGEMENT])
    ]
    for listener in listeners:
        await listener.start()
    return listeners


async def _close(listeners, broker, catalog):
    for listener in listeners:
        listener.stop()
    await broker.close()
    for listener in listeners:
        await listener.wait_closed()
    await catalog.close()

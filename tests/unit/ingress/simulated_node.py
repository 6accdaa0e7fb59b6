"""A node without processes: workers are reported, and one of them echoes."""

import asyncio
import json
import threading
from contextlib import suppress

from msgspec import structs
from redis.exceptions import TimeoutError as RedisTimeoutError

from batching.models.statuses import NodeStatus, WorkerState, WorkerStatus
from batching.protocol import WIRE_VERSION, Batch, BatchTiming, Reply, ReplyChunk
from batching.store.clients import BLOCK_S, connect, connect_async
from batching.store.node_queue import NodeQueue
from batching.store.registry.registry import Registry
from batching.store.worker_queue import CHUNK_LIMIT_BYTES, ReplyCode, WorkerQueue
from tests.support import join

DEAD_AFTER_S = 30.0
ERROR = "ValueError: no weights"  # of a worker that has failed


def echo(request):
    """Returns the reply of the model `echo`: what it was asked."""
    parts = {part.name: part.content for part in request.parts}
    if request.headers.get("describe") == "True":
        return Reply(200, json.dumps({"labels": 2, "parts": list(parts)}).encode())
    if "x-fail" in request.headers:
        return Reply(
            503, b"Prediction failed", {}, "", "InternalServerException", "prediction_failed"
        )
    status = int(request.headers.get("x-status", 200))
    header = {"X-Seen": f"{request.headers.get('explain')} {request.headers.get('url_path')}"}
    if kind := request.headers.get("x-reply-type"):
        header["Content-Type"] = kind
    if "x-tell-names" in request.headers:
        header["X-Names"] = ",".join(request.headers)
    names = ",".join(f"{part.name}:{part.content_type}" for part in request.parts)
    return Reply(status, names.encode() + b"|" + b"|".join(parts.values()), header)


class SimulatedNode:
    """Beats as a node does and keeps as many workers as the registry wants; the first one echoes.

    `behaviour`: the state of each worker: "ready", "unpacking" or "loading" for ever, "failed" or
    "out of memory".
    """

    def __init__(self, redis_url):
        self.behaviour = "ready"
        self.interface = {}  # of the models of workers to come
        self.codes = []  # of the pieces of a flood
        self._is_changing_all = False
        self._is_serving = True
        self._turn = threading.Lock()
        self._url = redis_url
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._joined = threading.Event()
        self._echoes = {}
        self._known = set()
        self._client = connect(redis_url)

    def start(self):
        self._thread.start()
        assert self._joined.wait(10)

    def recover(self):
        """Makes every worker ready, old ones too."""
        self.behaviour, self._is_changing_all = "ready", True

    def pause(self):
        """Stops the workers from claiming; returns after a claim that was under way."""
        with self._turn:
            self._is_serving = False

    def resume(self):
        self._is_serving = True

    def close(self):
        self._stop.set()
        self._thread.join(10)
        for key, thread in self._echoes.items():
            # Otherwise it would notice only at the end of its blocking call.
            WorkerQueue(self._client, key, "9000", 1).wake_one()
            thread.join(10)
        self._client.close()

    async def _run(self):
        registry = Registry(self._client, dead_after_s=DEAD_AFTER_S)
        client = connect_async(self._url)
        queue = NodeQueue(client, int(DEAD_AFTER_S * 1000))
        registry.mark()
        while not self._stop.is_set():
            # A machine that is too busy to answer in time ends no node either.
            with suppress(RedisTimeoutError):
                await self._beat_and_reconcile(registry, queue)
            await asyncio.sleep(0.02)
        await client.aclose()

    async def _beat_and_reconcile(self, registry, queue):
        status = NodeStatus(
            "node-a", "host", 1, "2026-01-01T00:00:00.000Z", wire_version=WIRE_VERSION
        )
        await join(queue, status)
        self._joined.set()
        specs = registry.specs()
        for spec in specs:
            await self._reconcile(registry, queue, spec)
        for key in self._known - {spec.key for spec in specs}:
            for worker in registry.workers(key):
                await queue.forget(key, worker.worker_id)

    async def _reconcile(self, registry, queue, spec):
        self._known.add(spec.key)
        reported = {worker.slot: worker for worker in registry.workers(spec.key)}
        for slot in range(max(spec.min_worker, len(reported))):
            worker_id = str(9000 + slot)
            # First, as a test sends its request when it sees the worker reported.
            if slot < spec.max_worker and self.behaviour == "ready":
                await queue.beat({spec.key: [worker_id]})
            if slot >= spec.max_worker:
                await queue.forget(spec.key, worker_id)
            elif slot not in reported or self._is_changing_all:
                await queue.report(spec.key, self._status(worker_id, slot))
        if spec.min_worker and self.behaviour == "ready" and spec.key not in self._echoes:
            thread = threading.Thread(target=self._echo, args=(spec,))
            self._echoes[spec.key] = thread
            thread.start()

    def _status(self, worker_id, slot):
        state = {
            "ready": WorkerState.READY,
            "loading": WorkerState.LOADING,
            "unpacking": WorkerState.STARTING,
        }.get(self.behaviour, WorkerState.FAILED)
        pid = 0 if self.behaviour == "unpacking" else 42
        return WorkerStatus(
            worker_id,
            "node-a",
            slot,
            state,
            pid,
            "cpu",
            "2026-01-01T00:00:00.000Z",
            error=ERROR if state is WorkerState.FAILED else "",
            is_out_of_memory=self.behaviour == "out of memory",
            interface=self.interface,
        )

    def _send(self, queue, item):
        """Sends the pieces that the request asks for before its reply; returns their number."""
        headers = item.request.headers
        if "x-flood" in headers:
            return self._flood(queue, item.owned)
        pieces = [text.encode() for text in headers.get("x-pieces", "").split(",") if text]
        status = int(headers.get("x-status", 200))
        for index, piece in enumerate(pieces):
            chunk = ReplyChunk(index, piece, status, {"X-Piece": "yes"})
            queue.send([item.owned], [chunk], 5.0)
        return len(pieces)

    def _flood(self, queue, owned):
        """Sends pieces as long as they are taken, and notes what becomes of each."""
        index, code = 0, None
        while code is not ReplyCode.UNWANTED and not self._stop.is_set():
            [code] = queue.send([owned], [ReplyChunk(index, b"x" * CHUNK_LIMIT_BYTES)], 5.0)
            self.codes.append(code)
            if code is ReplyCode.STORED:
                index += 1
            else:
                self._stop.wait(0.005)
        return index

    def _echo(self, spec):
        client = connect(self._url, socket_timeout_s=10)
        queue = WorkerQueue(client, spec.key, "9000", int(DEAD_AFTER_S * 1000))
        while not self._stop.is_set():
            with self._turn:
                batch = queue.claim(spec.batch_size, 0.0) if self._is_serving else None
            if not isinstance(batch, Batch):
                queue.wait_for_work(BLOCK_S)
                continue
            timing = BatchTiming(len(batch), 10, 10, is_first=True)
            replies = [
                structs.replace(echo(item.request), timing=timing, chunks=self._send(queue, item))
                for item in batch.items
            ]
            queue.reply([item.owned for item in batch.items], replies)
        client.close()

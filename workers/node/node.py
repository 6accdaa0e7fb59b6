"""Runs a node, one per container or host: turns what the registry wants into worker processes.

Shutdown order: workers stop claiming, finish their batch and reply; what they left is released;
then the heartbeat stops and the node is forgotten. If the beats stopped earlier, others would take
a living worker's requests. An archive that is still being downloaded or unpacked is abandoned:
calls that may block for long run in daemon threads.
"""

import asyncio
import contextlib
import itertools
import logging
import os
import signal
import socket
import sys
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from batching.errors import StoreUnavailable
from batching.metrics import read_metrics_config
from batching.models.entry import ModelEntry, specs_of
from batching.models.spec import ModelSpec, VersionKey
from batching.models.statuses import NodeStatus, WorkerState, utc_now
from batching.process.child_process import exited, has_exited, kill_group, spawn
from batching.process.daemon_thread import DaemonThread, in_daemon_thread
from batching.process.outputs import reader
from batching.process.part import StopEvents, notify_ready
from batching.process.retries import Reminder
from batching.protocol import WIRE_VERSION
from batching.settings.settings import Settings
from batching.store.arena import mark_of, remove_abandoned
from batching.store.background_tasks import end_tasks, keep_going
from batching.store.clients import connect, connect_async, store_url
from batching.store.node_queue import NodeQueue
from batching.store.redis_errors import AWAY, OutageLog
from batching.store.registry.registry import Registry, changed_models
from batching.store.server_check import check_server
from workers.archives.model_files import ModelFiles
from workers.archives.staging import work_dir_of
from workers.machine import list_gpus
from workers.node.heartbeat import BEAT_S, Heartbeat
from workers.node.host_meter import report_host
from workers.node.webhook_sender import send_webhooks
from workers.slots.slot import SlotContext, SlotRecord, Slots

log = logging.getLogger(__name__)

RECONCILE_S = 5.0  # changes are announced; this is for an announcement that was lost
LOOK_AGAIN_S = 1.0  # while others' workers are at their last batch, or dead
RETRY_S = 0.5
FAREWELL_S = 0.4  # to be forgotten
# Nodes may share a work folder, and each has to mark what it needs in time.
LOOKS_WHILE_KEPT = 24
TOUCH_S = 1.0
CONTROL_JOBS = "workers.control_jobs"
CONTROL_LOOK_S = 5.0  # jobs are announced; this is for an announcement that was lost
# A job that waits for longer than a process takes to begin has found the others busy: one may be at
# a download for many minutes.
CONTROL_PATIENCE_S = 2.0
MOST_CONTROL_PROCESSES = 2
CONTROL_STOP_S = 2.0


class Node:
    def __init__(self, settings: Settings, gpus: Sequence[int], *, beat_s: float = BEAT_S) -> None:
        self._settings = settings
        self._node = NodeStatus(
            node_id=uuid.uuid4().hex[:12],
            hostname=socket.gethostname(),
            pid=os.getpid(),
            started_at=utc_now(),
            wire_version=WIRE_VERSION,
        )
        self._outage = OutageLog(log, settings.redis_url)
        self._blocking_client = connect(store_url(settings))
        self._registry = Registry(self._blocking_client, dead_after_s=settings.dead_after_s)
        self._keeper = RegistryMemory(self._registry)
        self._client = connect_async(store_url(settings))
        self._queue = NodeQueue(self._client, int(settings.dead_after_s * 1000))
        # Started once, so that workers can be scaled down where no further thread can start.
        self._thread = DaemonThread()
        self._wanted: Mapping[str, ModelEntry] = {}
        self._has_reconciled = asyncio.Event()
        self._repairs_due = self._repairs_done = 0
        self._files = ModelFiles(settings)
        self._unregistered_versions = UnregisteredVersions(self._queue)
        self._signals = StopEvents()
        self._control = ControlProcesses(settings, self._queue.count_control_jobs, self._outage)
        self._must_look = asyncio.Event()
        context = SlotContext(
            node_id=self._node.node_id,
            memory_mark=mark_of(settings.shared_memory_dir, settings.shared_memory_bytes),
            settings=settings,
            queue=self._queue,
            sequence=itertools.count(1),
            prepare=self._files.prepare,
            outage=self._outage,
        )
        # When a version's last worker has ended, the version may be closed.
        self._slots = Slots(context, gpus, on_ended=self._must_look.set)
        self._heartbeat = Heartbeat(
            self._queue,
            self._node,
            self._records,
            self._versions,
            self._on_joined,
            dead_after_s=settings.dead_after_s,
            beat_s=beat_s,
            outage=self._outage,
        )

    async def run(self) -> None:
        self._signals.listen()
        self._thread.start()
        reader()  # while the system still starts threads
        settings = self._settings
        starters = [
            self._keep(self._reconcile_forever, "reconciler"),
            self._keep(self._control.run, "control jobs"),
        ]
        roles = [
            *starters,
            # Without beats others take its requests: if this role fails, the node ends.
            asyncio.create_task(self._heartbeat.run(), name="heartbeat"),
            self._keep(self._heartbeat.reap_forever, "dead workers"),
            self._keep(self._follow_changes, "changes"),
            self._keep(self._sweep_forever, "sweeper"),
        ]
        if settings.webhook_secrets:
            roles.append(self._keep(lambda: send_webhooks(settings), "webhooks"))
        if not settings.disable_system_metrics:
            what = self._queue, self._node, self._slots.all, settings, self._outage
            roles.append(self._keep(lambda: report_host(*what), "host meter"))
        if (folder := settings.probe_dir) is not None:
            roles.append(self._keep(lambda: keep_probe_files(folder, self._is_ready), "probes"))
        log.info("node=%s pid=%d started", self._node.node_id, self._node.pid)
        exiting = asyncio.create_task(self._signals.stop.wait())
        await asyncio.wait({exiting, *roles}, return_when=asyncio.FIRST_COMPLETED)
        for task in starters:  # of processes
            task.cancel()
        await self._slots.drain(self._signals.hurry)
        await end_tasks([*roles, exiting])
        with contextlib.suppress(*AWAY, StoreUnavailable, TimeoutError):
            async with asyncio.timeout(FAREWELL_S):
                await self._queue.leave(self._node.node_id)
                # For versions that were unregistered just before the stop.
                await self._follow_registry()
                await self._unregistered_versions.look()
        await self._client.aclose()
        self._thread.end()
        self._blocking_client.close()
        remove_abandoned(settings.shared_memory_dir)
        for role in roles:
            if not role.cancelled() and (error := role.exception()):
                raise error
        log.info("node=%s stopped", self._node.node_id)

    def _keep(
        self, body: Callable[[], Coroutine[None, None, None]], name: str
    ) -> asyncio.Task[None]:
        """Starts a role, again after each error: none may cost the models their loaded workers."""
        return asyncio.create_task(keep_going(body, f"role={name!r}"), name=name)

    async def _sweep_forever(self) -> None:
        """Removes files of models that are not registered any more, and arenas that were left."""
        await self._has_reconciled.wait()
        while True:
            remove_abandoned(self._settings.shared_memory_dir)
            try:
                await in_daemon_thread(partial(self._files.sweep, self._specs()))
            except OSError as error:
                log.warning("disk not cleared: %s", error)
            await asyncio.sleep(self._settings.unused_files_kept_s / LOOKS_WHILE_KEPT)

    def _on_joined(self) -> None:
        """Reports ready and repairs the registry when Redis knows this node, or knows it again."""
        notify_ready()
        self._repairs_due += 1
        self._must_look.set()

    def _is_ready(self) -> bool:
        if self._signals.stop.is_set() or not self._has_reconciled.is_set():
            return False
        records = self._records()
        return all(slot.state is WorkerState.READY or not slot.is_expected for slot in records)

    def _records(self) -> list[SlotRecord]:
        return [slot.record for slot in self._slots.all()]

    def _specs(self) -> list[ModelSpec]:
        return specs_of(self._wanted.values())

    def _versions(self) -> list[VersionKey]:
        wanted = [spec.key for spec in self._specs()]
        return list(dict.fromkeys([*wanted, *self._unregistered_versions.ended]))

    # --- reconcile

    async def _reconcile_forever(self) -> None:
        while True:
            self._must_look.clear()
            try:
                await self._reconcile()
            except (*AWAY, StoreUnavailable) as error:
                self._outage.note("reconcile", error)
                await asyncio.sleep(RETRY_S)
                continue
            self._outage.over("reconcile")
            wait_s = LOOK_AGAIN_S if self._unregistered_versions.ended else RECONCILE_S
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._must_look.wait(), timeout=wait_s)

    async def _follow_changes(self) -> None:
        while True:
            try:
                async with contextlib.aclosing(changed_models(self._client)) as changes:
                    async for _ in changes:
                        self._outage.over("listen")
                        self._must_look.set()
                        self._control.must_look.set()
            except AWAY as error:
                # An outage between two beats, which have noticed nothing.
                self._heartbeat.doubt()
                self._outage.note("listen", error)
                await asyncio.sleep(RETRY_S)

    async def _reconcile(self) -> None:
        before, specs = await self._follow_registry()
        kept = {spec.model_url for spec in specs.values()}
        if gone := {spec.model_url for spec in before} - kept:
            await self._thread.run(partial(self._files.forget, gone, kept=kept))
        self._slots.follow(specs)
        self._has_reconciled.set()
        if (due := self._repairs_due) > self._repairs_done:
            # In a cluster one server may forget its versions while the registry's server does not.
            await self._thread.run(partial(self._registry.repair, self._wanted.values()))
            self._repairs_done = due
        # After the slots: a version that is wanted again has a worker by then, and its requests
        # wait for that.
        await self._unregistered_versions.look()

    async def _follow_registry(self) -> tuple[list[ModelSpec], dict[VersionKey, ModelSpec]]:
        """Returns what was registered when this node last looked, and what is registered now."""
        loop = asyncio.get_running_loop()

        def beat() -> None:
            # A node that leaves is not to be known any more.
            if not self._signals.stop.is_set():
                asyncio.run_coroutine_threadsafe(self._heartbeat.beat(), loop).result()

        before = self._specs()
        self._wanted = await self._thread.run(partial(self._keeper.look, beat))
        specs = {spec.key: spec for spec in self._specs()}
        self._unregistered_versions.follow(before, specs)
        return before, specs


@dataclass
class RegistryMemory:
    """Knows what is registered, and registers it again where Redis has lost it."""

    registry: Registry
    _epoch: str = field(default="", init=False)
    _known: Mapping[str, ModelEntry] = field(default_factory=dict, init=False)

    def look(self, on_emptied: Callable[[], object] = lambda: None) -> Mapping[str, ModelEntry]:
        """Returns what is registered; first registers again what an emptied Redis forgot.

        Blocks. All nodes do this at once, which is harmless. A new epoch shows, too, that Redis was
        emptied: a node that knows no model may have come back first and set it. `on_emptied` beats
        before models are registered again: a registered version without workers refuses requests,
        while requests to a version that is not registered yet wait for it.
        """
        while True:
            # A version whose record cannot be read is not unregistered: its workers serve on.
            known = self.registry.snapshot(self._known)
            # Read after the models: with a new epoch, the old models would pass for current ones.
            epoch = self.registry.epoch()
            if epoch and epoch == self._epoch:
                self._known = known
                return known
            on_emptied()
            self.registry.restore(self._known.values())
            epoch = self.registry.mark()
            # It may have been emptied again before it was marked.
            if self._known.keys() <= self.registry.snapshot().keys():
                self._epoch = epoch


@dataclass
class UnregisteredVersions:
    """Remembers versions that were unregistered, or scaled to nothing, until no worker is left.

    Every node does this, as a worker's own node may die before its last batch is over.
    """

    queue: NodeQueue
    # Version that may still have workers or requests, and should not -> whether it is registered.
    ended: dict[VersionKey, bool] = field(default_factory=dict, init=False)
    _is_new: bool = field(default=True, init=False)

    def follow(self, before: Iterable[ModelSpec], specs: Mapping[VersionKey, ModelSpec]) -> None:
        """Adds the versions that should have no workers any more; drops versions wanted again."""
        # Registered versions that had no workers before are done already. A new node cannot know
        # that, as the only node with workers may have died: it looks at all versions once.
        known = {spec.key for spec in before if spec.min_worker > 0 or spec.key not in specs}
        if self._is_new:
            self._is_new, known = False, set(specs)
        self.ended = {
            key: key in specs
            for key in known.union(self.ended)
            if key not in specs or specs[key].min_worker == 0
        }

    async def look(self) -> None:
        """Refuses the requests that wait for a version whose last worker has gone for good."""
        await self.queue.together([partial(self._close, *ended) for ended in self.ended.items()])

    async def _close(self, key: VersionKey, is_registered: bool) -> None:
        # Asked first: requests that a worker gives back after this are refused at the next look.
        is_staffed = await self.queue.is_staffed(key)
        reason = "no_worker" if is_registered else "unregistered"
        if count := await self.queue.refuse_waiting(key, reason):
            log.warning("refused model=%s version=%s requests=%d", *key, count)
        if is_staffed:
            return
        if not is_registered:
            await self.queue.bury(key)
        self.ended.pop(key, None)


@dataclass
class ControlProcesses:
    """Starts processes for control jobs when one waits, MOST_CONTROL_PROCESSES at a time."""

    settings: Settings
    count_waiting: Callable[[], Awaitable[int]]
    outage: OutageLog
    must_look: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _reminder: Reminder = field(default_factory=Reminder, init=False)
    _running: set[asyncio.Task[None]] = field(default_factory=set, init=False)

    async def run(self) -> None:
        """Starts processes until cancelled; then ends them."""
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.must_look.wait(), CONTROL_LOOK_S)
                self.must_look.clear()
                try:
                    while await self._must_start():
                        task = asyncio.create_task(self._run_one(), name="control jobs")
                        self._running.add(task)
                        task.add_done_callback(self._running.discard)
                        await asyncio.sleep(CONTROL_PATIENCE_S)
                    self.outage.over("control jobs")
                except AWAY as error:
                    self.outage.note("control jobs", error)
        finally:
            await end_tasks(self._running)

    async def _must_start(self) -> bool:
        if not await self.count_waiting() or len(self._running) >= MOST_CONTROL_PROCESSES:
            return False
        if self._running:
            await asyncio.sleep(CONTROL_PATIENCE_S)
        return await self.count_waiting() > 0

    async def _run_one(self) -> None:
        environment = {**os.environ, **self.settings.to_environment()}
        try:
            process = spawn([sys.executable, "-P", "-m", CONTROL_JOBS], environment)
        except OSError as error:
            # No process, descriptor or memory is left for now; the models are served all the same.
            if self._reminder.is_due(str(error)):
                log.error("cannot run %s: %s", CONTROL_JOBS, error.strerror)
            return
        try:
            await exited(process)
        finally:
            try:
                if not has_exited(process):
                    process.send_signal(signal.SIGTERM)
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(exited(process), CONTROL_STOP_S)
            finally:
                kill_group(process)
        if process.returncode:
            log.warning("%s ended, exit=%s", CONTROL_JOBS, process.returncode)


async def keep_probe_files(
    folder: Path, is_ready: Callable[[], bool], *, touch_s: float = TOUCH_S
) -> None:
    """Writes files for probes, as a node listens on no port; removes an earlier node's first.

    `alive` is touched while the node's loop turns, whether or not Redis answers: restarting nodes
    does not bring Redis back, and costs their loaded models. `ready` exists while every worker that
    is expected serves, so that a rolling update waits for the models of the new node; a worker that
    keeps failing is not expected, and does not stop the update.
    """
    reminder = Reminder()

    def write(**files: bool) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, is_there in files.items():
                if is_there:
                    (folder / name).touch()
                else:
                    (folder / name).unlink(missing_ok=True)
        except OSError as error:  # work goes on; probes see an old file
            if reminder.is_due(reason := error.strerror or str(error)):
                log.warning("probe_dir=%s: %s", folder, reason)

    write(alive=False, ready=False)
    try:
        while True:
            write(alive=True, ready=is_ready())
            await asyncio.sleep(touch_s)
    finally:
        write(alive=False, ready=False)


def run(settings: Settings) -> int:
    """Runs a node until it is told to stop; returns the exit status.

    Raises:
        SettingsError: the node cannot start with these settings.
    """
    read_metrics_config(settings.metrics_config)  # with a bad file no worker would load
    check_server(settings)
    settings = replace(settings, work_dir=work_dir_of(settings))
    node = Node(settings, list_gpus(settings.number_of_gpu))
    asyncio.run(node.run())
    return 0

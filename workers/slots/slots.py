"""Opens and stops the worker slots of one node as the registry wants; drains them in the end."""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from batching.models.spec import ModelSpec, VersionKey
from batching.process.cores import usable_cores
from workers.machine import Device
from workers.slots.slot import Slot, SlotContext

log = logging.getLogger(__name__)

KILL_MARGIN_S = 1.2
FAREWELL_S = 0.4  # to give back what was held

SlotKey = tuple[VersionKey, int]


class Slots:
    def __init__(
        self, context: SlotContext, gpus: Sequence[int], on_ended: Callable[[], None]
    ) -> None:
        self._context = context
        self._gpus = gpus
        self._gpu_turn = itertools.count()
        self._on_ended = on_ended
        self._slots: dict[SlotKey, Slot] = {}
        self._tasks: dict[SlotKey, asyncio.Task[None]] = {}
        self._is_draining = False

    def all(self) -> list[Slot]:
        return list(self._slots.values())

    def follow(self, specs: Mapping[VersionKey, ModelSpec]) -> None:
        """Opens and stops slots as these versions want; does nothing in a drain."""
        if self._is_draining:
            return
        for (key, number), slot in self._slots.items():
            spec = specs.get(key)
            if not (spec and number < spec.min_worker and spec.is_same_registration(slot.spec)):
                slot.stop()
        workers = sum(spec.min_worker for spec in specs.values())
        threads = max(1, usable_cores() // max(1, workers))
        for spec in specs.values():
            for number in range(spec.min_worker):
                if (spec.key, number) not in self._slots:
                    self._open(spec, number, threads)

    async def drain(self, must_exit_now: asyncio.Event) -> None:
        """Ends all workers within the drain time and releases the requests that they leave."""
        self._is_draining = True
        for slot in self.all():
            slot.stop()
        if not self._tasks:
            return
        log.info("node=%s draining workers=%d", self._context.node_id, len(self._tasks))
        ended = asyncio.gather(*self._tasks.values(), return_exceptions=True)
        margin_s = max(0.0, self._context.settings.drain_timeout_s - KILL_MARGIN_S)
        forced = asyncio.ensure_future(must_exit_now.wait())
        outcomes: set[asyncio.Future[Any]] = {ended, forced}
        await asyncio.wait(outcomes, timeout=margin_s, return_when=asyncio.FIRST_COMPLETED)
        forced.cancel()
        for slot in self.all():
            slot.kill()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ended, timeout=FAREWELL_S)

    def _open(self, spec: ModelSpec, number: int, threads: int) -> None:
        slot = Slot(self._context, spec, number, self._pick_device(spec, number), threads)
        slot_key = (spec.key, number)
        self._slots[slot_key] = slot
        task = asyncio.create_task(slot.run(), name=f"slot {spec.key} {number}")
        self._tasks[slot_key] = task
        task.add_done_callback(lambda done: self._note_end(slot_key, done))

    def _note_end(self, slot_key: SlotKey, task: "asyncio.Task[None]") -> None:
        del self._slots[slot_key], self._tasks[slot_key]
        if not task.cancelled() and (error := task.exception()):
            log.error("slot %s ended: %r", slot_key, error, exc_info=error)
        else:
            # After an error, which may come again at once, the regular look is soon enough.
            self._on_ended()

    def _pick_device(self, spec: ModelSpec, number: int) -> Device:
        """Picks GPUs in turn over all models, or over the version's own list.

        Source: TorchServe 0.12 ModelManager / WorkLoadManager "assignedGpuIds".
        """
        gpus = [gpu for gpu in spec.device_ids if gpu in self._gpus] or self._gpus
        if spec.device_type == "cpu" or not gpus:
            return Device("cpu", None)
        turn = number if spec.device_ids else next(self._gpu_turn)
        return Device("cuda", gpus[turn % len(gpus)])

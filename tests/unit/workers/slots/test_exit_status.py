"""Why a worker died, in the node's words."""

import asyncio
import itertools
import signal

import fakeredis
import fakeredis.aioredis
import pytest

from batching.models.statuses import WorkerState, WorkerStatus
from batching.settings.settings import Settings
from batching.store.node_side.node_queue import NodeQueue
from tests.support import make_outage, make_spec
from workers.machine.devices import Device
from workers.slots.exit_status import ExitStatus
from workers.slots.slot import Slot, SlotContext


@pytest.mark.parametrize(
    ("exit_status", "text"),
    [
        (ExitStatus(-signal.SIGALRM), '-14 cause="response_timeout passed, or it would not end"'),
        (ExitStatus(-signal.SIGKILL), '-9 cause="killed, perhaps for memory"'),
        (ExitStatus(-signal.SIGKILL, "did not load"), '-9 cause="did not load"'),
        (ExitStatus(-signal.SIGSEGV), '-11 cause="crashed in native code: SIGSEGV"'),
        (ExitStatus(-signal.SIGUSR1), "-10"),
        (ExitStatus(3), '3 cause="it could not load the model"'),
        (ExitStatus(0), "0"),
    ],
)
def test_exit_status_is_told_in_words_where_they_are_known(exit_status, text):
    assert str(exit_status) == text


@pytest.mark.parametrize(
    ("ended", "ready_at", "words"),
    [
        (
            ExitStatus(-signal.SIGALRM),
            None,
            'exit=-14 cause="response_timeout passed, or it would not end"',
        ),
        (ExitStatus(3), None, 'exit=3 cause="it could not load the model"'),
        (ExitStatus(3), 1.0, 'exit=3 cause="its handler ended it"'),
    ],
)
def test_node_says_in_words_why_a_worker_died(caplog, ended, ready_at, words):
    # Given
    server = fakeredis.FakeServer()
    spec = make_spec()

    async def run():
        verbs = NodeQueue(fakeredis.aioredis.FakeRedis(server=server), 3000)
        context = SlotContext("node-a", Settings(), verbs, itertools.count(), None, make_outage())
        slot = Slot(context, spec, 0, Device("cpu"), 1)
        slot.record.status = WorkerStatus("a-1", "node-a", 0, WorkerState.READY, 43, "cpu", "now")
        slot._ready_at = ready_at
        # When
        await slot._judge(ended, was_at_work=False)

    asyncio.run(run())
    # Then
    [message] = caplog.messages
    assert f"{words} after_ready_s=" in message

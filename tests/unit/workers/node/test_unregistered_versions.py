"""Who is told that nobody will come: clients of versions that were scaled to nothing."""

import asyncio

from batching.store.node_side.node_queue import NodeQueue
from tests.support import DEAD_AFTER_MS, KEY, make_spec
from workers.node.unregistered_versions import UnregisteredVersions


def look_once(harness, before, after):
    """A node's unregistered_versions has followed the registry from one state to another, and
    looked."""

    async def run():
        client = harness.backend.connect_async()
        unregistered_versions = UnregisteredVersions(NodeQueue(client, DEAD_AFTER_MS))
        unregistered_versions.follow([], before)
        unregistered_versions.follow(before.values(), after)
        await unregistered_versions.look()
        await client.aclose()
        return unregistered_versions.ended

    return asyncio.run(run())


def test_new_node_refuses_who_waits_for_what_was_scaled_to_nothing_before_it_came(harness):
    # Given a request whose worker has gone with the only node
    wanted = {KEY: make_spec(min_worker=0)}
    harness.submit("a")
    harness.client.delete(harness.keys.worker_beats)
    # When / Then
    assert look_once(harness, wanted, wanted) == []
    assert harness.reply_value("a") == b"a!no_worker"


def test_undertaker_looks_on_while_a_worker_may_give_something_back(harness):
    # Given one that is silent, and not yet known to be dead
    wanted = {KEY: make_spec(min_worker=0)}
    harness.submit("a")
    harness.silence_worker()
    # When / Then
    assert look_once(harness, wanted, wanted) == [KEY]


def test_undertaker_leaves_alone_who_is_wanted(harness):
    # Given
    wanted = {KEY: make_spec(min_worker=1)}
    harness.submit("a")
    harness.client.delete(harness.keys.worker_beats)
    # When / Then
    assert look_once(harness, wanted, wanted) == []
    assert harness.queued() == ["a"]

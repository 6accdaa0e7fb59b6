"""Requests for versions that have no workers any more are refused."""

import asyncio

from batching.store.node_queue import NodeQueue
from tests.support import DEAD_AFTER_MS, KEY, make_spec
from workers.node.node import UnregisteredVersions


def look_once(harness, before, after):
    """Follows the registry from one state to another and looks once; returns what is left."""

    async def run():
        client = harness.backend.connect_async()
        versions = UnregisteredVersions(NodeQueue(client, DEAD_AFTER_MS))
        versions.follow([], before)
        versions.follow(before.values(), after)
        await versions.look()
        await client.aclose()
        return [*versions.ended]

    return asyncio.run(run())


def test_new_node_refuses_requests_for_versions_that_were_scaled_to_nothing_before(harness):
    # Given a request whose worker has gone with the only node
    wanted = {KEY: make_spec(min_worker=0)}
    harness.submit("a")
    harness.client.delete(harness.keys.worker_beats)
    # When / Then
    assert look_once(harness, wanted, wanted) == []
    assert harness.reply_value("a") == b"a!no_worker"


def test_version_is_looked_at_while_a_worker_may_give_something_back(harness):
    # Given one that is silent, and not yet known to be dead
    wanted = {KEY: make_spec(min_worker=0)}
    harness.submit("a")
    harness.silence_worker()
    # When / Then
    assert look_once(harness, wanted, wanted) == [KEY]


def test_version_that_is_wanted_is_left_alone(harness):
    # Given
    wanted = {KEY: make_spec(min_worker=1)}
    harness.submit("a")
    harness.client.delete(harness.keys.worker_beats)
    # When / Then
    assert look_once(harness, wanted, wanted) == []
    assert harness.queued() == ["a"]

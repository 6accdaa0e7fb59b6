"""Who is told that nobody will come: clients of versions that were scaled to nothing."""

import asyncio

from batching.store.node_side.node_queue import NodeVerbs
from tests.support import DEAD_AFTER_MS, KEY, make_spec
from workers.node.unregistered_versions import Undertaker


def look_once(desk, before, after):
    """A node's undertaker has followed the registry from one state to another, and looked."""

    async def run():
        client = desk.backend.connect_async()
        undertaker = Undertaker(NodeVerbs(client, DEAD_AFTER_MS))
        undertaker.follow([], before)
        undertaker.follow(before.values(), after)
        await undertaker.look()
        await client.aclose()
        return undertaker.ended

    return asyncio.run(run())


def test_new_node_refuses_who_waits_for_what_was_scaled_to_nothing_before_it_came(desk):
    # Given a request whose worker has gone with the only node
    wanted = {KEY: make_spec(min_worker=0)}
    desk.submit("a")
    desk.client.delete(desk.keys.worker_beats)
    # When / Then
    assert look_once(desk, wanted, wanted) == []
    assert desk.reply_value("a") == b"a!no_worker"


def test_undertaker_looks_on_while_a_worker_may_give_something_back(desk):
    # Given one that is silent, and not yet known to be dead
    wanted = {KEY: make_spec(min_worker=0)}
    desk.submit("a")
    desk.silence_worker()
    # When / Then
    assert look_once(desk, wanted, wanted) == [KEY]


def test_undertaker_leaves_alone_who_is_wanted(desk):
    # Given
    wanted = {KEY: make_spec(min_worker=1)}
    desk.submit("a")
    desk.client.delete(desk.keys.worker_beats)
    # When / Then
    assert look_once(desk, wanted, wanted) == []
    assert desk.queued() == ["a"]

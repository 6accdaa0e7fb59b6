"""Ingress processes that share ports: how one asks the others."""

import asyncio
import socket

import pytest

from batching.process.siblings import Siblings


@pytest.fixture
def three(tmp_path):
    return [Siblings(number, 3, tmp_path) for number in (1, 2, 3)]


def test_process_learns_its_siblings_from_its_environment(monkeypatch, tmp_path):
    given, alone = Siblings(2, 4, tmp_path), Siblings.from_environment()
    for name, value in given.to_environment().items():
        monkeypatch.setenv(name, value)
    assert Siblings.from_environment() == given
    assert (given.is_first, given.others) == (False, [1, 3, 4])
    assert (alone.is_first, alone.others) == (True, [])


async def test_siblings_that_run_act_before_they_have_answered(three):
    # Given one that runs where a killed one did, and one that accepts and does nothing
    acted = []
    with socket.socket(socket.AF_UNIX) as killed, socket.socket(socket.AF_UNIX) as stuck:
        killed.bind(str(three[1].folder / "2.sock"))
        stuck.bind(str(three[2].folder / "3.sock"))
        stuck.listen()
        server = await three[1].listen(lambda: acted.append(2))
        # When
        answered = await asyncio.to_thread(three[0].ask)
    # Then
    assert (answered, acted) == ({2}, [2])
    server.close()


async def test_process_waits_for_the_end_of_its_siblings_without_asking_them_to_act(three):
    # Given
    acted = []
    server = await three[1].listen(lambda: acted.append(2))
    waiting = asyncio.create_task(three[0].gone())
    await asyncio.wait({waiting}, timeout=0.1)
    assert not waiting.done()
    # When
    server.close()
    # Then
    await asyncio.wait_for(waiting, 5)
    assert acted == []

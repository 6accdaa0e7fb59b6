"""Two servers of one test never get the same port, nor do those of two processes."""

import contextlib
import socket

import pytest

from tests.ports import BLOCK, MOST_BLOCKS, Ports, free_ports

LOWEST, HIGHEST = 18_000, 20_000  # which no test takes


def test_port_is_given_once_before_it_is_used():
    given = [free_ports(1) for _ in range(50)]
    assert len(set(given)) == len(given)


@pytest.fixture
def make_ports():
    """Makes some whose blocks are given back at the end."""
    with contextlib.ExitStack() as stack:
        yield lambda **more: stack.enter_context(contextlib.closing(Ports(LOWEST, HIGHEST, **more)))


def test_ports_in_use_are_passed_over(make_ports):
    # Given a server that takes the next one
    ports = make_ports()
    first = ports.free(1)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first + 2))
        # When
        given = ports.free(2)
    # Then
    assert first + 2 not in (given, given + 1)


def test_ports_beside_them_are_free_too(make_ports):
    ports = make_ports(beside=BLOCK)
    first = ports.free(1)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first + 1 + BLOCK))
        assert ports.free(1) == first + 2


def test_two_processes_never_choose_the_same(make_ports):
    one, other = make_ports(), make_ports()
    count = 3 * MOST_BLOCKS * BLOCK  # each begins again with its own
    given = {one.free(1) for _ in range(count)}
    others = {other.free(1) for _ in range(count)}
    assert given.isdisjoint(others)
    assert len(given) == len(others) == MOST_BLOCKS * BLOCK

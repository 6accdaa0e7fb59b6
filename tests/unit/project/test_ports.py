"""Two servers of one test never get the same port."""

import socket

from tests import ports
from tests.ports import HIGHEST, LOWEST, free_ports


def test_port_is_given_once_before_it_is_used():
    given = [free_ports(1) for _ in range(50)]
    assert len(set(given)) == len(given)


def test_ports_that_somebody_listens_on_are_passed_over(monkeypatch):
    # Given two that are free, and somebody who takes the second one
    first = free_ports(2)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first + 1))
        monkeypatch.setattr(ports, "_last", first - 1)
        # When
        given = free_ports(2)
    # Then
    assert first + 1 not in (given, given + 1)


def test_two_processes_do_not_begin_at_the_same_port(monkeypatch):
    def first_port():
        # As of a process that has just begun, where the second port leaves little room.
        monkeypatch.setattr(ports, "_last", HIGHEST - 1)
        return free_ports(1, beside=10_000)

    assert len({first_port() for _ in range(20)}) > 10


def test_ports_begin_anew_at_the_end(monkeypatch):
    monkeypatch.setattr(ports, "_last", HIGHEST - 1)
    assert LOWEST <= free_ports(3) < HIGHEST - 3

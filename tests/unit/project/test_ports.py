"""Two servers of one test never get the same port."""

import socket

from tests.ports import HIGHEST, LOWEST, Ports, free_ports


def test_port_is_given_once_before_it_is_used():
    given = [free_ports(1) for _ in range(50)]
    assert len(set(given)) == len(given)


def test_ports_in_use_are_passed_over():
    # Given two that are free, and a server that takes the second one
    first = free_ports(2)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first + 1))
        # When
        given = Ports(last=first - 1).free(2)
    # Then
    assert first + 1 not in (given, given + 1)


def test_ports_begin_anew_at_the_end_where_two_processes_do_not_meet():
    # As in processes that have just begun, where the ports beside them leave little room
    given = {Ports(last=HIGHEST - 1).free(1, beside=10_000) for _ in range(20)}
    assert len(given) > 10
    assert all(LOWEST <= port < HIGHEST - 10_000 for port in given)

"""Hosts on one network, made of this machine's namespaces, whose cables can be pulled.

    test ──── line, one per host ──── host ──── port ──── switch

A line leads from the test to each host and is never cut: the test goes on seeing what it does, and
clients reach an ingress whose host has lost its network. Everything else goes through the switch.
"""

import contextlib
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import psutil

# Kept for tests of networks (RFC 2544): no route of this machine leads there.
LINES = "198.18"
SWITCHED = "198.19.0"
COMMAND_TIMEOUT_S = 10


class Cut(StrEnum):
    """How a host loses its network."""

    SILENT = "silent"  # packets vanish and nothing says so, as behind a router that died
    CARRIER = "carrier"  # the cable is out: the host's own card knows
    DOWN = "down"  # the card is switched off: sending fails at once
    DEAF = "deaf"  # packets leave and arrive; none come back


@dataclass(frozen=True)
class Host:
    """One machine: programs started with `enter` before their words run there."""

    name: str
    space: str
    line: str  # its address for the test
    address: str  # its address for the other hosts
    port: str

    @property
    def enter(self) -> list[str]:
        return ["nsenter", f"--net=/run/netns/{self.space}"]


def _free_subnet(first: int) -> int:
    # A test run that was killed leaves its lines behind.
    taken = {one.address for found in psutil.net_if_addrs().values() for one in found}
    return next(n % 250 for n in itertools.count(first) if f"{LINES}.{n % 250}.1" not in taken)


class Network:
    """A switch and its hosts, there during a with block."""

    _numbers = itertools.count()

    def __init__(self, names: list[str]) -> None:
        # Several networks may share a machine: names of links have at most 15 characters.
        own_number = next(self._numbers)
        self._mark = f"fy{os.getpid()}n{own_number}"
        self._switch = f"{self._mark}-switch"
        subnet = _free_subnet(os.getpid() + own_number)
        self.hosts = {
            name: Host(
                name=name,
                space=f"{self._mark}-{name}",
                line=f"{LINES}.{subnet}.{4 * number + 2}",
                address=f"{SWITCHED}.{number + 1}",
                port=f"port{number}",
            )
            for number, name in enumerate(names)
        }

    def __enter__(self) -> "Network":
        try:
            self._build()
        except BaseException:
            self._clear()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()

    @contextlib.contextmanager
    def cut_off(self, host: Host, how: Cut = Cut.SILENT) -> Iterator[None]:
        """Cuts this host off from all others during the with block."""
        self.cut(host, how)
        try:
            yield
        finally:
            self.cut(host, how, is_joined=True)

    def cut(self, host: Host, how: Cut, *, is_joined: bool = False) -> None:
        """Cuts the host off, or gives it its network back."""
        port, state = ["dev", host.port], "up" if is_joined else "down"
        if how is Cut.SILENT:
            master = ["master", "switch"] if is_joined else ["nomaster"]
            ip("-n", self._switch, "link", "set", *port, *master)
        elif how is Cut.CARRIER:
            ip("-n", self._switch, "link", "set", *port, state)
        elif how is Cut.DOWN:
            ip("-n", host.space, "link", "set", "dev", "net0", state)
        else:
            # A queue without room for a single packet.
            queue = ["del", *port, "root"] if is_joined else ["add", *port, "root", "pfifo"]
            limit = [] if is_joined else ["limit", "0"]
            run(["tc", "-n", self._switch, "qdisc", *queue, *limit])

    def _build(self) -> None:
        ip("netns", "add", self._switch)
        ip("-n", self._switch, "link", "add", "switch", "type", "bridge")
        ip("-n", self._switch, "link", "set", "switch", "up")
        for number, host in enumerate(self.hosts.values()):
            self._plug_in(host, number)
        for host in self.hosts.values():
            self._introduce(host)

    def _plug_in(self, host: Host, number: int) -> None:
        ip("netns", "add", host.space)
        ip("-n", host.space, "link", "set", "lo", "up")
        # The cable to the switch.
        ip("link", "add", host.port, "netns", self._switch, "type", "veth",
           "peer", "name", "net0", "address", mac(number), "netns", host.space)  # fmt: skip
        ip("-n", self._switch, "link", "set", host.port, "master", "switch", "up")
        ip("-n", host.space, "addr", "add", f"{host.address}/24", "dev", "net0")
        ip("-n", host.space, "link", "set", "net0", "up")
        # The line to the test.
        line = self._line(number)
        ip("link", "add", line, "type", "veth", "peer", "name", "line", "netns", host.space)
        test_end = f"{host.line.rpartition('.')[0]}.{4 * number + 1}"
        ip("addr", "add", f"{test_end}/30", "dev", line)
        ip("link", "set", line, "up")
        ip("-n", host.space, "addr", "add", f"{host.line}/30", "dev", "line")
        ip("-n", host.space, "link", "set", "line", "up")

    def _line(self, number: int) -> str:
        return f"{self._mark}l{number}"

    def _introduce(self, host: Host) -> None:
        """Tells the host the others' cards for good: one that vanishes is not even missed."""
        for number, other in enumerate(self.hosts.values()):
            if other is not host:
                ip("-n", host.space, "neigh", "replace", other.address, "lladdr", mac(number),
                   "dev", "net0", "nud", "permanent")  # fmt: skip

    def _clear(self) -> None:
        # A namespace takes its ends of the cables with it, but only after a while.
        for number in range(len(self.hosts)):
            if Path(f"/sys/class/net/{self._line(number)}").exists():
                ip("link", "del", self._line(number))
        for space in (self._switch, *(host.space for host in self.hosts.values())):
            if Path(f"/run/netns/{space}").exists():
                ip("netns", "del", space)


def why_impossible() -> str:
    """Returns why this machine cannot have hosts of its own; empty when it can."""
    missing = [name for name in ("ip", "nsenter") if shutil.which(name) is None]
    if missing:
        return f"{' and '.join(missing)} missing: on Debian, apt-get install iproute2 util-linux"
    if os.geteuid() != 0:
        return "network namespaces can be made by root only"
    try:
        with Network(["probe"]) as network:
            run([*network.hosts["probe"].enter, "true"])
    except (subprocess.CalledProcessError, OSError) as error:
        text = getattr(error, "stderr", b"") or b""
        return f"no network namespaces here: {text.decode(errors='replace').strip() or error}"
    return ""


def can_be_deaf() -> bool:
    """Returns whether packets of one direction can be dropped here."""
    if shutil.which("tc") is None:
        return False
    with Network(["probe"]) as network:
        try:
            network.cut(network.hosts["probe"], Cut.DEAF)
        except subprocess.CalledProcessError:
            return False
    return True


def mac(number: int) -> str:
    """Returns the address of the card of host `number`."""
    return f"02:00:00:00:00:{number + 1:02x}"


def ip(*words: str) -> None:
    run(["ip", *words])


def run(words: list[str]) -> None:
    """Runs the command; raises when it fails."""
    subprocess.run(words, check=True, capture_output=True, timeout=COMMAND_TIMEOUT_S)

"""Processes that may have more files open than they are given at first, and then have."""

import subprocess
import sys

import pytest

from tests.chaos.tcp_redis import TcpRedis

LIMIT = """
import resource, subprocess, sys
from ferry.process_tree.start_checks import allow_many_files

resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), 512))
allow_many_files()
child = subprocess.check_output(["sh", "-c", "ulimit -n"], text=True)
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], child.strip())
"""

# Nothing that is opened from now on has a number below 1,024.
CROWDED = """
import os, sys
from ferry.process_tree.start_checks import allow_many_files

allow_many_files()
spare = os.open(os.devnull, os.O_RDONLY)
while os.dup(spare) < 1100:
    pass
"""

SUPERVISED = """
from ferry.process_tree.supervisor import Supervisor

answers = [True, False]
with Supervisor([], stop_timeout_s=1, report=print) as supervisor:
    supervisor.wait_until(answers.pop, timeout_s=5)
print("supervised")
"""

ASKED = """
import asyncio
from batching.store.registry.registry import changed_models
from batching.store.clients import connect, connect_async
from batching.store.held_connections import HeldConnection
from batching.store.scripts.loader import command

client = connect(sys.argv[1])
client.rpush("list", "a")
assert client.blpop(["list"], timeout=1) == (b"list", b"a")
scripts = HeldConnection(client)
for member in ("a", "b"):
    scripts.call(command("beat", ["{ferry}:beats"], [60_000, 60_000, 0, 1, member]))
assert scripts._connection._sock.fileno() > 1023
with client.pubsub(ignore_subscribe_messages=True) as listener:
    listener.subscribe("channel")
    listener.get_message(timeout=0.1)

async def ask():
    async with connect_async(sys.argv[1]) as own:
        assert await own.ping()

asyncio.run(ask())
print("answered")
"""


def printed(script: str, *arguments: str) -> list[str]:
    argv = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("soft", ["64", "512"])
def test_process_may_open_what_its_hard_limit_allows_and_so_may_its_children(soft: str) -> None:
    assert printed(LIMIT, soft) == ["512", "512"]


def test_supervisor_waits_and_redis_is_asked_when_more_than_1024_files_are_open() -> None:
    with TcpRedis() as server:
        script = CROWDED + SUPERVISED + ASKED
        printed_words = printed(script, f"redis://127.0.0.1:{server.port}")
    assert printed_words == ["supervised", "answered"]


@pytest.mark.parametrize("command", ["up", "node"])
def test_server_warns_first_when_few_files_may_be_open(command: str) -> None:
    serve = f"{sys.executable} -m ferry.main {command} --redis-url redis://127.0.0.1:1"
    with subprocess.Popen(
        ["sh", "-c", f"ulimit -n 64; exec {serve}"], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        process.kill()
    assert "only 64 files may be open at once" in line

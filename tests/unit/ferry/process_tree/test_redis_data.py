"""The folder of an embedded Redis: where it is, whose it is, and what becomes of its file."""

import contextlib
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from batching.settings.settings import Settings
from ferry.process_tree.embedded_redis import (
    FSYNC_EVERY_SECOND,
    EmbeddedRedis,
    EmbeddedRedisError,
    RedisData,
    ServerProgram,
    default_data_dir,
    find_server,
    lock_data,
)
from tests.support import eventually
from tests.unit.ferry.process_tree.test_embedded_redis import ask


def write_file(server, data):
    """Has the server write its file, as an ingress does before the first job."""
    assert not (data.folder / "appendonlydir").exists()
    ask(server.socket_path, "CONFIG", "SET", "appendonly", "yes")
    eventually(lambda: any(data.folder.glob("appendonlydir/*.manifest")))


def locked(folder):
    return RedisData.lock(folder, FSYNC_EVERY_SECOND, wait_s=0.1)


@pytest.mark.parametrize(
    ("address", "name"),
    [("http://127.0.0.1:8081", "8081"), ("unix:/run/x.sock", "unix-run-x-sock")],
)
def test_default_folder_is_beside_the_store_and_one_for_each_server(tmp_path, address, name):
    settings = replace(Settings(), model_store=tmp_path / "store", management_address=address)
    assert default_data_dir(settings) == tmp_path / "store-data" / name


@pytest.mark.parametrize("store", [".", "..", "/"])
def test_default_folder_is_in_the_store_that_the_server_runs_in(tmp_path, monkeypatch, store):
    # Given
    (tmp_path / "app" / "run").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "app" / "run")
    there = {".": tmp_path / "app" / "run", "..": tmp_path / "app", "/": Path("/")}[store]
    # When / Then
    for path in (Path(store), Path(store).absolute()):
        folder = default_data_dir(replace(Settings(), model_store=path))
        assert folder == there / ".ferry-data" / "8081"


def test_nothing_is_kept_without_a_store_or_where_nothing_is_to_be_remembered(tmp_path):
    store = replace(Settings(), model_store=tmp_path / "store")
    for settings in (Settings(), replace(store, config_snapshots=False)):
        assert lock_data(settings, FSYNC_EVERY_SECOND) is None
    assert list(tmp_path.iterdir()) == []


def test_default_folder_that_cannot_be_used_is_a_warning_and_a_chosen_one_an_error(
    tmp_path, capsys
):
    # Given a file in the place of each folder
    (tmp_path / "store-data").write_text("")
    settings = replace(Settings(), model_store=tmp_path / "store")
    # When / Then, also when a snapshot has the default written down
    for folder in (None, default_data_dir(settings)):
        assert lock_data(replace(settings, data_dir=folder), FSYNC_EVERY_SECOND) is None
        warning = " ".join(capsys.readouterr().err.split())
        assert warning.startswith("warning: jobs end with this server: ")
        assert "/store-data/8081/redis cannot be written: Not a directory. --data-dir" in warning
    # And
    settings = replace(settings, data_dir=tmp_path / "store-data")
    with pytest.raises(EmbeddedRedisError, match="Not a directory"):
        lock_data(settings, FSYNC_EVERY_SECOND)


def test_folder_is_locked_until_its_redis_has_ended(tmp_path):
    # Given a Redis whose server has gone already
    data = locked(tmp_path)
    with EmbeddedRedis(find_server(), data=data):
        data.release()
        # When / Then
        with pytest.raises(EmbeddedRedisError, match="in use by another server"):
            locked(tmp_path)
    locked(tmp_path).release()


def test_redis_that_was_killed_comes_back_without_the_command_that_was_cut_short(tmp_path):
    # Given
    data = locked(tmp_path / "with space")
    assert not data.had_file
    with EmbeddedRedis(find_server(), data=data) as server:
        write_file(server, data)
        ask(server.socket_path, "SET", "whole", "1")
        ask(server.socket_path, "SET", "cut", "2")
        os.kill(server.pid, signal.SIGKILL)
        eventually(lambda: not server.answers(), timeout_s=5)
    data.release()
    [file] = data.folder.glob("appendonlydir/*.incr.aof")
    os.truncate(file, file.stat().st_size - 3)
    # When
    data = locked(data.folder)
    with EmbeddedRedis(find_server(), data=data) as server:
        # Then
        assert data.had_file
        assert b"\r\n1\r\n" in ask(server.socket_path, "GET", "whole")
        assert ask(server.socket_path, "GET", "cut") == b"$-1\r\n"
    data.release()


def test_redis_that_reads_its_file_says_so(tmp_path):
    # Given a file that takes some seconds to read: Redis waits before each key
    data = locked(tmp_path / "data")
    with EmbeddedRedis(find_server(), data=data) as server:
        write_file(server, data)
        for number in range(200):
            ask(server.socket_path, "SET", f"key{number}", os.urandom(25_000).hex())
        ask(server.socket_path, "BGREWRITEAOF")
        base = tmp_path / "data/appendonlydir/appendonly.aof.2.base.rdb"
        eventually(base.exists, timeout_s=10)
    slow = tmp_path / "slow"
    slow.write_text(f'#!/bin/sh\nexec {find_server().path} "$@" --key-load-delay 10000\n')
    slow.chmod(0o755)
    # When
    with contextlib.closing(EmbeddedRedis(ServerProgram(slow, "a test"), data=data)) as server:
        server.launch()
        # Then
        eventually(server.is_loading, timeout_s=10)
        assert not server.answers()
        eventually(server.answers, timeout_s=10)
        assert not server.is_loading()
    data.release()

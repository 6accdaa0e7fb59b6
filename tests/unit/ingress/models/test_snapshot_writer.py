"""Tests when the registered models are saved, and when they are not."""

from dataclasses import replace

import pytest

from batching.settings.settings import Settings
from batching.settings.snapshots import newest_snapshot, read_snapshot
from batching.store import keys
from batching.store.clients import connect
from batching.store.registry.registry import Registry
from ingress.models.startup_models import SnapshotWriter
from tests.support import eventually, make_spec


@pytest.fixture
def registry(redis_url):
    client = connect(redis_url)
    found = Registry(client)
    found.mark()
    yield found
    client.close()


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "config"


@pytest.fixture
def writer(registry, folder):
    settings = replace(Settings(), job_queue_size=7)
    made = SnapshotWriter(registry, settings, folder, save_again_s=0.05)
    yield made
    made.close()


def saved_models(folder):
    path = newest_snapshot(folder)
    return path and [one.model_name for one in read_snapshot(path)]


def test_changes_are_saved_from_start_to_close(registry, writer, folder):
    # Given
    writer.start()
    # When
    registry.create(make_spec(model_name="a"))
    # Then
    eventually(lambda: saved_models(folder) == ["a"])
    registry.remove(make_spec(model_name="a").key)
    eventually(lambda: saved_models(folder) == [])
    # And what came last is saved at the end
    registry.create(make_spec(model_name="b"))
    writer.close()
    assert saved_models(folder) == ["b"]
    assert "job_queue_size=7\n" in newest_snapshot(folder).read_text()


def test_news_of_workers_are_no_change(registry, writer, folder):
    # Given
    registry.create(make_spec(model_name="a"))
    writer.start()
    newest_snapshot(folder).unlink()
    # When a worker's state is announced, before the server stops
    registry.announce("a")
    writer.close()
    # Then nothing was written
    assert saved_models(folder) is None


def test_emptied_redis_does_not_empty_the_snapshots(registry, writer, folder, redis_url):
    # Given
    registry.create(make_spec(model_name="a"))
    writer.start()
    # When Redis loses everything, and the server stops before a node has restored it
    with connect(redis_url) as client:
        client.flushall()
        registry.announce("a")
        writer.close()
        assert not client.exists(keys.EPOCH)
    # Then
    assert saved_models(folder) == ["a"]


def test_snapshot_that_was_not_restored_as_a_whole_stays_until_something_changes(
    registry, writer, folder
):
    # Given a start at which a model was missing
    registry.create(make_spec(model_name="found"))
    writer.start(is_whole=False)
    # When nothing changes
    registry.announce("found")
    writer.close()
    # Then the old snapshot stays
    assert saved_models(folder) is None


def test_what_the_disk_does_not_take_is_told_and_saved_when_it_does(
    registry, writer, folder, caplog
):
    # Given
    folder.write_text("in the way")
    writer.start()
    registry.create(make_spec(model_name="a"))
    eventually(lambda: f"snapshot not saved folder={folder}: " in caplog.text)
    # When nothing changes any more but the disk
    folder.unlink()
    # Then
    eventually(lambda: newest_snapshot(folder) is not None)
    assert saved_models(folder) == ["a"]

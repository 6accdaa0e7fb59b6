"""Tests what a snapshot brings back when a server starts."""

from dataclasses import replace

import pytest

from batching.settings.snapshots import CHANGE, write_snapshot
from tests.unit.ingress.startup import load

pytestmark = pytest.mark.usefixtures("node")


def saved(ingress, folder):
    """A snapshot of the registry, which is then emptied."""
    models = ingress.registry.snapshot()
    path = write_snapshot(folder, CHANGE, {}, models)
    for name, entry in models.items():
        for version in sorted(entry.versions, key=lambda one: one == entry.default_version):
            ingress.registry.remove(entry.versions[version].key)
        assert ingress.registry.get(name) is None
    return path


def test_snapshot_registers_what_was_registered(ingress, tmp_path):
    # Given two versions, the second of them the default, scaled by hand since
    ingress.archives.add("echo.mar", "echo", "1.0", minWorkers=1, maxWorkers=1)
    ingress.archives.add("echo-2.mar", "echo", "2.0")
    spec = ingress.register("echo", "1.0", batch_size=8, max_batch_delay_ms=50)
    second = replace(spec, model_version="2.0", model_url="echo-2.mar", batch_size=1)
    ingress.registry.create(second)
    ingress.registry.set_default("echo", "2.0")
    ingress.registry.scale(ingress.registry.resolve("echo", "1.0").key, 0, 2)
    path = saved(ingress, tmp_path)
    # When
    failures = load(ingress, snapshot_file=path)
    # Then
    assert failures == []
    first, second = (ingress.registry.resolve("echo", version) for version in ("1.0", "2.0"))
    assert (first.batch_size, first.max_batch_delay_ms) == (8, 50)
    assert (first.min_worker, first.max_worker) == (0, 2)
    assert (second.min_worker, second.is_loaded_at_startup) == (1, True)
    assert ingress.registry.resolve("echo", None).model_version == "2.0"


def test_archive_that_has_gone_is_named_and_the_rest_restored(ingress, tmp_path):
    # Given
    for name in ("kept", "lost"):
        ingress.register(name)
    ingress.archives.add("kept.mar", "kept")
    path = saved(ingress, tmp_path)
    # When
    failures = load(ingress, snapshot_file=path)
    # Then
    assert failures == [{"model": "lost 1.0", "error": "Model not found at: lost.mar"}]
    assert sorted(ingress.registry.snapshot()) == ["kept"]


def test_models_of_the_configuration_choose_the_default_version(ingress):
    # Given
    for version in ("1.0", "2.0"):
        ingress.archives.add(f"echo-{version}.mar", "echo", version)
    configured = '{"echo": {"2.0": {"defaultVersion": true, "batchSize": 4}}}'
    # When
    load(ingress, load_models="echo-1.0.mar,echo-2.0.mar", model_settings=configured)
    # Then
    spec = ingress.registry.resolve("echo", None)
    assert (spec.model_version, spec.batch_size) == ("2.0", 4)


@pytest.mark.parametrize("is_awaited", [True, False])
def test_snapshot_undoes_nothing_in_a_redis_that_remembers_models(
    ingress, tmp_path, caplog, is_awaited
):
    # Given a snapshot of version 1.0, and version 2.0, which an operator registered later
    ingress.archives.add("echo.mar", "echo", "1.0")
    ingress.register("echo", "1.0")
    path = saved(ingress, tmp_path)
    ingress.register("echo", "2.0")
    # When
    failures = load(ingress, is_awaited=is_awaited, snapshot_file=path)
    # Then
    assert failures == []
    assert list(ingress.registry.get("echo").versions) == ["2.0"]
    assert f"not restored snapshot={path}: Redis has models=1" in caplog.text


def test_snapshot_is_not_restored_again_when_all_of_it_was_unregistered(ingress, tmp_path):
    # Given
    ingress.archives.add("echo.mar", "echo", "1.0")
    ingress.register("echo", "1.0")
    path = saved(ingress, tmp_path)
    load(ingress, snapshot_file=path)
    ingress.registry.remove(ingress.registry.resolve("echo", "1.0").key)
    # When
    load(ingress, snapshot_file=path)
    # Then
    assert ingress.registry.snapshot() == {}

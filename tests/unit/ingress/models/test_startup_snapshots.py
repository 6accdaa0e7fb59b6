"""Tests what a snapshot brings back when a server starts."""

from dataclasses import replace

import pytest

from batching.settings.settings import Settings
from batching.settings.snapshots import read_snapshot, write_snapshot
from tests.unit.ingress.sockets import load

pytestmark = pytest.mark.usefixtures("node")


def saved(ingress, folder, **settings):
    """A snapshot of the registry, which is then emptied."""
    models = ingress.registry.snapshot()
    path = write_snapshot(folder, replace(Settings(), **settings), models)
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


def test_version_whose_archive_has_gone_says_so_and_comes_back_with_it(ingress, tmp_path):
    # Given a default version that was scaled, and another one
    ingress.register("kept")
    first = ingress.register("lost")
    second = replace(first, model_version="2.0", model_url="lost-2.mar")
    ingress.registry.create(second.scaled(2, 3))
    ingress.registry.set_default("lost", "2.0")
    ingress.archives.add("kept.mar", "kept")
    path = saved(ingress, tmp_path)
    before = read_snapshot(path)
    # When
    failures = load(ingress, snapshot_file=path)
    # Then
    assert {one["model"]: one["error"] for one in failures} == {
        "lost 1.0": "Model not found at: lost.mar",
        "lost 2.0": "Model not found at: lost-2.mar",
    }
    lost = ingress.registry.resolve("lost", None)
    assert (lost.model_version, lost.min_worker) == ("2.0", 0)
    assert lost.load_error == "Model not found at: lost-2.mar"
    assert ingress.registry.resolve("kept", None).min_worker == 1
    # When the next snapshot is restored, and the archive is there again
    path = saved(ingress, tmp_path)
    assert read_snapshot(path) == before
    ingress.archives.add("lost.mar", "lost", "1.0")
    ingress.archives.add("lost-2.mar", "lost", "2.0")
    load(ingress, is_awaited=True, snapshot_file=path)
    # Then
    lost = ingress.registry.resolve("lost", None)
    assert (lost.model_version, lost.min_worker, lost.max_worker) == ("2.0", 2, 3)
    assert lost.load_error == ""


def test_version_that_load_models_names_in_vain_is_in_no_snapshot(ingress, tmp_path):
    # Given: its name is only a guess
    load(ingress, load_models="lost.mar")
    # When / Then
    assert read_snapshot(saved(ingress, tmp_path)) == []


@pytest.mark.parametrize(
    ("then", "now", "batch_size"),
    [
        ({"load_models": "echo.mar"}, {"load_models": "echo.mar"}, 8),
        ({}, {"load_models": "echo.mar"}, 4),
        ({"load_models": "echo.mar", "model_settings": "{}"}, {"load_models": "echo.mar"}, 4),
    ],
    ids=["same", "other load_models", "other models"],
)
def test_configuration_that_changed_since_the_snapshot_comes_first(
    ingress, tmp_path, then, now, batch_size
):
    # Given a snapshot of two models, of which the configuration names one
    for name in ("echo", "more"):
        ingress.archives.add(f"{name}.mar", name)
        ingress.register(name, batch_size=8)
    path = saved(ingress, tmp_path, **then)
    # When
    configured = '{"echo": {"1.0": {"batchSize": 4}}}'
    load(ingress, snapshot_file=path, **now, model_settings=configured if batch_size == 4 else "")
    # Then
    sizes = {name: ingress.registry.resolve(name, None).batch_size for name in ("echo", "more")}
    assert sizes == {"echo": batch_size, "more": 8}


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

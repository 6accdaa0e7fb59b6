"""Models of the start: which they are, and what becomes of each."""

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from batching.errors import InvalidModel, StoreUnavailable, Unavailable
from batching.settings.settings import Settings
from batching.store import keys
from ingress.models.registrar import Registrar
from ingress.models.startup_models import startup_parameters
from ingress.services import TimeLimits
from tests.support import eventually
from tests.unit.ingress.simulated_node import SimulatedNode
from tests.unit.ingress.sockets import load


@pytest.mark.usefixtures("node")
def test_startup_registers_what_it_can_and_says_what_failed(ingress):
    # Given
    ingress.archives.add("echo.mar", "echo")
    # When
    failures = load(ingress, load_models="echo.mar,mine=echo.mar,lost.mar")
    # Then
    assert failures == [{"model": "lost.mar", "error": "Model not found at: lost.mar"}]
    assert sorted(ingress.registry.snapshot()) == ["echo", "lost", "mine"]
    spec = ingress.registry.resolve("mine", None)
    assert (spec.min_worker, spec.is_loaded_at_startup) == (1, True)
    spec = ingress.registry.resolve("lost", None)
    assert (spec.load_error, spec.model_url) == (failures[0]["error"], "lost.mar")
    assert (spec.min_worker, spec.is_loaded_at_startup) == (0, False)


@pytest.mark.usefixtures("node")
def test_startup_gives_no_workers_to_what_names_no_handler(ingress):
    # Given a folder in the model store that is no model
    ingress.archives.add("lost+found", "lost_found")
    archives = ingress.archives.archives
    archives["lost+found"] = replace(archives["lost+found"], handler="", manifest=None)
    # When / Then
    [failure] = load(ingress, load_models="lost+found")
    assert failure["error"].startswith("It names no handler")
    spec = ingress.registry.resolve("lost_found", None)
    assert (spec.load_error, spec.min_worker) == (failure["error"], 0)
    # When / Then
    assert load(ingress, load_models="lost+found", default_service_handler="own.py") == []
    assert ingress.registry.resolve("lost_found", None).load_error == ""


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize("load_models", ["echo.mar", "echo-file.mar", "echo=echo-file.mar"])
def test_version_that_was_not_loaded_goes_when_its_archive_is_registered(ingress, load_models):
    # Given: its name and version could only be guessed
    load(ingress, load_models=load_models)
    [name] = ingress.registry.snapshot()
    assert ingress.registry.resolve(name, None).model_version == "1.0"
    # When the archive is put right
    url = load_models.rpartition("=")[2]
    ingress.archives.add(url, "echo", "2.0")
    Registrar(ingress.services).create({"url": url, "initial_workers": 1})
    # Then
    assert sorted(ingress.registry.snapshot()) == ["echo"]
    assert list(ingress.registry.get("echo").versions) == ["2.0"]
    assert ingress.registry.resolve("echo", None).load_error == ""


@pytest.mark.usefixtures("node")
def test_version_that_was_not_loaded_is_not_scaled(ingress):
    # Given
    load(ingress, load_models="echo.mar")
    registrar = Registrar(ingress.services)
    # When / Then
    with pytest.raises(InvalidModel, match=r"^Model not found at: echo\.mar\. It was not loaded"):
        registrar.scale("echo", None, {"min_worker": 2})
    assert registrar.scale("echo", None, {"min_worker": 0})[0] == 202
    registrar.unregister("echo", None)
    assert ingress.registry.snapshot() == {}


@pytest.mark.usefixtures("node")
def test_registered_model_whose_archive_has_gone_since_stays_as_it_is(ingress):
    # Given a Redis that remembers it, under a name of its own
    ingress.archives.add("file.mar", "echo")
    load(ingress, load_models="file.mar")
    del ingress.archives.archives["file.mar"]
    # When another server starts
    failures = load(ingress, is_awaited=True, load_models="file.mar")
    # Then
    assert failures == [{"model": "file.mar", "error": "Model not found at: file.mar"}]
    assert sorted(ingress.registry.snapshot()) == ["echo"]
    assert ingress.registry.resolve("echo", None).min_worker == 1


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize(
    ("is_awaited", "is_emptied", "names"),
    [(False, False, ["new"]), (True, False, ["echo", "new"]), (False, True, ["echo", "new"])],
    ids=["came back", "started by an operator", "with an emptied Redis"],
)
def test_unregistered_model_comes_back_only_when_an_operator_starts_a_server(
    ingress, is_awaited, is_emptied, names
):
    # Given: a startup model that was unregistered since
    ingress.archives.add("echo.mar", "echo")
    ingress.archives.add("new.mar", "new")
    load(ingress, load_models="echo.mar")
    ingress.registry.remove(ingress.registry.resolve("echo", None).key)
    if is_emptied:
        ingress.services.client.delete(keys.MODELS, keys.STARTED)
    # When a server starts that names one more
    failures = load(ingress, is_awaited=is_awaited, load_models="echo.mar,new.mar")
    # Then
    assert failures == []
    assert sorted(ingress.registry.snapshot()) == names


IN_A_HURRY = pytest.mark.parametrize("patience", [TimeLimits(node_s=0.1, remind_s=0.3)])


@pytest.fixture
def start(ingress):
    """Begins a start that waits for something; returns the future of what failed."""
    with ThreadPoolExecutor(1) as pool:
        yield lambda **settings: pool.submit(load, ingress, **settings)
        ingress.services.lifecycle.is_draining = True


@IN_A_HURRY
def test_startup_waits_for_a_node_however_long_and_says_so(ingress, start, redis_url, caplog):
    # Given
    ingress.archives.add("echo.mar", "echo")
    started = start(load_models="echo.mar")
    # When
    eventually(lambda: caplog.text.count("not yet loaded model=echo.mar: No node is running") > 1)
    assert not started.done()
    with closing(SimulatedNode(redis_url)) as node:
        node.start()
        # Then
        assert started.result(10) == []
        assert sorted(ingress.registry.snapshot()) == ["echo"]


@IN_A_HURRY
@pytest.mark.usefixtures("node")
@pytest.mark.parametrize("error", [Unavailable("Not now."), StoreUnavailable("Redis is away.")])
def test_startup_tries_again_what_passes_by_itself(ingress, error, caplog):
    # Given an archive that is there at the third look
    failures, inspect = [error] * 2, ingress.archives.inspect_archive

    def fail_twice(*arguments, **options):
        if failures:
            raise failures.pop()
        return inspect(*arguments, **options)

    ingress.archives.add("echo.mar", "echo")
    ingress.archives.inspect_archive = fail_twice
    # When / Then
    assert load(ingress, load_models="echo.mar") == []
    assert sorted(ingress.registry.snapshot()) == ["echo"]
    assert f"not yet loaded model=echo.mar: {error.message}" in caplog.text


@IN_A_HURRY
def test_startup_that_waits_ends_with_its_server(ingress, start):
    # Given
    started = start(load_models="echo.mar")
    # When
    ingress.services.lifecycle.is_draining = True
    # Then: nothing has failed, it was only too early
    assert started.result(10) == []


# --- what `load_models` names


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("a.mar", [(None, "a.mar")]),
        ("a.mar, b.mar", [(None, "a.mar"), (None, "b.mar")]),
        ("mine=a.mar", [("mine", "a.mar")]),
        ("https://x.example/a.mar?v=1", [(None, "https://x.example/a.mar?v=1")]),
        ("m=https://x.example/a.mar?v=1", [("m", "https://x.example/a.mar?v=1")]),
    ],
)
def test_load_models_names_archives(text, expected):
    found = startup_parameters(replace(Settings(), load_models=text))
    assert [(entry.get("model_name"), entry["url"]) for entry in found] == expected


def test_load_models_all_takes_archives_and_folders_but_nothing_hidden(tmp_path):
    # Given
    for name in ("b.mar", "a.model", "c.tar.gz", "notes.txt", ".hidden.mar"):
        (tmp_path / name).touch()
    for manifest in (".git/MAR-INF", "folder/MAR-INF", "wrapped/inner/MAR-INF"):
        (tmp_path / manifest).mkdir(parents=True)
        (tmp_path / manifest / "MANIFEST.json").touch()
    # and a volume of Kubernetes, other links, and one whose disk is away
    (tmp_path / "..2026_11_25").mkdir()
    (tmp_path / "..2026_11_25" / "d.mar").touch()
    (tmp_path / "..data").symlink_to("..2026_11_25")
    (tmp_path / "d.mar").symlink_to("..data/d.mar")
    (tmp_path / "linked").symlink_to("folder")
    (tmp_path / "more-notes").symlink_to("notes.txt")
    (tmp_path / "away").symlink_to("no-disk")
    # When
    found = startup_parameters(replace(Settings(), load_models="ALL", model_store=tmp_path))
    # Then
    names = ["a.model", "away", "b.mar", "c.tar.gz", "d.mar", "folder", "linked", "wrapped"]
    assert [entry["url"] for entry in found] == names


def test_load_models_all_leaves_out_folders_that_are_no_models(tmp_path, caplog):
    # Given
    caplog.set_level("INFO")
    (tmp_path / "logs" / "config").mkdir(parents=True)
    settings = replace(Settings(), load_models="all", model_store=tmp_path)
    # When / Then
    assert startup_parameters(settings) == []
    assert f"left out folder={tmp_path / 'logs'}: it has no MAR-INF/MANIFEST.json" in caplog.text
    # When all that name no handler have one
    found = startup_parameters(replace(settings, default_service_handler="own.py"))
    # Then
    assert [entry["url"] for entry in found] == ["logs"]


def test_load_models_all_says_that_the_store_cannot_be_read(tmp_path, monkeypatch, caplog):
    # Given a folder of which this user may not have a list
    def refuse(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "iterdir", refuse)
    # When
    found = startup_parameters(replace(Settings(), load_models="all", model_store=tmp_path))
    # Then
    assert found == []
    assert f"cannot read the model_store: [Errno 13] Permission denied: '{tmp_path}" in caplog.text


@pytest.mark.parametrize(("configured", "workers"), [(0, 1), (3, 3)])
def test_startup_models_get_workers(configured, workers):
    settings = replace(Settings(), load_models="a.mar", default_workers_per_model=configured)
    assert [entry["initial_workers"] for entry in startup_parameters(settings)] == [workers]

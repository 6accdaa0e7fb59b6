"""A node's archives are unpacked beside each other, and each of them once."""

import asyncio
import os
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from batching.errors import InvalidModel, ModelNotFound
from batching.settings.settings import Settings, SettingsError
from tests.support import eventually_async, make_spec
from tests.unit.workers.archives.archives import write_zip
from tests.unit.workers.archives.web import ALLOWED
from workers.archives import fetch
from workers.archives import model_archive as archive
from workers.archives.model_archive import hash_archive
from workers.archives.model_files import ModelFiles
from workers.archives.staging import work_dir_of
from workers.machine import Device
from workers.node.node import run
from workers.slots.assignment import Assignment
from workers.slots.worker_process import worker_environment

AT_ONCE_S = 2.0
MANY = 40  # more than the event loop's own executor has threads


@pytest.fixture
def files(store, tmp_path):
    return ModelFiles(Settings(work_dir=tmp_path / "work", model_store=store, allowed_urls=ALLOWED))


@pytest.fixture
def quick(store):
    """A model whose archive is unpacked in no time."""
    path = write_zip(store / "quick.mar")
    return make_spec(model_name="quick", model_url=path.name, archive_sha256=hash_archive(path))


@pytest.fixture
def slow_disk(monkeypatch):
    """Archives named slow-… are not found before `is_over` is set; `is_at_work`: one is sought."""
    disk = SimpleNamespace(is_at_work=threading.Event(), is_over=threading.Event())
    locate = fetch.locate_archive

    def locate_slowly(url, *arguments, **named):
        if url.startswith("slow-"):
            disk.is_at_work.set()
            disk.is_over.wait()
        return locate(url, *arguments, **named)

    monkeypatch.setattr(fetch, "locate_archive", locate_slowly)
    yield disk
    disk.is_over.set()


@pytest.mark.parametrize("is_unpacked", [True, False], ids=["unpacked", "not unpacked"])
async def test_model_is_prepared_while_others_are_unpacked(files, slow_disk, quick, is_unpacked):
    # Given
    if is_unpacked:
        await files.prepare(quick)
    slow = [
        make_spec(model_url=f"slow-{number}.mar", archive_sha256=f"{number:064x}")
        for number in range(MANY)
    ]
    at_work = [asyncio.create_task(files.prepare(spec)) for spec in slow]
    await eventually_async(slow_disk.is_at_work.is_set, AT_ONCE_S)
    try:
        # When
        prepared = await asyncio.wait_for(files.prepare(quick), AT_ONCE_S)
        # Then
        assert (prepared.model_dir / "echo.py").is_file()
        assert not any(task.done() for task in at_work)
    finally:
        slow_disk.is_over.set()
    outcomes = await asyncio.gather(*at_work, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {ModelNotFound}


async def test_archive_is_unpacked_once_for_all_workers_that_start_together(
    files, quick, monkeypatch
):
    # Given
    unpacked = []
    unpack = archive.unpack_archive

    def count(*arguments, **named):
        unpacked.append(arguments)
        return unpack(*arguments, **named)

    monkeypatch.setattr(archive, "unpack_archive", count)
    # When
    prepared = await asyncio.gather(*(files.prepare(quick) for _ in range(4)))
    # Then
    assert len(set(prepared)) == 1
    assert len(unpacked) == 1


async def test_downloads_to_one_file_name_come_one_after_the_other(files, monkeypatch):
    # Given two URLs whose archives have the same place in the store, and a third with another
    at_work: list[str] = []
    together: set[tuple[str, ...]] = set()

    loop, all_asked = asyncio.get_running_loop(), asyncio.Event()

    def locate(url, *_, **__):
        at_work.append(url)
        together.add(tuple(sorted(at_work)))
        asyncio.run_coroutine_threadsafe(all_asked.wait(), loop).result(AT_ONCE_S)
        at_work.remove(url)
        raise InvalidModel("not needed any more")

    monkeypatch.setattr("workers.archives.fetch.locate_archive", locate)
    urls = ("https://a.example/m.mar", "https://b.example/m.mar", "https://c.example/n.mar")
    specs = [
        make_spec(model_url=url, archive_sha256=f"{number:064x}") for number, url in enumerate(urls)
    ]
    # When
    tasks = [asyncio.create_task(files.prepare(spec)) for spec in specs]
    await eventually_async(lambda: len(at_work) == 2, AT_ONCE_S)
    all_asked.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    # Then
    names = [[url.rpartition("/")[2] for url in group] for group in together]
    assert ["m.mar", "n.mar"] in names
    assert all(len(set(group)) == len(group) for group in names)


@pytest.fixture
def homeless(monkeypatch, tmp_path):
    """A user whose home cannot be written; returns the folder for temporary files."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", os.devnull)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_archives_are_unpacked_among_temporary_files_where_the_home_cannot_be_written(homeless):
    # When
    folder = work_dir_of(Settings())
    # Then others cannot put models there
    assert folder == homeless / f"torchferry-{os.getuid()}" / "models"
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    assert work_dir_of(Settings()) == folder
    # and libraries of handlers find a folder for what they download
    assignment = Assignment(make_spec(), "a-0", folder, Device("cpu"), 0, 1)
    variables = worker_environment(assignment, Settings(work_dir=folder), 1)
    assert variables["XDG_CACHE_HOME"] == str(folder / "caches")


def test_folder_among_temporary_files_that_others_can_write_is_not_used(homeless):
    # Given
    place = homeless / f"torchferry-{os.getuid()}"
    place.mkdir()
    place.chmod(0o777)
    # When / Then
    with pytest.raises(SettingsError, match=r"set work_dir to another folder"):
        work_dir_of(Settings())


def test_node_does_not_start_where_its_work_folder_cannot_be_written(real_backend):
    settings = Settings(redis_url=real_backend.url, work_dir=Path("/dev/null/work"))
    with pytest.raises(SettingsError, match=r"unpacked in /dev/null/work: set work_dir to another"):
        run(settings)


def test_folder_that_can_be_made_is_the_one_for_archives(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert work_dir_of(Settings()) == tmp_path / "caches" / "torchferry" / "models"
    assert work_dir_of(Settings(work_dir=tmp_path / "a" / "b")) == tmp_path / "a" / "b"
    assignment = Assignment(make_spec(), "a-0", tmp_path, Device("cpu"), 0, 1)
    variables = worker_environment(assignment, Settings(work_dir=tmp_path), 1)
    assert variables["XDG_CACHE_HOME"] == str(tmp_path / "caches")

"""What killed processes leave behind is cleared, what others work on is not."""

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

from batching.settings.settings import Settings
from tests.support import make_spec
from tests.unit.workers.archives.archives import FILES, write_zip
from workers.archives.model_archive import hash_archive
from workers.archives.model_files import ModelFiles, environment_name
from workers.archives.staging import ABANDONED_AFTER_S, remove_abandoned

KEPT_S = 86_400.0
# Ends while a thread of its own is unpacking.
STOPS = """
import sys, threading, time
from pathlib import Path
from workers.archives import model_archive as archive

def unpack_entries(path, folder):
    folder.joinpath("half").touch()
    has_begun.set()
    time.sleep(60)

archive.unpack_entries, has_begun = unpack_entries, threading.Event()
path, work_dir = map(Path, sys.argv[1:])
arguments = (path, archive.hash_archive(path), work_dir)
threading.Thread(target=archive.unpack_archive, args=arguments, daemon=True).start()
has_begun.wait()
"""
MANIFEST = {"model": {"requirementsFile": "requirements.txt"}}


def files_of(folder, **settings):
    return ModelFiles(Settings(work_dir=folder / "work", model_store=folder / "store", **settings))


def make(folder, name, age_s, file_age_s=None):
    place = folder / name
    place.mkdir(parents=True)
    (place / "half.mar").write_bytes(b"half")
    set_age(place / "half.mar", age_s if file_age_s is None else file_age_s)
    set_age(place, age_s)
    return place


def set_age(place, age_s):
    then_s = time.time() - age_s  # noqa: TID251 - what file systems keep
    os.utime(place, (then_s, then_s))


def test_removal_takes_old_staging_folders_and_nothing_else(tmp_path, monkeypatch):
    # Given, beside a folder that another user has closed
    old = ABANDONED_AFTER_S + 60
    closed = make(tmp_path, ".download-aa", old)
    look = Path.iterdir

    def iterdir(path):
        if path == closed:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return look(path)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    abandoned = [make(tmp_path, ".unpack-a", old), make(tmp_path, ".download-b", old)]
    kept = [
        closed,
        make(tmp_path, ".unpack-young", 60),
        make(tmp_path, ".download-busy", old, file_age_s=60),
        make(tmp_path, "0" * 64, old),
        make(tmp_path, ".mine", old),
    ]
    outside = make(tmp_path.with_name(f"{tmp_path.name}-outside"), ".unpack-x", old)
    (tmp_path / ".unpack-link").symlink_to(outside)
    # When
    remove_abandoned(tmp_path)
    # Then
    assert not any(place.exists() for place in abandoned)
    assert all(place.exists() for place in [*kept, outside])


def test_nothing_is_removed_from_under_an_unpacking_that_a_stop_abandons(tmp_path):
    # Given
    path, work_dir = write_zip(tmp_path / "echo.mar"), tmp_path / "work"
    # When
    command = [sys.executable, "-c", STOPS, path, work_dir]
    ended = subprocess.run(command, check=True, capture_output=True, text=True, timeout=20)
    # Then: a thread that was still at it might have taken the rest for a whole model
    assert ended.stderr == ""
    [folder] = work_dir.glob(".unpack-*")
    assert (folder / "content" / "half").exists()

    # And the folder goes with the others that are not needed
    old_s = time.time() - ABANDONED_AFTER_S - 60  # noqa: TID251 - what file systems keep
    for place in (*folder.rglob("*"), folder):
        os.utime(place, (old_s, old_s))
    remove_abandoned(work_dir)
    assert not folder.exists()


async def unpacked(folder, files=FILES, **more):
    """A model whose archive was unpacked long ago, and the folder of that."""
    store = folder / "store"
    store.mkdir(exist_ok=True)
    path = write_zip(store / "echo.mar", files)
    spec = make_spec(model_url=path.name, archive_sha256=hash_archive(path), **more)
    place = (await files_of(folder).prepare(spec)).model_dir.parent
    set_age(place, KEPT_S + 60)
    return spec, place


async def test_unpacked_archive_goes_when_it_was_not_needed_for_long(tmp_path):
    # Given
    spec, needed = await unpacked(tmp_path)
    kept = [
        needed,
        make(tmp_path / "work", f"{'a' * 64}.{'0' * 16}.0", KEPT_S - 60),
        make(tmp_path / "work", "my-notes", KEPT_S + 60),
        make(tmp_path / "store", "c" * 64, KEPT_S + 60),
    ]
    unused = [
        make(tmp_path / "work", f"{'d' * 64}.{'0' * 16}.0", KEPT_S + 60),
        make(tmp_path / "work", "e" * 64, KEPT_S + 60),
    ]
    # When
    files_of(tmp_path).sweep([spec])
    # Then what is registered stays, for as long again, and nothing is half removed
    assert all(place.exists() for place in kept)
    assert not any(place.exists() for place in unused)
    assert {*(tmp_path / "work").iterdir()} == {*kept[:3]}
    files_of(tmp_path).sweep([])
    assert needed.exists()


async def test_environment_goes_when_no_registered_model_needs_it(tmp_path):
    # Given two environments, one of them for a registered model's requirements
    spec, _ = await unpacked(tmp_path, {"requirements.txt": b"numpy"}, manifest=MANIFEST)
    folder = tmp_path / "work" / "environments"
    needed = make(folder, environment_name("numpy", spec.archive_sha256), KEPT_S + 60)
    unused = make(folder, "e" * 64, KEPT_S + 60)
    young = make(folder, "f" * 64, KEPT_S - 60)
    # When
    files_of(tmp_path, install_py_dep_per_model=True).sweep([spec])
    # Then
    assert [place.exists() for place in (needed, unused, young)] == [True, False, True]

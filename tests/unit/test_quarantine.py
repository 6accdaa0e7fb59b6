"""What killed processes leave behind is cleared, what others work on is not."""

import os
import time

from batching.settings import Settings
from workers.model_files import ModelFiles
from workers.quarantine import ABANDONED_AFTER_S, sweep


def make(folder, name, age_s, file_age_s=None):
    place = folder / name
    place.mkdir(parents=True)
    (place / "half.mar").write_bytes(b"half")
    now_s = time.time()  # noqa: TID251 - what file systems keep
    file_s = now_s - (age_s if file_age_s is None else file_age_s)
    os.utime(place / "half.mar", (file_s, file_s))
    os.utime(place, (now_s - age_s, now_s - age_s))
    return place


def test_sweep_removes_old_quarantine_and_nothing_else(tmp_path):
    # Given
    old = ABANDONED_AFTER_S + 60
    abandoned = [make(tmp_path, ".unpack-a", old), make(tmp_path, ".download-b", old)]
    kept = [
        make(tmp_path, ".unpack-young", 60),
        make(tmp_path, ".download-busy", old, file_age_s=60),
        make(tmp_path, "0" * 64, old),
        make(tmp_path, ".mine", old),
    ]
    outside = make(tmp_path.with_name(f"{tmp_path.name}-outside"), ".unpack-x", old)
    (tmp_path / ".unpack-link").symlink_to(outside)
    # When
    swept = sweep(tmp_path)
    # Then
    assert sorted(swept) == sorted(abandoned)
    assert not any(place.exists() for place in abandoned)
    assert all(place.exists() for place in [*kept, outside])


def test_node_sweeps_both_of_its_folders(tmp_path):
    # Given
    old = ABANDONED_AFTER_S + 60
    places = [
        make(tmp_path / "work", ".unpack-a", old),
        make(tmp_path / "store", ".download-b", old),
    ]
    settings = Settings(work_dir=tmp_path / "work", model_store=tmp_path / "store")
    # When
    ModelFiles(settings).sweep()
    # Then
    assert not any(place.exists() for place in places)


def test_node_without_its_folders_has_nothing_to_sweep(tmp_path):
    ModelFiles(Settings(work_dir=tmp_path / "none", model_store=None)).sweep()

"""Archives: what is read from good ones, and where they are unpacked."""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from batching.errors import InvalidModel
from tests.unit.workers.archives.archives import (
    FILES,
    MANIFEST,
    everything_in,
    tar_of_a_folder,
    write_folder,
    write_tar,
    write_zip,
)
from workers.archives import model_archive
from workers.archives.model_archive import (
    find_unpacked,
    hash_archive,
    inspect_archive,
    read_model_config,
    unpack_archive,
)

ARCHIVES = {
    "mar": lambda folder: write_zip(folder / "echo.mar"),
    "tgz": lambda folder: write_tar(folder / "echo.tar.gz"),
    "wrapped tgz": lambda folder: write_tar(folder / "echo.tgz", top="echo/"),
    "dotted tar": lambda folder: write_tar(folder / "echo.tar", top="./", mode="w"),
    "tar of a folder": lambda folder: tar_of_a_folder(folder / "echo.tgz"),
    "legacy .model": lambda folder: write_tar(folder / "echo.model"),
    "folder": lambda folder: write_folder(folder / "echo"),
    "wrapped folder": lambda folder: write_folder(folder / "outer" / "echo").parent,
}


@pytest.mark.parametrize("write", ARCHIVES.values(), ids=ARCHIVES)
def test_archive_is_described_and_unpacked_in_every_format(write, tmp_path):
    # Given
    path = write(tmp_path)
    work_dir = tmp_path / "work"
    # When
    info = inspect_archive(path, "echo-url", work_dir)
    model_dir = unpack_archive(path, info.sha256, work_dir)
    # Then
    assert (info.url, info.model_name, info.model_version) == ("echo-url", "echo", "2.1")
    assert (info.handler, info.runtime) == ("echo.py:handle", "python")
    assert info.manifest == MANIFEST
    assert info.config == {"batchSize": 4}
    assert everything_in(model_dir) == [
        "MAR-INF",
        "MAR-INF/MANIFEST.json",
        "echo.py",
        "model-config.yaml",
    ]
    assert (model_dir / "echo.py").read_bytes() == FILES["echo.py"]
    assert [path.name for path in work_dir.iterdir()] == [f"{info.sha256}.unused.0"]


def test_archive_without_manifest_is_named_after_its_file_or_link(tmp_path):
    # Given
    write_zip(tmp_path / "blob", {"handler.py": b""}, manifest=None)
    path = tmp_path / "res-net.18 b.mar"
    path.symlink_to("blob")
    # When
    info = inspect_archive(path, path.name, tmp_path / "work")
    # Then
    assert (info.model_name, info.model_version) == ("res_net_18_b", "1.0")
    assert (info.manifest, info.handler, info.config) == (None, "", {})


BAD_MANIFESTS = {
    "no JSON": (
        "{ no json",
        "Failed to parse signature.json. MANIFEST.json is not JSON: Expecting property name "
        "enclosed in double quotes: line 1 column 3 (char 2).",
    ),
    "no object": (
        "[]",
        "Failed to parse signature.json. MANIFEST.json is not a JSON object.",
    ),
    "deep": (
        "[" * 100_000,
        "Failed to parse signature.json. MANIFEST.json is not JSON: maximum recursion depth "
        "exceeded while decoding a JSON array from a unicode string.",
    ),
    "no model": ({"runtime": "python"}, "Model name is not defined."),
    "null model": ({"model": None}, "Missing Model entry in manifest file."),
    "no name": ({"model": {"modelVersion": "1"}}, "Model name is not defined."),
    "null version": (
        {"model": {"modelName": "m", "modelVersion": None}},
        "Model version is not defined.",
    ),
    "runtime": (
        {"runtime": "perl", "model": {"modelName": "m"}},
        "Runtime is not defined or invalid.",
    ),
}


@pytest.mark.parametrize(("manifest", "text"), BAD_MANIFESTS.values(), ids=BAD_MANIFESTS)
def test_manifest_is_refused_with_torchserves_text(manifest, text, tmp_path):
    # Given
    path = write_zip(tmp_path / "echo.mar", manifest=manifest)
    # When / Then
    with pytest.raises(InvalidModel) as caught:
        inspect_archive(path, "echo.mar", tmp_path / "work")
    assert caught.value.message == text
    assert everything_in(tmp_path / "work") == []


BAD_CONFIGS = {
    "missing": None,
    "object": b"!!python/object/apply:os.system ['true']",
    "broken": b"a: [",
    "list": b"- 1",
    "huge": b"a: " + b"x" * (1024**2 + 1),
    "date as a key": b"2026-11-20: a",
    "alias of what holds it": b"a: &a [*a]",
    "number of 5000 digits": b"a: 0x" + b"f" * 5000,
}


@pytest.mark.parametrize("config", BAD_CONFIGS.values(), ids=BAD_CONFIGS)
def test_model_config_is_refused_unless_it_is_a_plain_mapping(config, tmp_path):
    # Given
    files = FILES | {"model-config.yaml": config} if config else {"echo.py": b""}
    path = write_zip(tmp_path / "echo.mar", files)
    # When / Then
    with pytest.raises(InvalidModel, match=r"model-config\.yaml"):
        inspect_archive(path, "echo.mar", tmp_path / "work")


def test_model_config_keeps_yaml_values_for_the_worker_and_json_for_the_registry(tmp_path):
    # Given
    path = write_zip(tmp_path / "echo.mar", FILES | {"model-config.yaml": b"day: 2026-11-20\n1: a"})
    # When
    info = inspect_archive(path, "echo.mar", tmp_path / "work")
    config = read_model_config(unpack_archive(path, info.sha256, tmp_path / "work"), MANIFEST)
    # Then
    assert info.config == {"day": "2026-11-20", "1": "a"}
    assert config["day"].year == 2026
    assert config[1] == "a"


def test_archive_is_refused_when_it_changed_since_registration(tmp_path):
    # Given
    path = write_zip(tmp_path / "echo.mar")
    sha256 = hash_archive(path)
    write_zip(path, FILES | {"echo.py": b"evil"})
    # When / Then
    with pytest.raises(InvalidModel, match="SHA-256 differs"):
        unpack_archive(path, sha256, tmp_path / "work")
    assert find_unpacked(sha256, tmp_path / "work") is None


def test_folder_with_a_link_out_of_it_is_refused(tmp_path):
    # Given
    (tmp_path / "secret").touch()
    path = write_folder(tmp_path / "echo")
    (path / "echo.py").unlink()
    (path / "echo.py").symlink_to(tmp_path / "secret")
    # When / Then
    with pytest.raises(InvalidModel, match="link out of it"):
        inspect_archive(path, "echo", tmp_path / "work")


class Volume:
    """A volume as Kubernetes mounts it: links through `..data`, which an update swaps at once."""

    def __init__(self, store):
        self._store = store
        self.updates = 0

    def update(self, write, text):
        self.updates += 1
        generation = self._store / f"..2026_{self.updates}"
        generation.mkdir()
        target = write(generation / "blob", FILES | {"echo.py": text})
        new = self._store / "..data_tmp"
        new.symlink_to(generation.name)
        new.rename(self._store / "..data")
        if (old := self._store / f"..2026_{self.updates - 1}").exists():
            shutil.rmtree(old)
        place = self._store / ("echo.mar" if target.is_file() else "echo")
        if not place.is_symlink():
            place.symlink_to("..data/blob")
        return place


@pytest.mark.parametrize("write", [write_zip, write_folder])
def test_link_whose_target_was_swapped_is_another_archive(write, tmp_path):
    # Given
    volume, work_dir = Volume(tmp_path), tmp_path / "work"
    path = volume.update(write, b"old")
    old = inspect_archive(path, "url", work_dir)
    unpack_archive(path, old.sha256, work_dir)

    # When
    assert volume.update(write, b"new") == path

    # Then
    new = inspect_archive(path, "url", work_dir)
    assert (new.sha256 == old.sha256, new.model_name) == (False, "echo")
    unpacked = unpack_archive(path, new.sha256, work_dir)
    assert (unpacked / "echo.py").read_bytes() == b"new"
    # and the old one is what was registered, or it is refused
    if write is write_zip:
        assert (find_unpacked(old.sha256, work_dir) / "echo.py").read_bytes() == b"old"
    else:
        with pytest.raises(InvalidModel, match="SHA-256 differs"):
            unpack_archive(path, old.sha256, work_dir)


def test_archive_that_is_swapped_while_it_is_read_is_refused_and_not_unpacked(
    tmp_path, monkeypatch
):
    # Given a link as Kubernetes mounts files: an update swaps its target
    path, work_dir = tmp_path / "echo.mar", tmp_path / "work"
    old = write_zip(tmp_path / "old")
    new = write_zip(tmp_path / "new", FILES | {"echo.py": b"new"})

    def point_to(target):
        path.unlink(missing_ok=True)
        path.symlink_to(target)

    def hash_and_swap(place):
        sha256 = hash_archive(place)
        point_to(new)
        return sha256

    monkeypatch.setattr(model_archive, "hash_archive", hash_and_swap)
    sha256 = hash_archive(old)
    # When / Then
    for read in (
        lambda: inspect_archive(path, "url", work_dir),
        lambda: unpack_archive(path, sha256, work_dir),
    ):
        point_to(old)
        with pytest.raises(InvalidModel, match=r"echo\.mar was replaced while it was read"):
            read()
    assert find_unpacked(sha256, work_dir) is None
    assert everything_in(work_dir) == []


def test_racing_unpackers_agree_on_one_folder(tmp_path):
    # Given
    path = write_zip(tmp_path / "echo.mar", FILES | {"weights": os.urandom(3_000_000)})
    sha256 = hash_archive(path)
    script = (
        "import sys; from pathlib import Path\n"
        "from workers.archives.model_archive import unpack_archive\n"
        "sys.stdin.readline()\n"
        f"print(unpack_archive(Path({str(path)!r}), {sha256!r}, Path({str(tmp_path / 'work')!r})))"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    # When
    with ThreadPoolExecutor() as pool:
        answers = list(pool.map(lambda process: process.communicate("go\n")[0], processes))
    # Then
    place = tmp_path / "work" / f"{sha256}.unused.0"
    assert answers == [f"{place / 'model'}\n"] * 3
    assert list((tmp_path / "work").iterdir()) == [place]


@pytest.mark.parametrize("sha256", ["", "..", "../../etc", "/etc", "x" * 64, "A" * 64, "0" * 63])
def test_b08_folder_of_an_archive_is_found_by_a_hash_only(sha256, tmp_path):
    with pytest.raises(InvalidModel):
        find_unpacked(sha256, tmp_path)

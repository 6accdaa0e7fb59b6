"""Archives: what is read from good ones, and that bad ones leave nothing behind."""

import io
import json
import os
import stat
import subprocess
import sys
import tarfile
import zipfile
from concurrent.futures import ThreadPoolExecutor

import pytest

from batching.errors import InternalError, InvalidModel
from workers import archive_entries
from workers.archive import (
    find_unpacked,
    hash_archive,
    inspect_archive,
    read_model_config,
    unpack_archive,
)

MANIFEST = {
    "createdOn": "20/11/2026 10:00:00",
    "runtime": "python",
    "model": {
        "modelName": "echo",
        "modelVersion": "2.1",
        "handler": "echo.py:handle",
        "configFile": "model-config.yaml",
    },
}
FILES = {
    "echo.py": b"def handle(data, context): return data\n",
    "model-config.yaml": b"batchSize: 4",
}


def write_zip(path, files=FILES, manifest=MANIFEST):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, content in files.items():
            bundle.writestr(name, content)
        if manifest is not None:
            text = manifest if isinstance(manifest, str) else json.dumps(manifest)
            bundle.writestr("MAR-INF/MANIFEST.json", text)
    return path


def write_tar(path, files=FILES, manifest=MANIFEST, top="", mode="w:gz"):
    with tarfile.open(path, mode) as bundle:
        for name, content in {**files, "MAR-INF/MANIFEST.json": json.dumps(manifest)}.items():
            octets = content.encode() if isinstance(content, str) else content
            entry = tarfile.TarInfo(top + name)
            entry.size = len(octets)
            bundle.addfile(entry, io.BytesIO(octets))
    return path


def write_folder(path, files=FILES, manifest=MANIFEST):
    for name, content in {**files, "MAR-INF/MANIFEST.json": json.dumps(manifest)}.items():
        place = path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def write_linked_zip(path, target):
    with zipfile.ZipFile(path, "w") as bundle:
        entry = zipfile.ZipInfo("link")
        entry.external_attr = (stat.S_IFLNK | 0o777) << 16
        bundle.writestr(entry, target)
    return path


def write_special_tar(path, kind):
    with tarfile.open(path, "w:gz") as bundle:
        entry = tarfile.TarInfo("special")
        entry.type = kind
        entry.linkname = "/etc/passwd"
        bundle.addfile(entry)
    return path


def everything_in(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


ARCHIVES = {
    "mar": lambda folder: write_zip(folder / "echo.mar"),
    "tgz": lambda folder: write_tar(folder / "echo.tar.gz"),
    "wrapped tgz": lambda folder: write_tar(folder / "echo.tgz", top="echo/"),
    "dotted tar": lambda folder: write_tar(folder / "echo.tar", top="./", mode="w"),
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
    info = inspect_archive(path, "echo-url")
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
    assert [path.name for path in work_dir.iterdir()] == [info.sha256]


def test_inspecting_writes_nothing(tmp_path):
    # Given
    path = write_zip(tmp_path / "echo.mar")

    # When
    inspect_archive(path, "echo.mar")

    # Then
    assert everything_in(tmp_path) == ["echo.mar"]


def test_archive_without_manifest_is_named_after_its_file(tmp_path):
    # Given
    path = write_zip(tmp_path / "res-net.18 b.mar", {"handler.py": b""}, manifest=None)

    # When
    info = inspect_archive(path, path.name)

    # Then
    assert (info.model_name, info.model_version) == ("res_net_18_b", "1.0")
    assert (info.manifest, info.handler, info.config) == (None, "", {})


MODEL = MANIFEST["model"]
BAD_MANIFESTS = {
    "no JSON": ("{", "Failed to parse signature.json."),
    "no object": ("[]", "Failed to parse signature.json."),
    "deep": ("[" * 100_000, "Failed to parse signature.json."),
    "no model": ({"runtime": "python"}, "Missing Model entry in manifest file."),
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
        inspect_archive(path, "echo.mar")
    assert caught.value.message == text


def test_manifest_without_version_and_runtime_gets_the_defaults(tmp_path):
    # Given
    path = write_zip(tmp_path / "echo.mar", manifest={"model": {"modelName": "m"}})

    # When
    info = inspect_archive(path, "echo.mar")

    # Then
    assert (info.model_version, info.runtime) == ("1.0", "python")


BAD_CONFIGS = {
    "object": b"!!python/object/apply:os.system ['true']",
    "broken": b"a: [",
    "list": b"- 1",
    "huge": b"a: " + b"x" * (1024**2 + 1),
}


@pytest.mark.parametrize("config", BAD_CONFIGS.values(), ids=BAD_CONFIGS)
def test_model_config_is_refused_unless_it_is_a_plain_mapping(config, tmp_path):
    # Given
    path = write_zip(tmp_path / "echo.mar", FILES | {"model-config.yaml": config})

    # When / Then
    with pytest.raises(InvalidModel, match=r"model-config\.yaml"):
        inspect_archive(path, "echo.mar")


def test_model_config_is_refused_when_it_is_missing(tmp_path):
    # Given
    path = write_zip(tmp_path / "echo.mar", {"echo.py": b""})

    # When / Then
    with pytest.raises(InvalidModel, match=r"does not hold"):
        inspect_archive(path, "echo.mar")


def test_model_config_keeps_yaml_values_for_the_worker_and_json_for_the_registry(tmp_path):
    # Given
    path = write_zip(tmp_path / "echo.mar", FILES | {"model-config.yaml": b"day: 2026-11-20\n1: a"})

    # When
    info = inspect_archive(path, "echo.mar")
    config = read_model_config(unpack_archive(path, info.sha256, tmp_path / "work"), MANIFEST)

    # Then
    assert info.config == {"day": "2026-11-20", "1": "a"}
    assert config["day"].year == 2026
    assert config[1] == "a"


ESCAPES = ["../evil", "a/../../evil", "/tmp/evil", "C:evil", "..\\evil", "../work-evil/x"]


@pytest.mark.parametrize("name", ESCAPES)
@pytest.mark.parametrize("write", [write_zip, write_tar])
def test_entry_that_escapes_is_refused_and_leaves_nothing(name, write, tmp_path):
    # Given
    path = write(tmp_path / ("bad.mar" if write is write_zip else "bad.tgz"), {name: b"evil"})

    # When / Then
    with pytest.raises(InternalError) as caught:
        inspect_archive(path, "the-url")
    assert caught.value.message == "Failed to save model: the-url"
    with pytest.raises(InternalError, match="Failed to save model"):
        unpack_archive(path, hash_archive(path), tmp_path / "work")
    assert everything_in(tmp_path) == [path.name, "work"]


def write_duplicate(path):
    with zipfile.ZipFile(path, "w") as bundle:
        bundle.writestr("a.py", b"1")
        with pytest.warns(UserWarning, match="Duplicate"):
            bundle.writestr("a.py", b"2")
    return path


def write_lying_zip(path):
    """A zip whose header says 10 bytes where 1000 are."""
    write_zip(path, {"a.txt": os.urandom(1000)}, manifest=None)
    content = path.read_bytes()
    assert content.count((1000).to_bytes(4, "little")) >= 2
    path.write_bytes(content.replace((1000).to_bytes(4, "little"), (10).to_bytes(4, "little")))
    return path


def write_pax_bomb(path):
    """A tar.gz whose extended header is 64 MiB of zeros, read in one piece by tarfile."""
    with tarfile.open(path, "w:gz") as bundle:
        entry = tarfile.TarInfo("header")
        entry.type = tarfile.XHDTYPE
        entry.size = 64 * 1024**2
        bundle.fileobj.write(entry.tobuf(tarfile.USTAR_FORMAT))
        for _ in range(64):
            bundle.fileobj.write(bytes(1024**2))
    return path


def write_sparse_tar(path):
    with tarfile.open(path, "w:gz") as bundle:
        entry = tarfile.TarInfo("sparse")
        entry.type = tarfile.GNUTYPE_SPARSE
        bundle.addfile(entry)
    return path


many = {f"{number}.txt": b"" for number in range(archive_entries.MAX_ENTRIES + 1)}
BAD_ARCHIVES = {
    "zip link": (lambda f: write_linked_zip(f / "x.mar", "/etc/passwd"), "a link"),
    "tar link": (lambda f: write_special_tar(f / "x.tgz", tarfile.SYMTYPE), "a link"),
    "tar hard link": (lambda f: write_special_tar(f / "x.tgz", tarfile.LNKTYPE), "a link"),
    "tar device": (lambda f: write_special_tar(f / "x.tgz", tarfile.CHRTYPE), "a link"),
    "tar fifo": (lambda f: write_special_tar(f / "x.tgz", tarfile.FIFOTYPE), "a link"),
    "tar sparse": (lambda f: write_sparse_tar(f / "x.tgz"), "a link|damaged"),
    "many in zip": (lambda f: write_zip(f / "x.mar", many), "more than 2000 entries"),
    "many in tar": (lambda f: write_tar(f / "x.tgz", many), "more than 2000 entries"),
    "zip ratio": (lambda f: write_zip(f / "x.mar", {"a": bytes(3_000_000)}), "100 times"),
    "tar ratio": (lambda f: write_tar(f / "x.tgz", {"a": bytes(9_000_000)}), "100 times"),
    "pax bomb": (lambda f: write_pax_bomb(f / "x.tgz"), "oversized|100 times"),
    "twice": (lambda f: write_duplicate(f / "x.mar"), "there twice"),
    "case": (lambda f: write_zip(f / "x.mar", {"A.py": b"", "a.py": b""}), "clashes"),
    "folder case": (lambda f: write_zip(f / "x.mar", {"A/x": b"", "a/y": b""}), "clashes"),
    "file is folder": (lambda f: write_zip(f / "x.mar", {"a": b"", "a/b": b""}), "clashes"),
    "lying size": (lambda f: write_lying_zip(f / "x.mar"), "larger|damaged|cut short"),
    "no zip": (lambda f: write_tar(f / "x.mar"), "not a zip"),
    "no tar": (lambda f: write_zip(f / "x.tgz"), "not a tar"),
}


@pytest.mark.parametrize(("write", "text"), BAD_ARCHIVES.values(), ids=BAD_ARCHIVES)
def test_bad_archive_is_refused_and_leaves_nothing(write, text, tmp_path):
    # Given
    path = write(tmp_path)

    # When / Then
    with pytest.raises(InvalidModel, match=text):
        inspect_archive(path, "x")
    with pytest.raises(InvalidModel, match=text):
        unpack_archive(path, hash_archive(path), tmp_path / "work")
    assert everything_in(tmp_path) == ["work", path.name]


def test_zip_with_a_huge_directory_is_refused_before_it_is_read(tmp_path, monkeypatch):
    # Given
    path = write_zip(tmp_path / "x.mar")
    monkeypatch.setattr(archive_entries, "MAX_ZIP_DIRECTORY_BYTES", 10)
    monkeypatch.setattr(zipfile.ZipFile, "_RealGetContents", None)  # would fail if called

    # When / Then
    with pytest.raises(InvalidModel, match="more than 2000 entries"):
        inspect_archive(path, "x.mar")


def test_archive_over_the_total_size_is_refused(tmp_path, monkeypatch):
    # Given
    monkeypatch.setattr(archive_entries, "MAX_UNPACKED_BYTES", 1000)
    path = write_zip(tmp_path / "x.mar", {"a": b"a" * 600, "b": b"b" * 600})

    # When / Then
    with pytest.raises(InvalidModel, match="unpacks to more than"):
        inspect_archive(path, "x.mar")


def test_truncated_archive_is_refused(tmp_path):
    # Given
    path = write_tar(tmp_path / "x.tgz", {"a": os.urandom(100_000)})
    path.write_bytes(path.read_bytes()[:50_000])

    # When / Then
    with pytest.raises(InvalidModel, match="damaged"):
        inspect_archive(path, "x.tgz")


def test_archive_is_refused_when_it_changed_since_registration(tmp_path):
    # Given
    path = write_zip(tmp_path / "echo.mar")
    sha256 = inspect_archive(path, "echo.mar").sha256
    write_zip(path, FILES | {"echo.py": b"evil"})

    # When / Then
    with pytest.raises(InvalidModel, match="SHA-256 differs"):
        unpack_archive(path, sha256, tmp_path / "work")
    assert find_unpacked(sha256, tmp_path / "work") is None


def test_folder_with_a_link_out_of_it_is_refused(tmp_path):
    # Given
    (tmp_path / "secret").mkdir()
    path = write_folder(tmp_path / "echo")
    (path / "link").symlink_to(tmp_path / "secret")

    # When / Then
    with pytest.raises(InvalidModel, match="link out of it"):
        inspect_archive(path, "echo")


def test_unpacking_twice_finds_the_first_result(tmp_path):
    # Given
    path = write_zip(tmp_path / "echo.mar")
    sha256 = hash_archive(path)
    first = unpack_archive(path, sha256, tmp_path / "work")
    path.unlink()

    # When
    second = unpack_archive(path, sha256, tmp_path / "work")

    # Then
    assert second == first == find_unpacked(sha256, tmp_path / "work")


def test_racing_unpackers_agree_on_one_folder(tmp_path):
    # Given
    path = write_zip(tmp_path / "echo.mar", FILES | {"weights": os.urandom(3_000_000)})
    sha256 = hash_archive(path)
    script = (
        "import sys; from pathlib import Path; from workers.archive import unpack_archive\n"
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
    assert answers == [f"{tmp_path / 'work' / sha256}\n"] * 3
    assert [entry.name for entry in (tmp_path / "work").iterdir()] == [sha256]


def test_folder_hash_changes_with_any_content(tmp_path):
    # Given
    path = write_folder(tmp_path / "echo")
    before = hash_archive(path)

    # When
    (path / "echo.py").write_bytes(FILES["echo.py"].upper())

    # Then
    assert hash_archive(path) != before

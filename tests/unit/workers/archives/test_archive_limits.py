"""Bad archives are refused, and nothing is left behind."""

import gzip
import os
import resource
import tarfile
import zipfile

import pytest

from batching.errors import InternalError, InvalidModel
from tests.unit.workers.archives.archives import (
    everything_in,
    write_linked_zip,
    write_special_tar,
    write_tar,
    write_zip,
)
from workers.archives import model_archive
from workers.archives.model_archive import (
    hash_archive,
    inspect_archive,
    unpack_archive,
    unpack_entries,
)

ESCAPES = ["../evil", "a/../../evil", "/tmp/evil", "..\\evil", "../work-evil/x"]


@pytest.mark.parametrize("name", ESCAPES)
@pytest.mark.parametrize("write", [write_zip, write_tar])
def test_b09_entry_that_escapes_is_refused_and_leaves_nothing(name, write, tmp_path):
    # Given
    path = write(tmp_path / ("bad.mar" if write is write_zip else "bad.tgz"), {name: b"evil"})
    # When / Then
    with pytest.raises(InternalError) as caught:
        inspect_archive(path, "the-url", tmp_path / "work")
    assert caught.value.message == "Failed to save model: the-url"
    with pytest.raises(InternalError, match="Failed to save model"):
        unpack_archive(path, hash_archive(path), tmp_path / "work")
    assert everything_in(tmp_path) == [path.name, "work"]


def test_b09_name_with_a_nul_is_refused(tmp_path):
    # Given
    path = tmp_path / "x.tgz"
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as bundle:
        bundle.addfile(tarfile.TarInfo("\u00e9\0.py"))
    # When / Then
    with pytest.raises(InternalError, match="Failed to save model"):
        inspect_archive(path, "x.tgz", tmp_path / "work")


NAMES = ["Model.py", "model.py", "MODEL/x", "model/y", "C:drive", "a:b.txt", "back\\slash", " . "]


@pytest.mark.parametrize("write", [write_zip, write_tar])
def test_names_are_as_many_as_this_file_system_tells_apart(write, tmp_path):
    # Given
    path = write(
        tmp_path / ("x.mar" if write is write_zip else "x.tgz"),
        {name: name.encode() for name in NAMES},
        manifest={"model": {"modelName": "x"}},
    )
    # When
    info = inspect_archive(path, "x", tmp_path / "work")
    folder = unpack_archive(path, info.sha256, tmp_path / "work")
    # Then
    assert [(folder / name).read_bytes().decode() for name in NAMES] == NAMES


def test_name_that_is_taken_or_impossible_on_this_file_system_is_told(tmp_path):
    # Given a folder in which two names are one, as where case is ignored
    path = write_zip(tmp_path / "x.mar", {"code/Model.py": b""}, manifest=None)
    folder = tmp_path / "folder"
    (folder / "code").mkdir(parents=True)
    (folder / "code" / "Model.py").touch()
    with pytest.raises(InvalidModel, match=r"'code/Model\.py' clashes with another one"):
        unpack_entries(path, folder)

    # And a name that is too long for it
    path = write_zip(tmp_path / "x.mar", {f"{'n' * 256}.py": b""}, manifest=None)
    with pytest.raises(InvalidModel, match=r"nnn\.py' .*cannot be a file here: File name"):
        inspect_archive(path, "x", tmp_path / "work")


def write_duplicate(path):
    with zipfile.ZipFile(path, "w") as bundle:
        bundle.writestr("a.py", b"1")
        with pytest.warns(UserWarning, match="Duplicate"):
            bundle.writestr("a.py", b"2")
    return path


def write_packed_zip(path, method):
    """A zip with one more entry, a MiB of zeros, which this method packs to a few bytes."""
    write_zip(path)
    with zipfile.ZipFile(path, "a", method) as bundle:
        bundle.writestr("weights.bin", bytes(1024**2))
    return path


def write_lying_zip(path):
    """A zip whose header says 10 bytes where 1000 are."""
    write_zip(path, {"a.txt": os.urandom(1000)}, manifest=None)
    content = path.read_bytes()
    assert content.count((1000).to_bytes(4, "little")) >= 2
    path.write_bytes(content.replace((1000).to_bytes(4, "little"), (10).to_bytes(4, "little")))
    return path


def write_damaged_zip(path):
    """A zip whose content is not what its checksum says."""
    content = os.urandom(100)
    write_zip(path, {"weights": content})
    path.write_bytes(path.read_bytes().replace(content, content[::-1]))
    return path


def write_negative_tar(path):
    """A tar.gz whose size is in base 256, as GNU tar writes what octal digits cannot say."""
    entry = tarfile.TarInfo("folder/")
    entry.type = tarfile.DIRTYPE
    header = bytearray(entry.tobuf(tarfile.GNU_FORMAT))
    header[124:136] = tarfile.itn(-(2**60), 12, tarfile.GNU_FORMAT)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    with gzip.open(path, "wb") as stream:
        stream.write(header + bytes(1024))
    return path


def write_digits_tar(path):
    """A tar whose extended header is of a length that Python refuses to make a number of."""
    entry = tarfile.TarInfo("header")
    entry.type = tarfile.XHDTYPE
    content = b"9" * 5000 + b" a=b\n"
    entry.size = len(content)
    path.write_bytes(entry.tobuf(tarfile.USTAR_FORMAT) + content.ljust(5120, b"\0") + bytes(1024))
    return path


def write_huge_header(path):
    """A tar.gz that claims an extended header of a GiB, which gzip could pack to a few MB."""
    entry = tarfile.TarInfo("header")
    entry.type = tarfile.XHDTYPE
    entry.size = 1024**3
    path.write_bytes(gzip.compress(entry.tobuf(tarfile.USTAR_FORMAT) + bytes(1024)))
    return path


def cut_off(path):
    write_tar(path, {"a": os.urandom(100_000)})
    path.write_bytes(path.read_bytes()[:50_000])
    return path


def write_sparse_tar(path):
    with tarfile.open(path, "w:gz") as bundle:
        entry = tarfile.TarInfo("sparse")
        entry.type = tarfile.GNUTYPE_SPARSE
        bundle.addfile(entry)
    return path


MAX_ENTRIES = 100  # so many are soon written
many = {f"{number}.txt": b"" for number in range(MAX_ENTRIES + 1)}
BAD_ARCHIVES = {
    "zip link": (lambda f: write_linked_zip(f / "x.mar", "/etc/passwd"), "a link"),
    "tar link": (lambda f: write_special_tar(f / "x.tgz", tarfile.SYMTYPE), "a link"),
    "tar hard link": (lambda f: write_special_tar(f / "x.tgz", tarfile.LNKTYPE), "a link"),
    "tar device": (lambda f: write_special_tar(f / "x.tgz", tarfile.CHRTYPE), "a link"),
    "tar fifo": (lambda f: write_special_tar(f / "x.tgz", tarfile.FIFOTYPE), "a link"),
    "tar sparse": (lambda f: write_sparse_tar(f / "x.tgz"), "a link|damaged"),
    "many in zip": (lambda f: write_zip(f / "x.mar", many), "more than 100 entries"),
    "many in tar": (lambda f: write_tar(f / "x.tgz", many), "more than 100 entries"),
    "zip bzip2": (lambda f: write_packed_zip(f / "x.mar", zipfile.ZIP_BZIP2), "than deflate"),
    "zip lzma": (lambda f: write_packed_zip(f / "x.mar", zipfile.ZIP_LZMA), "than deflate"),
    "negative": (lambda f: write_negative_tar(f / "x.tgz"), "negative size"),
    "digits": (lambda f: write_digits_tar(f / "x.tar"), "damaged"),
    "header": (lambda f: write_huge_header(f / "x.tgz"), "a header of 1073741824 bytes"),
    "twice": (lambda f: write_duplicate(f / "x.mar"), "clashes"),
    "file is folder": (lambda f: write_zip(f / "x.mar", {"a": b"", "a/b": b""}), "clashes"),
    "folder is file": (lambda f: write_zip(f / "x.mar", {"a/b/c": b"", "a": b""}), "clashes"),
    "lying size": (lambda f: write_lying_zip(f / "x.mar"), "larger|damaged|cut short"),
    "damaged": (lambda f: write_damaged_zip(f / "x.mar"), "damaged"),
    "cut off": (lambda f: cut_off(f / "x.tgz"), "damaged.*file ended before"),
    "no zip": (lambda f: write_tar(f / "x.mar"), "not a zip"),
    "no tar": (lambda f: write_zip(f / "x.tgz"), "not a tar"),
}


@pytest.mark.parametrize(("write", "text"), BAD_ARCHIVES.values(), ids=BAD_ARCHIVES)
def test_b09_bad_archive_is_refused_and_leaves_nothing(write, text, tmp_path, monkeypatch):
    # Given
    monkeypatch.setattr(model_archive, "MAX_ENTRIES", MAX_ENTRIES)
    path = write(tmp_path)
    # When / Then
    with pytest.raises(InvalidModel, match=text):
        inspect_archive(path, "x", tmp_path / "work")
    with pytest.raises(InvalidModel, match=text):
        unpack_archive(path, hash_archive(path), tmp_path / "work")
    assert everything_in(tmp_path) == ["work", path.name]


def test_b09_archive_over_the_total_size_is_refused(tmp_path):
    # Given
    path = write_zip(tmp_path / "x.mar", {"a": b"a" * 600, "b": b"b" * 600})
    # When / Then
    with pytest.raises(InvalidModel, match="unpacks to more than"):
        unpack_entries(path, tmp_path / "folder", max_unpacked_bytes=1000)


def test_archive_that_cannot_be_written_has_its_cause_in_the_log_only(tmp_path, caplog):
    # Given a disk that takes no more than 10 kB, whose error names no file
    path = write_zip(tmp_path / "x.mar", {"a": os.urandom(100_000)})
    sha256, work_dir = hash_archive(path), tmp_path / "work"
    _, hard = limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    # When
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(InternalError) as caught:
            unpack_archive(path, sha256, work_dir)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    # Then
    assert caught.value.message == "Failed to save model: x.mar"
    assert f"not saved model=x.mar at={work_dir}: [Errno 27] File too large" in caplog.text
    assert everything_in(work_dir) == []

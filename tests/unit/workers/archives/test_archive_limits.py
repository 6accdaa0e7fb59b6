"""Archives that nobody should unpack: refused, and nothing left behind."""

import gzip
import os
import resource
import struct
import tarfile
import tracemalloc
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
from workers.archives import archive_entries
from workers.archives.model_archive import (
    hash_archive,
    inspect_archive,
    unpack_archive,
)

ESCAPES = ["../evil", "a/../../evil", "/tmp/evil", "C:evil", "..\\evil", "../work-evil/x"]


@pytest.mark.parametrize("name", ESCAPES)
@pytest.mark.parametrize("write", [write_zip, write_tar])
def test_b09_entry_that_escapes_is_refused_and_leaves_nothing(name, write, tmp_path):
    # Given
    path = write(tmp_path / ("bad.mar" if write is write_zip else "bad.tgz"), {name: b"evil"})

    # When / Then
    with pytest.raises(InternalError) as caught:
        inspect_archive(path, "the-url")
    assert caught.value.message == "Failed to save model: the-url"
    with pytest.raises(InternalError, match="Failed to save model"):
        unpack_archive(path, hash_archive(path), tmp_path / "work")
    assert everything_in(tmp_path) == [path.name, "work"]


def test_b09_name_with_a_nul_is_refused(tmp_path):
    # Given
    path = write_pax_tar(tmp_path / "x.tgz", "\u00e9\0.py")

    # When / Then
    with pytest.raises(InternalError, match="Failed to save model"):
        inspect_archive(path, "x.tgz")


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


def write_long_name_tar(path):
    """A plain tar, with a hole, whose name has 64 MiB, read in one piece by tarfile."""
    entry = tarfile.TarInfo("././@LongLink")
    entry.type = tarfile.GNUTYPE_LONGNAME
    entry.size = 64 * 1024**2
    with path.open("wb") as stream:
        stream.write(entry.tobuf(tarfile.GNU_FORMAT))
        stream.truncate(512 + entry.size + 1024)
    return path


def write_global_tar(path, count, size_bytes=60_000):
    """A tar of empty files, each behind a header that is to hold for all that follow it."""
    with path.open("wb") as stream:
        for number in range(count):
            header = tarfile.TarInfo("header")
            header.type = tarfile.XGLTYPE
            header.size = size_bytes
            record = b"%d %d=" % (size_bytes, number)
            content = record.ljust(size_bytes - 1, b"x") + b"\n"
            stream.write(header.tobuf(tarfile.USTAR_FORMAT))
            stream.write(content + bytes(-size_bytes % tarfile.BLOCKSIZE))
            stream.write(tarfile.TarInfo(f"{number}").tobuf(tarfile.USTAR_FORMAT))
        stream.write(bytes(2 * tarfile.BLOCKSIZE))
    return path


def write_chained_tar(path, *before):
    """A tar whose last entry has many headers of a size that one may have."""
    header = tarfile.TarInfo("header")
    header.type = tarfile.XHDTYPE
    header.size = 1024
    content = b"1023 a=".ljust(1022, b"x") + b"\n\0"
    end = tarfile.TarInfo("f").tobuf(tarfile.USTAR_FORMAT) + bytes(2 * tarfile.BLOCKSIZE)
    first = b"".join(tarfile.TarInfo(name).tobuf(tarfile.USTAR_FORMAT) for name in before)
    path.write_bytes(first + (header.tobuf(tarfile.USTAR_FORMAT) + content) * 100 + end)
    return path


def test_b09_headers_of_a_tar_are_not_kept(tmp_path):
    # Given: 12 MB of them
    path = write_global_tar(tmp_path / "x.tar", 200)

    # When
    tracemalloc.start()
    info = inspect_archive(path, "x.tar")
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    # Then
    assert info.model_name == "x"
    assert peak_bytes < 4 * 1024**2


def write_backward_tar(path):
    """A plain tar whose extended header has -512 bytes: to read so many is to read all."""
    path.write_bytes(_negative("header", tarfile.XHDTYPE, -512) + bytes(1024))
    return path


def write_negative_tar(path):
    with gzip.open(path, "wb") as stream:
        stream.write(_negative("folder/", tarfile.DIRTYPE, -(2**60)) + bytes(1024))
    return path


def _negative(name, kind, size_bytes):
    """A header with a size in base 256, as GNU tar writes what octal digits cannot say."""
    entry = tarfile.TarInfo(name)
    entry.type = kind
    header = bytearray(entry.tobuf(tarfile.GNU_FORMAT))
    header[124:136] = tarfile.itn(size_bytes, 12, tarfile.GNU_FORMAT)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


def write_digits_tar(path):
    """A tar whose extended header is of a length that Python refuses to make a number of."""
    entry = tarfile.TarInfo("header")
    entry.type = tarfile.XHDTYPE
    content = b"9" * 5000 + b" a=b\n"
    entry.size = len(content)
    path.write_bytes(entry.tobuf(tarfile.USTAR_FORMAT) + content.ljust(5120, b"\0") + bytes(1024))
    return path


def write_sparse_tar(path):
    with tarfile.open(path, "w:gz") as bundle:
        entry = tarfile.TarInfo("sparse")
        entry.type = tarfile.GNUTYPE_SPARSE
        bundle.addfile(entry)
    return path


def write_pax_tar(path, name):
    """A tar.gz of a few kB, whatever the length of this name."""
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as bundle:
        bundle.addfile(tarfile.TarInfo(name))
    return path


LONG_NAME = "a/" * 5000 + "f"
DEEP_NAME = "a/" * archive_entries.MAX_PARTS + "f"
many = {f"{number}.txt": b"" for number in range(archive_entries.MAX_ENTRIES + 1)}
BAD_ARCHIVES = {
    "zip link": (lambda f: write_linked_zip(f / "x.mar", "/etc/passwd"), "a link"),
    "tar link": (lambda f: write_special_tar(f / "x.tgz", tarfile.SYMTYPE), "a link"),
    "tar hard link": (lambda f: write_special_tar(f / "x.tgz", tarfile.LNKTYPE), "a link"),
    "tar device": (lambda f: write_special_tar(f / "x.tgz", tarfile.CHRTYPE), "a link"),
    "tar fifo": (lambda f: write_special_tar(f / "x.tgz", tarfile.FIFOTYPE), "a link"),
    "tar sparse": (lambda f: write_sparse_tar(f / "x.tgz"), "a link|damaged"),
    "many in zip": (lambda f: write_zip(f / "x.mar", many), "more than 10000 entries"),
    "many in tar": (lambda f: write_tar(f / "x.tgz", many), "more than 10000 entries"),
    "zip ratio": (lambda f: write_zip(f / "x.mar", {"a": bytes(3_000_000)}), "100 times"),
    "tar ratio": (lambda f: write_tar(f / "x.tgz", {"a": bytes(9_000_000)}), "100 times"),
    "pax bomb": (lambda f: write_pax_bomb(f / "x.tgz"), "oversized|100 times"),
    "zip bzip2": (lambda f: write_packed_zip(f / "x.mar", zipfile.ZIP_BZIP2), "than deflate"),
    "zip lzma": (lambda f: write_packed_zip(f / "x.mar", zipfile.ZIP_LZMA), "than deflate"),
    "long name": (lambda f: write_long_name_tar(f / "x.tar"), "oversized"),
    "long name in zip": (lambda f: write_zip(f / "x.mar", {LONG_NAME: b""}), "1024 characters"),
    "long name in tar": (lambda f: write_pax_tar(f / "x.tgz", LONG_NAME), "1024 characters"),
    "deep name in zip": (lambda f: write_zip(f / "x.mar", {DEEP_NAME: b""}), "64 parts"),
    "deep name in tar": (lambda f: write_pax_tar(f / "x.tgz", DEEP_NAME), "64 parts"),
    "large global": (lambda f: write_global_tar(f / "x.tar", 1, 70_000), "oversized"),
    "chain of headers": (lambda f: write_chained_tar(f / "x.tar"), "oversized"),
    "chain behind a file": (lambda f: write_chained_tar(f / "x.tar", "first"), "oversized"),
    "backwards": (lambda f: write_backward_tar(f / "x.tar"), "oversized|damaged"),
    "negative": (lambda f: write_negative_tar(f / "x.tgz"), "negative size"),
    "digits": (lambda f: write_digits_tar(f / "x.tar"), "damaged"),
    "twice": (lambda f: write_duplicate(f / "x.mar"), "there twice"),
    "case": (lambda f: write_zip(f / "x.mar", {"A.py": b"", "a.py": b""}), "clashes"),
    "folder case": (lambda f: write_zip(f / "x.mar", {"A/x": b"", "a/y": b""}), "clashes"),
    "file is folder": (lambda f: write_zip(f / "x.mar", {"a": b"", "a/b": b""}), "clashes"),
    "folder is file": (lambda f: write_zip(f / "x.mar", {"a/b/c": b"", "a": b""}), "clashes"),
    "lying size": (lambda f: write_lying_zip(f / "x.mar"), "larger|damaged|cut short"),
    "no zip": (lambda f: write_tar(f / "x.mar"), "not a zip"),
    "no tar": (lambda f: write_zip(f / "x.tgz"), "not a tar"),
}


@pytest.mark.parametrize(("write", "text"), BAD_ARCHIVES.values(), ids=BAD_ARCHIVES)
def test_b09_bad_archive_is_refused_and_leaves_nothing(write, text, tmp_path):
    # Given
    path = write(tmp_path)

    # When / Then
    with pytest.raises(InvalidModel, match=text):
        inspect_archive(path, "x")
    with pytest.raises(InvalidModel, match=text):
        unpack_archive(path, hash_archive(path), tmp_path / "work")
    assert everything_in(tmp_path) == ["work", path.name]


def with_misleading_offset(content):
    """The record's last field but one reads like the record's beginning."""
    return content[:-6] + b"PK\5\6" + content[-2:]


def with_record_64_but_no_locator(content):
    return content[:-22] + b"PK\6\6".ljust(76, b"\0") + content[-22:]


ENDS = [bytes, with_misleading_offset, with_record_64_but_no_locator]


@pytest.mark.parametrize("changed", ENDS)
def test_b09_zip_with_a_huge_directory_is_refused_before_it_is_read(changed, tmp_path, monkeypatch):
    # Given
    path = write_zip(tmp_path / "x.mar")
    path.write_bytes(changed(path.read_bytes()))
    monkeypatch.setattr(archive_entries, "MAX_ZIP_DIRECTORY_BYTES", 10)
    monkeypatch.setattr(zipfile.ZipFile, "_RealGetContents", None)  # would fail if called

    # When / Then
    with pytest.raises(InvalidModel, match="more than 10000 entries"):
        inspect_archive(path, "x.mar")


def write_zip64(path):
    """A zip with a zip64 record and its locator, as of archives of 2 GiB and more."""
    content = write_zip(path).read_bytes()
    count, size, offset = struct.unpack("<HII", content[-12:-2])
    end64 = struct.pack("<4sQHHIIQQQQ", b"PK\6\6", 44, 45, 45, 0, 0, count, count, size, offset)
    locator = struct.pack("<4sIQI", b"PK\6\7", 0, len(content) - 22, 1)
    path.write_bytes(content[:-22] + end64 + locator + content[-22:])
    return path


def test_zip64_is_read_unless_its_locator_points_elsewhere(tmp_path):
    # Given
    path = write_zip64(tmp_path / "x.mar")
    assert inspect_archive(path, "x.mar").model_name == "echo"
    content = path.read_bytes()
    path.write_bytes(content[:-34] + bytes(8) + content[-26:])

    # When / Then
    with pytest.raises(InvalidModel, match="elsewhere than it says"):
        inspect_archive(path, "x.mar")


def test_b09_archive_over_the_total_size_is_refused(tmp_path, monkeypatch):
    # Given
    monkeypatch.setattr(archive_entries, "MAX_UNPACKED_BYTES", 1000)
    path = write_zip(tmp_path / "x.mar", {"a": b"a" * 600, "b": b"b" * 600})

    # When / Then
    with pytest.raises(InvalidModel, match="unpacks to more than"):
        inspect_archive(path, "x.mar")


@pytest.mark.parametrize("write", [write_zip, write_tar])
def test_b09_names_are_refused_for_their_sum_and_folders_count_once(write, tmp_path, monkeypatch):
    # Given: `.`, `folder`, what is in it, `MAR-INF` and the manifest
    path = tmp_path / ("x.mar" if write is write_zip else "x.tgz")
    write(path, {f"folder/{number}": b"" for number in range(9)}, {"model": {"modelName": "x"}})
    monkeypatch.setattr(archive_entries, "MAX_NAMES_CHARS", 1 + 6 + 9 * 8 + 7 + 21)
    assert inspect_archive(path, "x").model_name == "x"

    # When
    monkeypatch.setattr(archive_entries, "MAX_NAMES_CHARS", archive_entries.MAX_NAMES_CHARS - 1)

    # Then
    with pytest.raises(InvalidModel, match="names come to"):
        inspect_archive(path, "x")


def test_b09_truncated_archive_is_refused(tmp_path):
    # Given
    path = write_tar(tmp_path / "x.tgz", {"a": os.urandom(100_000)})
    path.write_bytes(path.read_bytes()[:50_000])

    # When / Then
    with pytest.raises(InvalidModel, match="damaged"):
        inspect_archive(path, "x.tgz")


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

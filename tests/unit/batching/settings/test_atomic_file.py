"""A file that is written whole or not at all, and what is left beside it."""

import stat

import pytest

from batching.settings.atomic_file import write_atomically


def test_write_atomically_replaces_the_file_and_keeps_it_its_owners(tmp_path):
    # Given
    path = tmp_path / "keys.json"
    path.write_text("old")
    path.chmod(0o644)
    # When
    write_atomically(path, "grün\n")
    # Then
    assert path.read_bytes() == b"gr\xc3\xbcn\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_write_atomically_leaves_nothing_behind_when_the_text_cannot_be_written(tmp_path):
    # Given a text that fails as it is written, as each does on a full disk
    path = tmp_path / "keys.json"
    path.write_text("old")
    # When
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "\ud800")
    # Then
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]

"""Files that people wrote, and files that appear whole or not at all."""

import stat

import pytest

from batching.settings.files import load_yaml, write_atomically


def test_write_atomically_replaces_the_file_and_keeps_it_its_owners(tmp_path):
    path = tmp_path / "keys.json"
    path.write_text("old")
    path.chmod(0o644)
    write_atomically(path, "grün\n")
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


def test_yaml_too_deep_to_be_read_is_refused():
    with pytest.raises(ValueError, match="RecursionError"):
        load_yaml("[" * 2_000)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: 1\n\tb: 1", "line 2: while scanning for the next token, found character '\\t' that"),
        ("a: [1,\nb: 2\n", "line 3: while parsing a flow sequence, expected ',' or ']', but got"),
        ("a: 1\n---\nb: 2", "line 2: expected a single document in the stream, but found another"),
        ("[*nothing]", "line 1: found undefined alias"),
        ("a: !!python/object:os.system {}", "line 1: could not determine a constructor"),
        (b"a: \xff\n", "ReaderError: "),
        ("a: !!timestamp noon", "a value is not what its tag says"),
        ("a: !!bool perhaps", "a value is not what its tag says"),
    ],
)
def test_yaml_is_refused_in_one_line_that_says_where(text, told):
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        load_yaml(text)
    assert str(caught.value).startswith(told)

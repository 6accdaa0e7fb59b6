"""YAML that the server did not write: plain values, or an error in one line."""

import pytest

from batching.settings.safe_yaml import load_yaml


def test_yaml_too_deep_to_be_read_is_refused():
    with pytest.raises(ValueError, match="RecursionError"):
        load_yaml("[" * 10_000)


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

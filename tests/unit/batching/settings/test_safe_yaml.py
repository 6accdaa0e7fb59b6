"""YAML of strangers: what it says, unless that is far more than what it is."""

import pytest

from batching.settings.safe_yaml import load_yaml

# Small bombs: written out, the last level has a million items or keys, some seconds' worth.
LEVELS = range(1, 6)
LISTS = "a0: &a0 [0,0,0,0,0,0,0,0,0,0]\n" + "".join(
    f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]\n" for n in LEVELS
)
MERGES = "a0: &a0 {a: 0, b: 0, c: 0, d: 0, e: 0, f: 0, g: 0, h: 0, i: 0, j: 0}\n" + "".join(
    f"a{n}: &a{n} {{<<: [{','.join([f'*a{n - 1}'] * 10)}]}}\n" for n in LEVELS
)
LONG_TEXT = f"a: &a {'x' * 20_000}\nb: [{','.join(['*a'] * 100)}]"


@pytest.mark.parametrize("text", [LISTS, MERGES, LONG_TEXT], ids=["lists", "merges", "long text"])
def test_yaml_is_refused_when_its_aliases_repeat_too_much(text):
    with pytest.raises(ValueError, match="more than 1048576 characters"):
        load_yaml(text)


@pytest.mark.parametrize("text", ["&a [*a]", "a: &a {b: {<<: *a}}", "[*nobody]", "[&a 1, &a 2]"])
def test_yaml_is_refused_when_an_alias_names_nothing_or_what_holds_it(text):
    with pytest.raises(ValueError, match=r"alias|anchor"):
        load_yaml(text)


def test_yaml_with_a_few_aliases_is_what_it_says():
    # Given
    text = "base: &base {size: 224, crop: &crop [1, 2]}\nbig: {<<: *base, size: 448}\ncrop: *crop"

    # When
    values = load_yaml(text)

    # Then
    assert values["big"] == {"size": 448, "crop": [1, 2]}
    assert values["crop"] == values["base"]["crop"] == [1, 2]


def test_yaml_too_deep_to_be_read_is_refused():
    with pytest.raises(ValueError, match="RecursionError"):
        load_yaml("[" * 10_000)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: 1\n\tb: 1", "line 2: while scanning for the next token, found character '\\t' that"),
        ("a: [1,\nb: 2\n", "line 3: while parsing a flow sequence, expected ',' or ']', but got"),
        ("a: 1\n---\nb: 2", "line 2: expected a single document in the stream, but found another"),
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

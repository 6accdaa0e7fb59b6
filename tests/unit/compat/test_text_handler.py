"""The text handlers clean a text before they look its words up, in time that grows as it does."""

import itertools
import time
import unicodedata

import pytest
from ts.torch_handler.text_handler import TextHandler
from ts.utils.util import CLEANUP_REGEX

from tests.timing import assert_within

ACUTE_AND_DOT_BELOW = "\N{COMBINING ACUTE ACCENT}\N{COMBINING DOT BELOW}"


def test_tags_are_what_torchserves_pattern_finds():
    # Given every text of seven of these characters
    texts = ["".join(characters) for characters in itertools.product("<>a\n", repeat=7)]

    # When / Then
    for text in texts:
        assert TextHandler()._remove_html_tags(text) == CLEANUP_REGEX.sub("", text)


def test_accents_go_wherever_a_text_is_divided():
    # Given a letter with two accents at each place of some 600, a ligature and a broken character
    text = "".join("x" * length + "e" + ACUTE_AND_DOT_BELOW for length in range(33))
    text += "\N{LATIN SMALL LIGATURE FFI}\ud800"

    # When
    found = TextHandler()._remove_accented_characters(text)

    # Then
    assert found == unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()


@pytest.mark.parametrize(
    "text",
    ["<" * 20_000, "</" * 10_000, ACUTE_AND_DOT_BELOW * 30_000, "&" * 30_000 + "&#" * 30_000],
    ids=["<", "</", "marks", "&"],
)
def test_b18_text_takes_time_in_proportion_to_its_length(text):
    # Given
    handler = TextHandler()
    started_s = time.perf_counter()

    # When
    handler._remove_accented_characters(handler._remove_html_tags(text))

    # Then
    assert_within(time.perf_counter() - started_s, 0.3)

"""Splits texts into words and runs of words, as torchtext did for TorchServe.

Source: TorchServe 0.12 ts/handler_utils/text_utils.py, as an interface.
"""

import re
from collections.abc import Callable, Iterator, Sequence

Tokenizer = Callable[[str], list[str]]

BASIC_ENGLISH = "basic_english"

_STANDING_ALONE = re.compile(r"['.,()!?]")
_DROPPED = re.compile(r'"')
_BLANK = re.compile(r"<br />|[;:]")


class Words(list[str]):
    """Holds the words of a batch's rows, one after the other; handlers get them with the tokens.

    `starts` says where the tokens of each row begin. It is not in text_classifier.py, as a handler
    has to be the only class of its module.
    """

    starts: Sequence[int] = (0,)


def ngrams_iterator(token_list: Sequence[str], ngrams: int) -> Iterator[str]:
    """Yields the tokens, then each run of 2, 3, … `ngrams` of them, joined by spaces."""
    for size in range(1, ngrams + 1):
        for start in range(len(token_list) - size + 1):
            yield " ".join(token_list[start : start + size])


def get_tokenizer(tokenizer: str | None, language: str = "en") -> Tokenizer:
    """Returns a function that splits a text at white space; "basic_english" also at punctuation."""
    if tokenizer is None:
        return str.split
    if (tokenizer, language) != (BASIC_ENGLISH, "en"):
        raise ValueError(f"there is no tokenizer {tokenizer!r} for {language!r}")
    return _basic_english


def _basic_english(line: str) -> list[str]:
    """Splits into lower-case words and single marks; drops quotation marks, colons, line breaks."""
    plain = _BLANK.sub(" ", _DROPPED.sub("", line.lower()))
    return _STANDING_ALONE.sub(r" \g<0> ", plain).split()

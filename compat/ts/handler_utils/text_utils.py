"""Words of a text, and runs of words. TorchServe took both from torchtext.

Source: TorchServe 0.12 ts/handler_utils/text_utils.py, as an interface.
"""

import re
from collections.abc import Callable, Iterator, Sequence

Tokenizer = Callable[[str], list[str]]

BASIC_ENGLISH = "basic_english"

_STANDING_ALONE = re.compile(r"['.,()!?]")
_DROPPED = re.compile(r'"')
_BLANK = re.compile(r"<br />|[;:]")


def ngrams_iterator(token_list: Sequence[str], ngrams: int) -> Iterator[str]:
    """Yields the tokens, then each run of 2, 3, … `ngrams` of them, joined by spaces."""
    for size in range(1, ngrams + 1):
        for start in range(len(token_list) - size + 1):
            yield " ".join(token_list[start : start + size])


def get_tokenizer(tokenizer: str | None, language: str = "en") -> Tokenizer:
    """What splits a text at its white space, or for "basic_english" at its punctuation, too.

    Raises:
        ValueError: another tokenizer or language.
    """
    if tokenizer is None:
        return str.split
    if (tokenizer, language) != (BASIC_ENGLISH, "en"):
        raise ValueError(f"there is no tokenizer {tokenizer!r} for {language!r}")
    return _basic_english


def _basic_english(line: str) -> list[str]:
    """Words in lower case and single marks; quotation marks, colons and line breaks are dropped."""
    plain = _BLANK.sub(" ", _DROPPED.sub("", line.lower()))
    return _STANDING_ALONE.sub(r" \g<0> ", plain).split()

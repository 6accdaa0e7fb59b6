"""Splits texts into words and runs of words, as torchtext did for TorchServe.

Source: TorchServe 0.12 ts/handler_utils/text_utils.py, as an interface, and its CONTRACTION_MAP.
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


# --- contractions and their full forms, TorchServe's CONTRACTION_MAP. Those that it does not know
# ("he've") are left out, so that scores are the same.

_ASKING = ["what", "when", "where", "who", "why"]
_ARE = ["they", "we", "what", "you", "y'all"]
_NOT_HAVE = ["could", "had", "might", "must", "need", "ought", "should", "would"]
_NOT = [*_NOT_HAVE, "are", "did", "does", "do", "has", "have", "is", "may", "was", "were"]
_HAVE = [*_ASKING, *_ARE, "could", "i", "might", "must", "should", "so", "to", "will", "would"]
_WOULD = ["he", "i", "it", "she", "that", "there", "they", "we", "you", "y'all"]
_WILL = ["he", "i", "it", "she", "they", "we", "what", "who", "you"]
_IS = [*_ASKING, "he", "how", "it", "she", "that", "there"]
_IRREGULAR = {
    "ain't": "is not",
    "can't": "cannot",
    "can't've": "cannot have",
    "'cause": "because",
    "how'd": "how did",
    "how'd'y": "how do you",
    "how'll": "how will",
    "i'm": "i am",
    "let's": "let us",
    "ma'am": "madam",
    "o'clock": "of the clock",
    "shan't": "shall not",
    "sha'n't": "shall not",
    "shan't've": "shall not have",
    "so's": "so as",
    "where'd": "where did",
    "won't": "will not",
    "won't've": "will not have",
    "y'all": "you all",
}


def _contractions() -> dict[str, str]:
    short = (
        {f"{word}n't": f"{word} not" for word in _NOT}
        | {f"{word}n't've": f"{word} not have" for word in _NOT_HAVE}
        | {f"{word}'d": f"{word} would" for word in _WOULD}
        | {f"{word}'d've": f"{word} would have" for word in _WOULD}
        | {f"{word}'ll": f"{word} will" for word in _WILL}
        | {f"{word}'ll've": f"{word} will have" for word in _WILL}
        | {f"{word}'s": f"{word} is" for word in _IS}
        | {f"{word}'ve": f"{word} have" for word in _HAVE}
        | {f"{word}'re": f"{word} are" for word in _ARE}
    )
    whole = {word: text.replace("y'all", "you all") for word, text in short.items()} | _IRREGULAR
    of_i = {f"I{word[1:]}": f"I{whole[word][1:]}" for word in whole if word.startswith("i'")}
    return whole | of_i


CONTRACTION_MAP = _contractions()

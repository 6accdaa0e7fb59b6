"""Reads the requirements.txt of an archive as pip does, before pip sees it.

Source: pip 23.2 `_internal/req/req_file.py`, for lines and the beginning of options.
"""

import hashlib
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from batching.errors import DependenciesFailed

MAX_BYTES = 1024**2

# Options that change where packages come from are the operator's to give, not the archive's.
_HARMLESS_OPTIONS = ("--pre", "--prefer-binary", "--only-binary", "--no-binary", "--require-hashes")
# Of one requirement, on its line.
_REQUIREMENT_OPTIONS = ("--hash", "--config-settings", "--global-option")
# pip would read the file in that encoding.
_CODING = re.compile(r"#.*?coding[:=]\s*([-\w.]+)")
# pip's own pattern begins with `\s+`, which takes hours for a line of blanks.
_COMMENT = re.compile(r"(^|\s)#.*$")
# A file of the archive: in another archive the same text may mean another file.
_LOCAL_FILE = re.compile(r"(^|@\s*|\s)(\.{0,2}/|file:)|\.(whl|zip|tar\.gz)\b")


def read_requirements(model_dir: Path, file_name: str) -> str:
    """Returns the requirements for pip, written anew from the parsed lines.

    Not the file itself: if pip reads a line in another way, it may find an option that we do not.

    Raises:
        DependenciesFailed: the file is missing, or says where pip shall look for packages.
    """
    path = model_dir / file_name
    is_inside = path.resolve().is_relative_to(model_dir.resolve())
    if not is_inside or not path.is_file() or path.stat().st_size > MAX_BYTES:
        raise DependenciesFailed(f"{file_name} is missing in the archive, or too large.")
    try:
        text = path.read_text(encoding="utf-8-sig")
        _check_coding(text)
        lines = [_split(line) for line in _logical_lines(text)]
    except ValueError as error:  # UnicodeDecodeError among them
        raise DependenciesFailed(
            f"{file_name} is not UTF-8, or cannot be read: {error}."
        ) from error
    for requirement, words in lines:
        for option in _options_of(words):
            if option not in _HARMLESS_OPTIONS + (_REQUIREMENT_OPTIONS if requirement else ()):
                raise DependenciesFailed(
                    f"{file_name} has the option {option}. Where packages come from is set on the "
                    "node (pip's configuration, PIP_INDEX_URL and the like); list all packages in "
                    "one file."
                )
    return "\n".join(_joined(requirement, words) for requirement, words in lines)


def _check_coding(text: str) -> None:
    for line in text.split("\n")[:2]:
        coding = _CODING.match(line)
        if coding and coding[1].lower() not in ("utf-8", "utf8"):
            raise ValueError(f"it says that it is {coding[1]}")


def _logical_lines(text: str) -> Iterator[str]:
    """Yields the lines without comments, unless empty. A backslash continues all but comments."""
    begun = ""
    for line in (*text.splitlines(), ""):
        is_comment = line.lstrip().startswith("#")
        if line.endswith("\\") and not is_comment:
            begun += line.strip("\\")
            continue
        whole = _COMMENT.sub("", begun + (f" {line}" if is_comment else line)).strip()
        begun = ""
        if whole:
            yield whole


def _split(line: str) -> tuple[str, list[str]]:
    """Returns the requirement, which may be empty, and the words of its options.

    Raises:
        ValueError: quotes that never end, or a backslash that would continue another line.
    """
    if line.endswith("\\"):
        raise ValueError("a backslash without a next line")
    tokens = line.split(" ")
    begin = next((n for n, token in enumerate(tokens) if token.startswith("-")), len(tokens))
    return " ".join(tokens[:begin]).strip(), shlex.split(" ".join(tokens[begin:]))


def _options_of(words: list[str]) -> Iterator[str]:
    """Yields the options without their values."""
    names = (word.partition("=")[0] for word in words if word.startswith("-"))
    yield from (name if name.startswith("--") else name[:2] for name in names)


def _joined(requirement: str, words: list[str]) -> str:
    return " ".join([*filter(None, [requirement]), *map(_quoted, words)])


def _quoted(word: str) -> str:
    if not word.startswith("-"):
        return shlex.quote(word)
    # Quotes around all of `--option=value` would hide from pip that it is an option.
    name, equals, value = word.partition("=")
    return name + equals + (shlex.quote(value) if value else "")


def environment_name(text: str, archive_sha256: str) -> str:
    """Returns the name of the environment for these requirements, under this Python.

    Models with the same requirements share one, unless they name files of their archives.
    """
    parts = [text, sys.version, sys.prefix]
    if _LOCAL_FILE.search(text):
        parts.append(archive_sha256)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()

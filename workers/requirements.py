"""The requirements.txt of an archive, read before pip sees it."""

import hashlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from batching.errors import DependenciesFailed

MAX_BYTES = 1024**2

# Options that change where packages come from are the operator's to give, not the archive's.
_HARMLESS_OPTIONS = ("--pre", "--prefer-binary", "--only-binary", "--no-binary", "--require-hashes")
# A file of the archive, so that the same text may mean something else in another archive.
_LOCAL_FILE = re.compile(r"(^|@\s*|\s)(\.{0,2}/|file:)|\.(whl|zip|tar\.gz)\b")


def read_requirements(model_dir: Path, file_name: str) -> str:
    """The text of the file, if pip may have it.

    Raises:
        DependenciesFailed: the file is missing, or says where pip shall look for packages.
    """
    path = model_dir / file_name
    is_inside = path.resolve().is_relative_to(model_dir.resolve())
    if not is_inside or not path.is_file() or path.stat().st_size > MAX_BYTES:
        raise DependenciesFailed(f"{file_name} is missing in the archive, or too large.")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DependenciesFailed(f"{file_name} is not UTF-8.") from error
    for option in options_of(text):
        if option not in _HARMLESS_OPTIONS:
            raise DependenciesFailed(
                f"{file_name} has the option {option}. Where packages come from is set on the node "
                "(pip's configuration, PIP_INDEX_URL and the like); list all packages in one file."
            )
    return text


def options_of(text: str) -> Iterator[str]:
    """The options for pip that have a line of their own, without their values."""
    joined = re.sub(r"\\\r?\n", " ", text)
    for line in (line.strip() for line in joined.splitlines()):
        if line.startswith("-"):
            words = (word.partition("=")[0] for word in line.split() if word.startswith("-"))
            yield from (word if word.startswith("--") else word[:2] for word in words)


def environment_name(text: str, archive_sha256: str) -> str:
    """The name of the environment for these requirements, under this Python.

    Models with the same requirements share one, unless they name files of their archives.
    """
    parts = [text, sys.version, sys.prefix]
    if _LOCAL_FILE.search(text):
        parts.append(archive_sha256)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()

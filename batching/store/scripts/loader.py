"""Loads the `.lua` files, and makes commands that call them."""

import hashlib
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import redis
import redis.asyncio

from batching.store.keys import VersionKeys

Command = tuple[str | int | float | bytes, ...]

# Read at import: at the first request no descriptor may be left, or another release may have been
# installed.
_FOLDER = Path(__file__).parent
_PARTS = {
    path.stem: path.read_text(encoding="utf-8")
    for path in sorted((_FOLDER / "parts").glob("*.lua"))
}


def _source(text: str) -> str:
    """Returns the script with the parts that it calls in front.

    A part may call parts that come later in the alphabet.
    """
    for name, part in _PARTS.items():
        if f"{name}(" in text:
            text = part + text
    return text


_SOURCES = {path.stem: _source(path.read_text(encoding="utf-8")) for path in _FOLDER.glob("*.lua")}
_KEYS_LINES = re.compile(r"^-- KEYS(.*?)^-- (?=[A-Z])", re.MULTILINE | re.DOTALL)
_KEY_NAME = re.compile(r"\d+ ([a-z]+(?: [a-z]+)*)")


def source(verb: str) -> str:
    return _SOURCES[verb]


@cache
def sha(verb: str) -> str:
    """Returns the name by which Redis knows the script."""
    return hashlib.sha1(source(verb).encode(), usedforsecurity=False).hexdigest()


def loading(call: Command) -> Command:
    """Returns the command that loads the script of this call into Redis."""
    verb = next(verb for verb in _SOURCES if sha(verb) == call[1])
    return ("SCRIPT", "LOAD", source(verb))


@cache
def key_names(verb: str) -> tuple[str, ...]:
    """Returns the names in the script's numbered `KEYS` lines, in order."""
    match = _KEYS_LINES.search(source(verb))
    line = " ".join(line.strip("- ") for line in match[1].splitlines()) if match else ""
    return tuple(name.replace(" ", "_") for name in _KEY_NAME.findall(line))


def ordered_keys(verb: str, keys: VersionKeys, lease: str = "") -> list[str]:
    """Returns the script's KEYS in the order of its head; `lease` is that of a worker."""
    return [lease if name == "lease" else getattr(keys, name) for name in key_names(verb)]


def command(
    verb: str, keys: Sequence[str], arguments: Sequence[str | int | float | bytes] = ()
) -> Command:
    """Returns the command that runs the script, if Redis knows it; more ARGV may be appended."""
    return ("EVALSHA", sha(verb), len(keys), *keys, *arguments)


def script(client: redis.Redis | redis.asyncio.Redis, verb: str) -> Any:
    """Returns `verb` as a callable of (keys, args), to be awaited with an asyncio client."""
    return client.register_script(source(verb))

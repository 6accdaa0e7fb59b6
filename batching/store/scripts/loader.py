"""Loads the `.lua` files, and makes commands that call them."""

import hashlib
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import redis
import redis.asyncio

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
_KEY_NAME = re.compile(r"(\d+) ([a-z]+(?: [a-z]+)*)")


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
    """Returns the names in the script's `KEYS` line, in order.

    Raises:
        ValueError: the script does not number its keys.
    """
    match = _KEYS_LINES.search(source(verb))
    line = " ".join(line.strip("- ") for line in match[1].splitlines()) if match else ""
    names = _KEY_NAME.findall(line)
    if [int(number) for number, _ in names] != list(range(1, len(names) + 1)) or not names:
        raise ValueError(f"{verb}.lua: its head does not number its KEYS")
    return tuple(name.replace(" ", "_") for _, name in names)


def ordered_keys(verb: str, version_keys: object, **own: str) -> list[str]:
    """Returns the script's KEYS in the order of its head: from `own`, or from `version_keys`.

    Raises:
        ValueError: a name of `own` is not in the head, or a name in the head is in neither.
    """
    names = key_names(verb)
    if unknown := own.keys() - {*names}:
        raise ValueError(f"{verb}.lua has no key {', '.join(sorted(unknown))}")
    keys = []
    for name in names:
        key = own.get(name) or getattr(version_keys, name, None)
        if not isinstance(key, str):
            raise ValueError(f"{verb}.lua needs the key {name}")
        keys.append(key)
    return keys


def command(
    verb: str, keys: Sequence[str], arguments: Sequence[str | int | float | bytes] = ()
) -> Command:
    """Returns the command that runs the script, if Redis knows it; more ARGV may be appended."""
    return ("EVALSHA", sha(verb), len(keys), *keys, *arguments)


def script(client: redis.Redis | redis.asyncio.Redis, verb: str) -> Any:
    """Returns `verb` as a callable of (keys, args), to be awaited with an asyncio client."""
    return client.register_script(source(verb))

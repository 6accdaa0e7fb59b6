"""Loads the `.lua` files; a script that the server forgot is sent again by redis-py."""

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from batching.store.connection import AsyncClient, Client


@cache
def source(verb: str) -> str:
    """The text of `<verb>.lua`."""
    return Path(__file__).with_name(f"{verb}.lua").read_text(encoding="utf-8")


@cache
def sha(verb: str) -> str:
    """The name by which Redis knows the script."""
    return hashlib.sha1(source(verb).encode(), usedforsecurity=False).hexdigest()


def script(client: Client | AsyncClient, verb: str) -> Any:
    """`verb` as a callable of (keys, args) on this client; of an asyncio client, to be awaited."""
    return client.register_script(source(verb))

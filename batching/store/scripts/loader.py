"""Loads the `.lua` files; a script that the server forgot is sent again by redis-py."""

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from batching.store.client_types import AsyncClient, Client

# Read before anything is served: when the first request comes, there may be no descriptor left, or
# the files of another release, which was installed meanwhile.
_SOURCES = {
    path.stem: path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("*.lua")
}


def source(verb: str) -> str:
    """The text of `<verb>.lua`."""
    return _SOURCES[verb]


@cache
def sha(verb: str) -> str:
    """The name by which Redis knows the script."""
    return hashlib.sha1(source(verb).encode(), usedforsecurity=False).hexdigest()


def script(client: Client | AsyncClient, verb: str) -> Any:
    """`verb` as a callable of (keys, args) on this client; of an asyncio client, to be awaited."""
    return client.register_script(source(verb))

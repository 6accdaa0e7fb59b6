"""Large bodies in memory that ingresses and workers of one host share (ADR 0032).

An arena is a file in memory that one process writes. A body is received in a slot of its ingress's,
the request's record says where that is, and the worker that claims it copies the body out. A large
answer goes back by an arena of the worker's. A slot is free again when nothing in its process
refers to the body, maybe while another one reads. So each unit of 16 KiB has a generation, eight
bytes behind all units, which changes before the first byte of another body comes; readers compare
it after their copy.
"""

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import logging
import mmap
import os
import re
import stat
import sys
import time
import uuid
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from batching.protocol import INLINE_LIMIT_BYTES

log = logging.getLogger(__name__)

Body = bytes | bytearray | memoryview

UNIT_BYTES = INLINE_LIMIT_BYTES
GENERATION_BYTES = 8
# A larger body would leave too little for others, a larger arena for other programs.
LARGEST_SHARE, FOLDER_SHARE = 8, 4
LOOK_S = 0.1  # how soon a worker notices that the ingress has died

_PREFIX = "ferry-arena-"
_NAME = re.compile(rb"[0-9a-f]{32}")
_NOTHING = (None, None, 0, b"")


class Elsewhere(Exception):
    """Says that the body is in memory that this process does not share, or that has gone."""


def mark_of(folder: Path, size_bytes: int) -> str:
    """Returns the end of ids of this host, folder and user; empty if no memory can be shared."""
    if size_bytes < LARGEST_SHARE * (UNIT_BYTES + GENERATION_BYTES):
        return ""
    with contextlib.suppress(OSError):
        kernel, status = Path("/proc/sys/kernel/random/boot_id").read_text(), folder.stat()
        told = f"{kernel} {status.st_dev} {status.st_ino} {os.geteuid()}"
        return "@" + hashlib.sha256(told.encode()).hexdigest()[:12]
    return ""


def remove_abandoned(folder: Path) -> None:
    """Removes the arenas that processes of this user have left, and only those."""
    for path in folder.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            file = _open(path)
            is_in_use = _is_locked(file)
            os.close(file)
            if not is_in_use:
                path.unlink()


class Arena:
    """Gives out slots of a process's own file; without memory to share it has no mark, and no room.

    For one thread, though slots may end in any.
    """

    def __init__(self, folder: Path, size_bytes: int) -> None:
        self.mark = mark_of(folder, size_bytes)
        self._name = uuid.uuid4().hex.encode()
        self._path = folder / (_PREFIX + self._name.decode())
        self._generation = 0
        if self.mark:
            try:
                self._make(folder, size_bytes)
            except OSError as error:
                log.warning("no memory is shared folder=%s: %s", folder, error)
                with contextlib.suppress(OSError):
                    self._path.unlink()
                self.mark = ""
        elif size_bytes:
            text = "no memory is shared with workers folder=%s bytes=%d: none there, or too little"
            log.warning(text, folder, size_bytes)

    def _make(self, folder: Path, size_bytes: int) -> None:
        remove_abandoned(folder)
        system = os.statvfs(folder)
        size_bytes = min(size_bytes, system.f_blocks * system.f_frsize // FOLDER_SHARE)
        units = size_bytes // (UNIT_BYTES + GENERATION_BYTES)
        self._largest_bytes = units // LARGEST_SHARE * UNIT_BYTES
        self._taken, self._backed = bytearray(units), 0
        unlocked = folder / f".{self._path.name}"  # which would look abandoned under its own name
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.open(unlocked, flags, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX)  # until this process ends
        unlocked.rename(self._path)
        self._table = units * UNIT_BYTES
        os.posix_fallocate(self._file, self._table, units * GENERATION_BYTES)
        self._memory = mmap.mmap(self._file, 0)

    def is_shared_by(self, worker_ids: Iterable[bytes]) -> bool:
        mark = self.mark.encode()
        return bool(mark) and all(worker_id.endswith(mark) for worker_id in worker_ids)

    def close(self) -> None:
        """Removes the file; its memory stays until nothing refers to it."""
        if self.mark:
            self.mark = ""
            self._path.unlink(missing_ok=True)
            os.close(self._file)

    def room(self, size_bytes: int) -> memoryview | None:
        """Returns a slot for a body of this size; None if it is small, or there is no room."""
        if not self.mark or not UNIT_BYTES < size_bytes <= self._largest_bytes:
            return None
        count = -(-size_bytes // UNIT_BYTES)
        first = self._taken.find(bytes(count))
        if first < 0:
            return None
        units, missing = slice(first, first + count), first + count - self._backed
        if missing > 0:  # a page that the system does not have kills who writes to it
            try:
                os.posix_fallocate(self._file, self._backed * UNIT_BYTES, missing * UNIT_BYTES)
            except OSError:
                return None
            self._backed += missing
        self._taken[units] = b"\1" * count
        self._generation += 1
        start = self._table + first * GENERATION_BYTES
        self._memory[start : start + count * GENERATION_BYTES] = _stamp(self._generation, count)
        slot = _slot_type(count).from_buffer(self._memory, first * UNIT_BYTES)
        place = b"%b %d %d %d\n" % (self._name, first, size_bytes, self._generation)
        slot.known = self._taken, units, size_bytes, place
        return memoryview(slot).cast("B")[:size_bytes]

    def hold(self, body: Body) -> tuple[memoryview, bytes] | None:
        """Returns the body in a slot, which ends with the view, and the place for `ArenaReader`."""
        if isinstance(body, memoryview):
            taken, _, size_bytes, place = getattr(body.obj, "known", _NOTHING)
            if taken is self._taken and size_bytes == len(body):
                return body, place
        if (room := self.room(len(body))) is None:
            return None
        room[:] = body
        slot: Any = room.obj
        return room, slot.known[-1]


@cache
def _slot_type(count: int) -> Any:
    """Returns the type of slots with this many units. One is free when nothing refers to it.

    A view of a part of one keeps it, whoever has that view: a transport that still sends it, say.
    """

    def give_back(slot: Any) -> None:
        taken, units, *_ = slot.known
        taken[units] = bytes(count)

    members = {"__slots__": ("known",), "__del__": give_back}
    return type("Slot", (ctypes.c_ubyte * (count * UNIT_BYTES),), members)


def _stamp(generation: int, count: int) -> bytes:
    return generation.to_bytes(GENERATION_BYTES, sys.byteorder) * count


class ArenaReader:
    """Copies bodies out of the arenas of other processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mapped: dict[bytes, _Mapped] = {}

    def copy(self, text: bytes, *, owner_has_to_live: bool) -> tuple[bytearray | None, bytes]:
        """Returns the body whose place the text begins with, and the rest of the text.

        None if the slot has another body by now, or its owner has died and has to live.

        Raises:
            Elsewhere: the memory is of another host or user, or has gone, or the place is none.
        """
        place, _, rest = text.partition(b"\n")
        try:
            name, *numbers = place.split(b" ")
            first, size_bytes, generation = map(int, numbers)
            arena = self._mapped.get(name) or self._map(name)
        except (OSError, ValueError) as error:
            raise Elsewhere from error
        is_left = owner_has_to_live and not arena.lives()
        return None if is_left else arena.copy(first, size_bytes, generation), rest

    def _map(self, name: bytes) -> "_Mapped":
        if not _NAME.fullmatch(name):
            raise ValueError("no name of an arena")
        self._mapped = {known: arena for known, arena in self._mapped.items() if arena.lives()}
        arena = self._mapped[name] = _Mapped(_open(self._folder / (_PREFIX + name.decode())))
        return arena


class _Mapped:
    def __init__(self, file: int) -> None:
        self._file = file
        self._memory = mmap.mmap(file, 0, prot=mmap.PROT_READ)
        self._view = memoryview(self._memory)
        self._count = len(self._view) // (UNIT_BYTES + GENERATION_BYTES)
        self._look_at_s = 0.0

    def __del__(self) -> None:
        os.close(self._file)

    def lives(self) -> bool:
        """Returns whether the owner does, or did a moment ago."""
        if (now_s := time.monotonic()) >= self._look_at_s:
            if not _is_locked(self._file):
                return False
            self._look_at_s = now_s + LOOK_S
        return True

    def copy(self, first: int, size_bytes: int, generation: int) -> bytearray | None:
        count = -(-size_bytes // UNIT_BYTES)
        if not (0 <= first <= self._count - count and size_bytes > 0 and 0 < generation < 2**63):
            raise Elsewhere
        begin = self._count * UNIT_BYTES + first * GENERATION_BYTES
        units, stamp = slice(begin, begin + count * GENERATION_BYTES), _stamp(generation, count)
        # Before, too: what was never written has no memory yet, and reading it may need some.
        if self._memory[units] != stamp:
            return None
        body = bytearray(self._view[first * UNIT_BYTES : first * UNIT_BYTES + size_bytes])
        # The interpreter does far more between the two than any processor reorders.
        return body if self._memory[units] == stamp else None


def _open(path: Path) -> int:
    """Opens an arena to read; raises an OSError at what is not this user's alone, or no file."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    status = os.fstat(file)
    if status.st_uid != os.geteuid() or status.st_mode != stat.S_IFREG | 0o600:
        os.close(file)
        raise PermissionError(errno.EPERM, "not an arena of this user", str(path))
    return file


def _is_locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(file, fcntl.LOCK_UN)
    return False


class IngressMemory:
    """Holds what an ingress shares with workers: its own arena, and its view of theirs.

    `requests` and `answers` count large bodies by their way.
    """

    def __init__(self, folder: Path, size_bytes: int) -> None:
        self.arena = Arena(folder, size_bytes)
        self.reader = ArenaReader(folder)
        self.requests = {"arena": 0, "redis": 0}
        self.answers = {"arena": 0, "redis": 0}


NO_MEMORY = IngressMemory(Path(), 0)

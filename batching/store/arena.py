"""Large bodies in memory that an ingress and the workers of its host share (ADR 0032).

An arena is a file in such memory which one ingress writes. A body is read into a slot of it, the
request's record in Redis says where it is, and the worker that claims the request copies it out. A
slot is its body's for as long as the ingress refers to it, and given away again after that: the
client may have left while a worker was reading. So each unit of 16 KiB has a generation, which
changes before the first byte of another body comes; a worker compares it after its copy.

    units of 16 KiB; then the generation of each, 8 bytes
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
from array import array
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from batching.protocol import INLINE_LIMIT_BYTES, Request, Wire

log = logging.getLogger(__name__)

UNIT_BYTES = INLINE_LIMIT_BYTES
GENERATION_BYTES = 8
# A larger body would leave too little for the others, and a larger arena for other programs: a
# container's /dev/shm has 64 MB, unless told otherwise.
LARGEST_SHARE, FOLDER_SHARE = 8, 4
# How soon a worker notices that the ingress has died.
LOOK_S = 0.1

_PREFIX = "ferry-arena-"
_RECORD = re.compile(rb"@([0-9a-f]{32}) (\d{1,9}) (\d{1,12}) (\d{1,18})\n")
_MARK_CHARS = 12


class Elsewhere(Exception):
    """The body is in memory that this process does not share with the ingress."""


def mark_of(folder: Path, size_bytes: int) -> str:
    """Returns the end of the ids of workers that share this memory; empty if none is shared.

    Another host, another folder and another user each have another mark.
    """
    if size_bytes < LARGEST_SHARE * UNIT_BYTES:
        return ""
    try:
        kernel = Path("/proc/sys/kernel/random/boot_id").read_text()
        status = folder.stat()
    except OSError:
        return ""
    told = f"{kernel} {status.st_dev} {status.st_ino} {os.geteuid()}"
    return "@" + hashlib.sha256(told.encode()).hexdigest()[:_MARK_CHARS]


def remove_abandoned(folder: Path) -> None:
    """Removes the arenas that ingresses of this user have left, and only those."""
    for path in folder.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            descriptor = _open(path)
            try:
                if not _is_locked(descriptor):
                    path.unlink()
            finally:
                os.close(descriptor)


class Arena:
    """An ingress's own arena; without memory for one, and where no worker is, Redis carries bodies.

    `carried` counts the bodies by their way. All but the end of a slot is of one thread.
    """

    def __init__(self, folder: Path, size_bytes: int, ingress_id: str) -> None:
        self.mark = mark_of(folder, size_bytes)
        self.carried = {"arena": 0, "redis": 0}
        self._id = ingress_id
        self._path = folder / (_PREFIX + ingress_id)
        self._generation = 0
        if self.mark:
            system = os.statvfs(folder)
            size_bytes = min(size_bytes, system.f_blocks * system.f_frsize // FOLDER_SHARE)
        units = size_bytes // (UNIT_BYTES + GENERATION_BYTES)
        self._largest_bytes = units // LARGEST_SHARE * UNIT_BYTES
        self._taken, self._backed = bytearray(units), bytearray(units)
        if self.mark:
            try:
                self._make(folder, units)
            except OSError as error:
                log.warning("no memory is shared with workers folder=%s: %s", folder, error)
                self.mark = ""

    def _make(self, folder: Path, units: int) -> None:
        remove_abandoned(folder)
        unlocked = folder / f".{self._path.name}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor = os.open(unlocked, flags, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)  # until this process ends
        unlocked.rename(self._path)  # which without its lock would look abandoned
        table = units * UNIT_BYTES
        os.ftruncate(self._descriptor, table + units * GENERATION_BYTES)
        os.posix_fallocate(self._descriptor, table, units * GENERATION_BYTES)
        self._memory = mmap.mmap(self._descriptor, 0)
        self._generations = memoryview(self._memory)[table:].cast("Q")

    def is_shared_by(self, worker_ids: Iterable[bytes]) -> bool:
        """Returns whether all these workers can read it."""
        mark = self.mark.encode()
        return bool(mark) and all(worker_id.endswith(mark) for worker_id in worker_ids)

    def close(self) -> None:
        """Removes the file; what is mapped of it stays until nothing refers to it."""
        if self.mark:
            self.mark = ""
            self._path.unlink(missing_ok=True)
            os.close(self._descriptor)

    def room(self, size_bytes: int) -> memoryview | None:
        """Returns a slot for a body of this size; None if it is small, or there is no room."""
        if not (self.mark and UNIT_BYTES < size_bytes <= self._largest_bytes):
            return None
        count = -(-size_bytes // UNIT_BYTES)
        first = self._taken.find(bytes(count))
        if first < 0 or not self._back(first, count):
            return None
        self._taken[first : first + count] = b"\1" * count
        self._generation += 1
        self._generations[first : first + count] = array("Q", [self._generation]) * count
        slot = _slot_type(count).from_buffer(self._memory, first * UNIT_BYTES)
        slot.arena, slot.first, slot.count = self, first, count
        slot.generation, slot.size_bytes = self._generation, size_bytes
        return memoryview(slot).cast("B")[:size_bytes]

    def carry(self, wire: Wire) -> tuple[Wire, Wire]:
        """Returns the request to hold, its body in a slot, and what a record has of it.

        Both are the same, and Redis carries the body, if no slot is free.
        """
        body = wire.body
        slot: Any = body.obj if isinstance(body, memoryview) else None
        if getattr(slot, "arena", None) is not self or slot.size_bytes != len(body):
            room = self.room(len(body))
            if room is None:
                return wire, wire
            room[:] = body
            body = room
            slot = room.obj
        place = f"@{self._id} {slot.first} {len(body)} {slot.generation}\n"
        return wire._replace(body=body), Wire(place.encode() + wire.without_body())

    def free(self, slot: Any) -> None:
        """Takes a slot back, from whichever thread referred to it last."""
        self._taken[slot.first : slot.first + slot.count] = bytes(slot.count)

    def _back(self, first: int, count: int) -> bool:
        """Returns whether there is memory for these units: to write to a page without kills."""
        if 0 in self._backed[first : first + count]:
            try:
                os.posix_fallocate(self._descriptor, first * UNIT_BYTES, count * UNIT_BYTES)
            except OSError:
                return False
            self._backed[first : first + count] = b"\1" * count
        return True


NO_ARENA = Arena(Path(), 0, "")


@cache
def _slot_type(count: int) -> Any:
    """Returns a type of buffers of so many units, which are given back when nothing needs them.

    A view of a part of one keeps it, whoever has that view: a transport that still sends it, say.
    """

    def give_back(slot: Any) -> None:
        slot.arena.free(slot)

    return type("Slot", (ctypes.c_ubyte * (count * UNIT_BYTES),), {"__del__": give_back})


class ArenaReader:
    """A worker's view of the arenas of its host's ingresses."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mapped: dict[bytes, _Mapped] = {}

    def read(self, record: bytes) -> Request | None:
        """Returns the request of this record, its body copied; None if nobody waits for it.

        Raises:
            Elsewhere: the memory is of another host or user, or the record is not ours.
            ProtocolError: the rest of the record is no request.
        """
        match = _RECORD.match(record)
        if match is None:
            raise Elsewhere
        ingress_id, first, size_bytes, generation = match[1], *map(int, match.groups()[1:])
        mapped = self._mapped.get(ingress_id) or self._map(ingress_id)
        body = mapped.copy(first, size_bytes, generation)
        return None if body is None else Request.with_body(record[match.end() :], body)

    def _map(self, ingress_id: bytes) -> "_Mapped":
        for known, mapped in list(self._mapped.items()):
            if not mapped.is_held():
                del self._mapped[known]
        try:
            mapped = _Mapped(_open(self._folder / f"{_PREFIX}{ingress_id.decode()}"))
        except (OSError, ValueError) as error:
            raise Elsewhere from error
        self._mapped[ingress_id] = mapped
        return mapped


class _Mapped:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        memory = memoryview(mmap.mmap(self._descriptor, 0, prot=mmap.PROT_READ))
        self._units = len(memory) // (UNIT_BYTES + GENERATION_BYTES)
        self._memory = memory[: self._units * UNIT_BYTES]
        self._generations = memory[self._units * UNIT_BYTES :]
        self._look_at_s = 0.0

    def __del__(self) -> None:
        os.close(self._descriptor)

    def copy(self, first: int, size_bytes: int, generation: int) -> bytearray | None:
        end = first + -(-size_bytes // UNIT_BYTES)
        if end > self._units:
            raise Elsewhere
        place = slice(first * GENERATION_BYTES, end * GENERATION_BYTES)
        expected = generation.to_bytes(GENERATION_BYTES, sys.byteorder) * (end - first)
        # Before, too: what was never written has no memory yet, and reading it may need some.
        if self._generations[place] != expected or not self._is_held_still():
            return None
        start = first * UNIT_BYTES
        body = bytearray(self._memory[start : start + size_bytes])
        # The interpreter does far more between the two than any processor reorders.
        return body if self._generations[place] == expected else None

    def is_held(self) -> bool:
        """Returns whether the ingress lives."""
        return _is_locked(self._descriptor)

    def _is_held_still(self) -> bool:
        if (now_s := time.monotonic()) < self._look_at_s:
            return True
        self._look_at_s = now_s + LOOK_S
        return self.is_held()


def _open(path: Path) -> int:
    """Opens an arena to read.

    Raises:
        OSError: it is not there, not this user's alone, or no plain file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid() or status.st_mode != stat.S_IFREG | 0o600:
        os.close(descriptor)
        raise PermissionError(errno.EPERM, "not an arena of this user", str(path))
    return descriptor


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False

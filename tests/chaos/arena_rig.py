"""The rig with a small arena in a folder of its own: its slots are used again and again."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from batching.store.arena import GENERATION_BYTES, LARGEST_SHARE, UNIT_BYTES
from ferry.process_tree.embedded_redis import EmbeddedRedis, find_server
from tests.chaos.rig import Rig
from tests.e2e.clients import Clients
from tests.e2e.metrics_text import Scrape
from tests.support import eventually

MEMORY = Path("/dev/shm")
UNITS = 32 * LARGEST_SHARE
ARENA_BYTES = UNITS * (UNIT_BYTES + GENERATION_BYTES)
# So many bodies of the largest size fill it to its last slot.
LARGEST_BYTES = UNITS // LARGEST_SHARE * UNIT_BYTES
MOST = LARGEST_SHARE


class ArenaRig(Rig):
    """A rig whose ingress has an arena of `ARENA_BYTES` in the folder `memory`."""

    def __init__(self, folder: Path, memory: Path, server: EmbeddedRedis) -> None:
        self.memory = memory
        super().__init__(folder, server.url, server=server)

    def _options(self) -> list[str]:
        words = ["--shared-memory-dir", str(self.memory), "--shared-memory-bytes", str(ARENA_BYTES)]
        return [*super()._options(), *words]

    def files(self) -> list[str]:
        return sorted(path.name for path in self.memory.iterdir())

    def carried(self, kind: str = "request") -> dict[str, int]:
        """Returns how many bodies of the living ingress' requests, or answers, went each way."""
        scrape = Scrape(self)
        name = f"ferry_{kind}_bodies_total"
        return {way: int(scrape.value(name, way=way)) for way in ("arena", "redis")}

    def way_of(self, model: str, body: bytes) -> str:
        """Sends this body, while no others come, and returns which way it went."""
        before = self.carried()
        assert self.predict(model, body).status_code == 200
        [way] = [way for way, count in self.carried().items() if count != before[way]]
        return way

    def wait_for_arena(self, model: str) -> None:
        """Waits until bodies go by the arena: an ingress that has had one asks who works."""
        eventually(lambda: self.way_of(model, b"".ljust(LARGEST_BYTES)) == "arena", 10)

    def ways_of_a_whole_arena(self) -> dict[str, int]:
        """Sends bodies that fill the arena to its last slot, and returns which way they went."""
        body = b"hold|".ljust(LARGEST_BYTES)
        with self.serve("whole") as model, Clients(self.inference, MOST) as clients:
            self.wait_for_arena("whole")
            before = self.carried()
            clients.send("/predictions/whole", [body] * MOST)
            eventually(lambda: model.open_requests() == MOST, 10)
            ways = {way: count - before[way] for way, count in self.carried().items()}
            model.let_go()
            assert {answer.status for answer in clients.receive(MOST)} == {200}
        return ways


@contextlib.contextmanager
def memory_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="ferry-test-", dir=MEMORY))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextlib.contextmanager
def open_arena_rig(folder: Path) -> Iterator[ArenaRig]:
    """Runs a rig on a Redis and in memory of its own."""
    with memory_folder() as memory, EmbeddedRedis(find_server()) as server:
        rig = ArenaRig(folder, memory, server)
        try:
            yield rig
        finally:
            rig.close()

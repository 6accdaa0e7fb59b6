"""A batch whose `ferry-bulk`, ingress, worker, Redis, and whole server are each killed twice."""

from pathlib import Path

import psutil
import pytest

from packages.bulk.tests.bulk_process import ENDED, BulkProcess, line
from tests.chaos.promises import is_long
from tests.chaos.rig import kill
from tests.e2e.archives import make_archive
from tests.e2e.ferry_process import FerryServer
from tests.ports import free_ports
from tests.support import command_lines, eventually

pytestmark = [pytest.mark.slow, pytest.mark.chaos, pytest.mark.long]

# Slow enough for a batch to be under way when the next part is killed.
HANDLER = """
import time
def handle(data, context):
    time.sleep(0.01)
    return [row["body"] for row in data] if data else []
"""
PARTS = {"ingress": "-m ingress", "redis": "-server"}


class KilledServer:
    """`ferry up` on the same ports and folders again, after it was killed as a whole."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._port = folder, free_ports(3)
        self.start()
        archive = make_archive(self.ferry.store, "echo", {"handler.py": HANDLER})
        self.ferry.register(archive, batch_size=16, max_batch_delay=5)

    def start(self) -> None:
        self.ferry = FerryServer(self._folder, port_base=self._port)
        self.ferry.wait_started()

    def close(self) -> None:
        self.ferry.process.kill()
        self.ferry.http.close()

    def kill(self, part: str) -> None:
        """Kills a part, which `ferry up` starts again, or everything, and starts that."""
        if part == "server":
            self.close()
            self.start()
            return
        kill(eventually(lambda: self._pids(part), 20)[0])

    def _pids(self, part: str) -> list[int]:
        if part == "worker":
            return [pid for pid in self.ferry.worker_pids("echo") if psutil.pid_exists(pid)]
        parts = command_lines(self.ferry.process.pid)
        return [pid for pid, words in parts.items() if PARTS[part] in " ".join(words)]


@pytest.mark.timeout(900)
def test_each_line_of_a_batch_once_whatever_is_killed(tmp_path: Path, record_property) -> None:
    count, rounds = (100_000, 4) if is_long() else (8_000, 2)
    server = KilledServer(tmp_path)
    bulk = BulkProcess(tmp_path, server.ferry.inference, "--in-flight", "64")
    try:
        # Given a batch under way
        batch_id = bulk.create_batch([line(f"c{n}", n) for n in range(count)])["id"]

        # When one part after the other is killed, each when some more lines are done
        parts = [*("bulk", "worker", "redis", "ingress", "server")] * rounds
        killed = []
        for turn, part in enumerate(parts):
            # The second half is left, so that the batch goes on while the last part is killed.
            done = turn * count / (2 * len(parts))
            now = eventually(
                lambda done=done: (
                    (now := bulk.batch(batch_id))
                    and now["request_counts"]["completed"] >= done
                    and now
                ),
                120,
            )
            if now["status"] in ENDED:
                break
            killed.append(part)
            if part == "bulk":
                bulk.process.kill()
                bulk.start()
            else:
                server.kill(part)
        ended = bulk.ended(batch_id, 300)

        # Then each line is in the output, once
        output = bulk.lines(ended["output_file_id"])
        numbers = sorted(one["response"]["body"] for one in output)
        lost, doubled = count - len(set(numbers)), len(numbers) - len(set(numbers))
        told = f"{len(killed)} kills: {count} lines: {lost} lost, {doubled} doubled"
        record_property("bulk", told)
        errors = bulk.lines(ended["error_file_id"])
        assert (ended["status"], lost, doubled, errors) == ("completed", 0, 0, [])
        assert killed == parts
        assert all(one["custom_id"] == f"c{one['response']['body']}" for one in output)
        assert ended["request_counts"] == {"total": count, "completed": count, "failed": 0}
    finally:
        bulk.process.kill()
        bulk.http.close()
        server.close()

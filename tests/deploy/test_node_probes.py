"""The probes of a node, as the chart writes them: run here against a real node."""

import os
import re
import signal
import subprocess

import pytest
import yaml

from tests.deploy.chart import CHART
from tests.e2e.archives import make_scripted
from tests.e2e.ferry_process import FerryProcess, ferry_server
from tests.support import eventually

LOAD_S = 1.0
TIMEOUT_S = 20

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture
def loaded_server(redis_server, tmp_path):
    """One node that serves a model which takes a second to load."""
    with ferry_server(tmp_path, "--redis-url", redis_server.url) as server:
        archive, _ = make_scripted(server.store, "slow", load_delay=str(LOAD_S))
        server.register(archive)
        yield server


class Probes:
    """The chart's commands, on another folder."""

    def __init__(self, folder):
        self.folder = folder
        text = (CHART / "templates/worker-deployment.yaml").read_text()
        found = re.findall(r"(\w+)Probe:\n\s+exec: \{command: (\[.+\])\}\n", text)
        self.commands = {kind: yaml.safe_load(command) for kind, command in found}
        assert set(self.commands) == {"startup", "liveness", "readiness"}

    def passes(self, kind):
        command = [
            word.replace("/run/torchferry", str(self.folder)) for word in self.commands[kind]
        ]
        assert command != self.commands[kind]
        return subprocess.run(command, check=False, timeout=10).returncode == 0

    def written_ns(self):
        return (self.folder / "alive").stat().st_mtime_ns


def test_node_passes_its_probes_when_it_should(loaded_server, redis_server, tmp_path):
    # Given the probes of a node that is not there
    probes = Probes(tmp_path / "probes")
    assert not any(probes.passes(kind) for kind in probes.commands)

    # When a second node starts
    node = FerryProcess(
        tmp_path,
        ["node", "--redis-url", redis_server.url, "--model-store", str(loaded_server.store)],
        environment={"FERRY_PROBE_DIR": str(probes.folder)},
    )
    try:
        # Then it is alive before it is ready, and ready no sooner than its worker
        eventually(lambda: probes.passes("startup"), TIMEOUT_S)
        assert not probes.passes("readiness")
        assert probes.passes("liveness")
        eventually(lambda: probes.passes("readiness"), TIMEOUT_S)
        assert len(loaded_server.worker_pids("slow")) == 2

        # When Redis does not answer, then it stays alive
        os.kill(redis_server.pid, signal.SIGSTOP)
        try:
            before_ns = probes.written_ns()
            eventually(lambda: probes.written_ns() > before_ns + 2e9, TIMEOUT_S)
            assert probes.passes("liveness")
        finally:
            os.kill(redis_server.pid, signal.SIGCONT)

        # When it stands still for half a minute, then it is not
        os.kill(node.pid, signal.SIGSTOP)
        past_s = probes.written_ns() / 1e9 - 40
        os.utime(probes.folder / "alive", (past_s, past_s))
        assert not probes.passes("liveness")
        os.kill(node.pid, signal.SIGCONT)
        eventually(lambda: probes.passes("liveness"), TIMEOUT_S)

        # When a model is added that cannot load, then the node serves the others
        broken, _ = make_scripted(loaded_server.store, "broken", load_error="no weights")
        loaded_server.manage(
            "POST", "models", url=broken, initial_workers=1, synchronous="false"
        ).raise_for_status()
        eventually(lambda: node.log().count("worker died model=broken") >= 3, TIMEOUT_S)
        before_ns = probes.written_ns()
        eventually(lambda: probes.written_ns() > before_ns + 1.5e9, TIMEOUT_S)
        assert probes.passes("readiness")

        # When it is stopped, then it is neither
        node.stop_cleanly()
        assert not any(probes.passes(kind) for kind in probes.commands)
    finally:
        node.kill()

"""The wheel alone, in an empty environment, runs a file of inputs beside a server."""

import subprocess
from pathlib import Path

import pytest

from packages.bulk.tests.bulk_process import BulkProcess, line
from tests.distributions import build_wheels, install
from tests.e2e.archives import make_archive
from tests.e2e.ferry_process import FerryServer, running

HANDLER = """
def handle(data, context):
    return [2 * row["body"] for row in data or ()]
"""

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(240)]


def test_wheel_runs_a_file_and_brings_nothing_of_the_server(tmp_path: Path) -> None:
    # Given
    [wheel] = build_wheels(tmp_path / "wheels", "packages/bulk")
    python = install(tmp_path / "environment", str(wheel))
    listing = subprocess.run(
        [str(python), "-m", "pip", "list", "--format=freeze"],
        capture_output=True,
        text=True,
        check=True,
    )
    # When
    with running(FerryServer(tmp_path / "server")) as server:
        server.register(make_archive(server.store, "double", {"handler.py": HANDLER}))
        program = [str(python.with_name("ferry-bulk"))]
        bulk = BulkProcess(tmp_path, server.inference, program=program)
        try:
            batch = bulk.ended(bulk.create_batch([line("a", 4, "double")])["id"])
            [answer] = bulk.lines(batch["output_file_id"])
            bulk.stop()
        finally:
            bulk.process.kill()
    # Then
    assert (answer["custom_id"], answer["response"]["body"]) == ("a", 8)
    names = {line.partition("==")[0].lower() for line in listing.stdout.splitlines()}
    assert {"torchferry-bulk", "flask", "waitress"} <= names
    assert not names & {"torchferry", "torchferry-client", "redis", "torch", "httpx"}

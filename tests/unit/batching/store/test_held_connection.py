import subprocess
import sys

import pytest

from batching.store.clients import connect
from batching.store.held_connection import HeldConnection

BEATS = "{ferry}:beats"


@pytest.fixture
def line(real_backend):
    """A connection for scripts, to the real server."""
    client = connect(real_backend.url)
    yield HeldConnection(client)
    client.connection_pool.disconnect()


def beat(line, *members):
    silent, added = line.run("beat", [BEATS], [60_000, 60_000, 0, len(members), *members])
    assert silent == []
    return added


def test_held_connection_brings_a_script_that_the_server_does_not_know(line, real_backend):
    # Given
    real_backend.client.execute_command("SCRIPT", "FLUSH")

    # When / Then
    assert beat(line, "a", "b") == 2
    assert beat(line, "b", "c") == 1


def test_held_connection_is_made_again_when_the_server_closed_it_meanwhile(line, real_backend):
    # Given
    beat(line, "a")
    real_backend.client.client_kill_filter(_type="normal", skipme=True)

    # When / Then: nothing was under way, so no caller need hear of it
    assert beat(line, "a") == 0


def test_scripts_are_there_when_no_file_can_be_opened_any_more():
    # Given an ingress whose clients took every descriptor before its first request
    code = (
        "import resource; from batching.store.scripts.loader import source; "
        "resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0)); print(source('submit'))"
    )
    # When
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    # Then
    assert done.stderr == ""
    assert "KEYS" in done.stdout

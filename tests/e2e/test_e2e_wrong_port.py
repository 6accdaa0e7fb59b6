"""Each command that is given another listener's address says which one that is."""

import subprocess
from pathlib import Path

import pytest

from tests.e2e.ferry_process import FERRY, FerryServer

pytestmark = pytest.mark.slow

INFERENCE, MANAGEMENT, METRICS = range(3)
NAMES = ("inference", "management", "metrics")
# Words of the command, and the listener that it is for.
COMMANDS = [
    ("models list", MANAGEMENT),
    ("models register nosuch.mar", MANAGEMENT),
    ("models scale m --min-worker 1", MANAGEMENT),
    ("models describe m", MANAGEMENT),
    ("models unregister m", MANAGEMENT),
    ("models set-default m 1.0", MANAGEMENT),
    ("jobs list", MANAGEMENT),
    ("jobs retry " + "0" * 32, MANAGEMENT),
    ("predict m FILE", INFERENCE),
    ("jobs submit m FILE", INFERENCE),
    ("status", INFERENCE),
]


@pytest.mark.parametrize("is_asking_for_tokens", [False, True])
def test_command_names_the_port_that_it_was_given_and_the_right_one(
    server: FerryServer, is_asking_for_tokens: bool, tmp_path: Path
) -> None:
    # Given
    (tmp_path / "FILE").write_text("hello")
    running, own = server, None
    if is_asking_for_tokens:
        running = own = FerryServer(tmp_path, "--token-auth", "--key-file", f"{tmp_path}/keys.json")
        own.wait_started()
    try:
        for words, wanted in COMMANDS[:: 5 if is_asking_for_tokens else 1]:
            for given in {INFERENCE, MANAGEMENT, METRICS} - {wanted}:
                url, right = (f"http://127.0.0.1:{running.port + one}" for one in (given, wanted))
                target = [f"--{NAMES[wanted]}-url", url]
                # When
                done = subprocess.run(
                    [FERRY, *words.split(), *target],
                    cwd=tmp_path,
                    capture_output=True,
                    text=True,
                    check=False,
                )
                # Then
                said = f"Error: {url} is the {NAMES[given]} port; {NAMES[wanted]} is {right}\n"
                assert (done.stderr, done.returncode != 0) == (said, True), words
    finally:
        if own is not None:
            own.process.kill()

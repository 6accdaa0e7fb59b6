"""What `ferry check` says of a configuration is what the two commands do that start with it."""

import json
import os
import re
import subprocess

import pytest

from tests.configurations import all_configurations, on_this_machine
from tests.e2e.ferry_process import FERRY, FerryProcess
from tests.support import came_true

CONFIGURATIONS = all_configurations()
STARTED = "Model server started."
# As many as the examples of TorchServe, the conformance scenes, the images', a page's and mistakes.
FEWEST = 25

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def is_said_to_start(rows, command):
    """Returns whether the doctor says that this command starts."""
    said = [row for row in rows if row["part"] in ("start", command)]
    assert said, f"nothing is said of {command}"
    return all(row["text"].startswith("starts") for row in said)


def does_start(process):
    """Returns whether the server starts, and stops it again."""
    assert came_true(lambda: process.has_ended() or STARTED in process.log(), 60), process.log()
    if process.has_ended():
        assert "Error: " in process.log()
        return False
    process.stop()
    return True


def test_all_configurations_are_found():
    assert len(CONFIGURATIONS) >= FEWEST


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_check_says_what_each_start_does(name, tmp_path):
    # Given
    store = tmp_path / "store"
    store.mkdir()
    config = tmp_path / "config.properties"
    config.write_text(on_this_machine(CONFIGURATIONS[name], store))
    # When
    environment = {name: text for name, text in os.environ.items() if name != "REDIS_URL"}
    asked = subprocess.run(
        [FERRY, "check", str(config)],
        capture_output=True,
        check=False,
        cwd=tmp_path,
        env=environment,
    )
    rows = json.loads(asked.stdout)["rows"]
    # Then a start says the same, with the work folder of the file rather than the tests' own
    named = re.findall(r"^work_dir=(.*)", config.read_text(), re.MULTILINE)
    own = {"FERRY_WORK_DIR": named[-1]} if named else {}
    for command, words in {
        "ferry up --config": ("up", "--config", str(config)),
        "ferry torchserve --ts-config": (
            *("torchserve", "--foreground", "--ncs", "--ts-config", str(config)),
            *(() if "model_store=" in config.read_text() else ("--model-store", str(store))),
        ),
    }.items():
        process = FerryProcess(tmp_path, words, cwd=tmp_path, environment=own)
        try:
            expected = is_said_to_start(rows, command)
            assert does_start(process) == expected, (command, rows, process.log())
        finally:
            process.kill()

"""The wheels in an empty environment: torchferry-moving adds its commands to `ferry`."""

import json
import subprocess
from pathlib import Path

import pytest

from packages.moving.tests.upstream import Upstream
from tests.distributions import build_wheels, install

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(300)]


def test_wheel_adds_its_commands(tmp_path: Path) -> None:
    # Given an environment without it
    others = build_wheels(tmp_path / "wheels", "packages/client", ".")
    [moving] = build_wheels(tmp_path / "moving", "packages/moving")
    python = install(tmp_path / "environment", *map(str, others))
    (tmp_path / "requests.jsonl").write_text(json.dumps({"path": "/predictions/m", "body": [1]}))

    def ferry(*words: str) -> subprocess.CompletedProcess[str]:
        program = str(python.parent / "ferry")
        return subprocess.run(
            [program, *words], capture_output=True, text=True, check=False, cwd=tmp_path
        )

    # When
    (tmp_path / "config.properties").write_text("keystore=a\n")
    for words in (["shadow", "--help"], ["doctor", "config.properties"]):
        missing = ferry(*words)
        # Then
        assert (missing.returncode, missing.stdout) == (2, "")
        assert missing.stderr.endswith("pip install torchferry-moving\n")
    # When it is there
    subprocess.run([str(python), "-m", "pip", "install", "-q", str(moving)], check=True)
    with Upstream().running() as old, Upstream(b"{}").running() as new:
        done = ferry(
            "shadow", "--old", old.url, "--new", new.url, "--requests", "requests.jsonl", "--json"
        )
    # Then
    assert done.returncode == 1, done.stderr
    [row] = json.loads(done.stdout)["rows"]
    assert (row["request"], row["body"]) == ("POST /predictions/m", 1)
    judged = ferry("doctor", "config.properties", "--json")
    assert judged.returncode == 1, judged.stderr
    assert json.loads(judged.stdout)["rows"][0]["part"] == "keystore"
